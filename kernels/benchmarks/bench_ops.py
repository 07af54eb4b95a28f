"""Times the ops of ``cake_kernels``, or measures their memory, on the GPU where there is one.

Claim: on a GPU an op is bound by the bytes that it must move; the table shows how near to the memory's bandwidth it
comes.

Usage: ``python kernels/benchmarks/bench_ops.py [op ...] [--case NAME] [--memory]``

``cake_kernels/<op>/cases.py`` gives ``BENCH_CASES``, objects with ``name``, ``make(seed)`` and ``bytes_moved()``. An op
is not timed unless ``compare`` is good for each of its small cases. The last line is JSON.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import cake_kernels
from cake_kernels.backend import backend_for

WARM_UP = 2
REPEATS = 7
MEBIBYTE = 2**20
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> int:
    """Run the benchmark; 1 where an op was refused."""
    arguments = _arguments()
    ops = arguments.ops or _ops()
    record: dict[str, Any] = {"environment": _environment(), "results": [], "refused": []}
    for op in ops:
        cases = importlib.import_module(f"cake_kernels.{op}.cases")
        wrong = [] if arguments.memory else _wrong_cases(cases)
        if wrong:
            record["refused"].append({"op": op, "wrong": wrong})
            _say(f"{op}: not timed, since it is wrong in: {'; '.join(wrong)}")
            continue
        measure = _memory if arguments.memory else _time
        for case in cases.BENCH_CASES:
            if arguments.case in (None, case.name):
                result = {"op": op, "case": case.name, **measure(op, case)}
                record["results"].append(result)
                _say("  ".join(str(value) if isinstance(value, str) else f"{value:.4g}" for value in result.values()))
    _say(json.dumps(record))
    return 1 if record["refused"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ops", nargs="*", help="ops to measure; default all that have BENCH_CASES")
    parser.add_argument("--case", help="the one case to measure; default all")
    parser.add_argument("--memory", action="store_true", help="measure the peak memory of one call, not its time")
    return parser.parse_args()


def _ops() -> list[str]:
    """Names of the ops that have BENCH_CASES."""
    folder = Path(cake_kernels.__file__).parent
    names = sorted(path.parent.name for path in folder.glob("*/cases.py"))
    return [name for name in names if hasattr(importlib.import_module(f"cake_kernels.{name}.cases"), "BENCH_CASES")]


def _wrong_cases(cases: Any) -> list[str]:
    return [case.name for case in cases.CASES if not cases.compare(case) <= 1.0]


def _call(op: str, case: Any) -> Callable[[], object]:
    """Give a call of the op on inputs that lie on the device."""
    function = getattr(importlib.import_module(f"cake_kernels.{op}.op"), op)
    inputs = {name: _on_device(value) for name, value in case.make(0).items()}
    return lambda: function(**inputs)


def _on_device(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    return type(value)(map(_on_device, value)) if isinstance(value, list | tuple) else value


def _time(op: str, case: Any) -> dict[str, float]:
    """Give median, fastest and slowest seconds of a call, and bytes over the median."""
    call = _call(op, case)
    for _ in range(WARM_UP):
        call()
    seconds = [_seconds(call) for _ in range(REPEATS)]
    median, moved = statistics.median(seconds), case.bytes_moved()
    return {
        "median_s": median,
        "fastest_s": min(seconds),
        "slowest_s": max(seconds),
        "bytes": moved,
        "gb_per_s": moved / median / 1e9,
    }


def _seconds(call: Callable[[], object]) -> float:
    if DEVICE.type == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3


def _memory(op: str, case: Any) -> dict[str, float]:
    """Give the peak memory that one call needs besides its inputs, outputs included, in MiB."""
    call = _call(op, case)
    if DEVICE.type == "cuda":
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return {"extra_mib": (torch.cuda.max_memory_allocated() - before) / MEBIBYTE}
    # Libraries allocate for good in their first call; its own small inputs leave nothing for the big call to reuse.
    cases = importlib.import_module(f"cake_kernels.{op}.cases")
    _call(op, cases.CASES[0])()
    with _peak_resident() as peak:
        before = peak[0]
        call()
    return {"extra_mib": (peak[0] - before) / MEBIBYTE}


@contextmanager
def _peak_resident() -> Iterator[list[int]]:
    """Keep the largest resident size of this process, in bytes, in the list's one entry."""
    peak, done = [_resident()], threading.Event()

    def sample() -> None:
        while not done.wait(0.0005):
            peak[0] = max(peak[0], _resident())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _environment() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "backend": backend_for(DEVICE).value,
    }


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
