"""``python -m cake_eval.bench_policies``: time per layer and peak memory of every policy on the CPU, last line JSON.

One layer of the default model's shape with random keys, values and queries; the torch reference computes. The numbers
say how policies and lengths compare, not what a GPU does.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import KVPolicy
from cake_sglang.policies.compress import compress, split_range
from cake_sglang.policies.registry import POLICIES, make_policy
from cake_sglang.policies.window_policy import WindowPolicy

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN = 9, 3, 64, 576
LENGTHS = (4096, 32768, 131072)
BUDGET = 512
PROBES, PROBE_ROWS = 4, 24
CHUNK = 2000
# Rows that are measured of a method whose every prompt row observes; the cost of a row does not depend on the others.
SAMPLED_ROWS = 512
MEBIBYTE = 2**20
# Buffers above 64 KiB go back to the system when freed, so that none hides in what was resident before.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every policy at every length."""
    parser = argparse.ArgumentParser(prog="python -m cake_eval.bench_policies", description=__doc__)
    parser.add_argument("--policy", action="append", choices=sorted(POLICIES), help="measure this one; may repeat")
    parser.add_argument("--length", action="append", type=int, help="prompt tokens, from 600; may repeat")
    arguments = parser.parse_args(argv)
    lengths = arguments.length or list(LENGTHS)
    if min(lengths) < 600:
        parser.error(f"--length is {min(lengths)}, expected at least 600, above the budget of {BUDGET}")
    print(f"{'policy':16s} {'N':>7s} {'s per layer':>12s} {'peak MiB':>9s}  note", flush=True)
    measure("cake", LENGTHS[0])  # Libraries allocate for good in their first call.
    results = []
    for length in lengths:
        for name in arguments.policy or POLICIES:
            results.append(measure(name, length))
            line = "{policy:16s} {tokens:7d} {s_per_layer:12.3f} {peak_mib:9.1f}  {note}"
            print(line.format(**results[-1]), flush=True)
    threads = torch.get_num_threads()
    print(json.dumps({"budget": BUDGET, "threads": threads, "torch": torch.__version__, "results": results}))
    return 0


def measure(name: str, length: int) -> dict[str, Any]:
    """Give the time of one layer, and the largest resident memory besides its keys, values and queries."""
    policy = make_policy(name)
    sampled = "all_rows" in policy.needs and length > SAMPLED_ROWS
    layer = observation(policy, length, SAMPLED_ROWS if sampled else length)
    with peak_resident() as peak:
        before, start = peak[0], time.perf_counter()
        if sampled:
            # What is left out, the choice of the best tokens, takes the same time as in the other policies.
            policy.observe(layer, split_range(policy, layer, 1, BUDGET)[0])
        else:
            compress(policy, [layer], BUDGET)
        seconds = time.perf_counter() - start
    if sampled:
        seconds *= length / SAMPLED_ROWS
    return {
        "policy": name,
        "tokens": length,
        "s_per_layer": seconds,
        "peak_mib": (peak[0] - before) / MEBIBYTE,
        "note": f"extrapolated from {SAMPLED_ROWS} of {length} rows" if sampled else "",
    }


def observation(policy: KVPolicy, length: int, all_rows: int) -> LayerObservation:
    """Give a random layer with the windows that the policy reads."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def rows(count: int, first: int) -> Window:
        return Window(normal(NUM_HEADS, count, HEAD_DIM), torch.arange(first, first + count))

    windows: list[Window] = []
    if "repeat" in policy.needs:
        for start in range(0, length, CHUNK):
            stop = min(start + CHUNK, length)
            part = rows(stop - start, length)
            windows.append(Window(part.q, part.q_pos, attended=((start, stop),), scored=(start, stop)))
    elif "all_rows" in policy.needs:
        windows.append(rows(all_rows, length - all_rows))
    elif isinstance(policy, WindowPolicy):
        if policy.window_source == "probes":
            windows += [rows(PROBE_ROWS, length) for _ in range(PROBES)]
        else:
            windows.append(rows(policy.window, length - policy.window))
    elif policy.name == "tova":
        windows.append(rows(1, length - 1))
    k, v = normal(NUM_KV_HEADS, length, HEAD_DIM), normal(NUM_KV_HEADS, length, HEAD_DIM)
    w_o = normal(NUM_HEADS, HEAD_DIM, HIDDEN) if "w_o" in policy.needs else None
    return LayerObservation(0, k, tuple(windows), v=v, w_o=w_o)


@contextmanager
def peak_resident() -> Iterator[list[int]]:
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


if __name__ == "__main__":
    if not MALLOC.items() <= os.environ.items():
        os.execve(
            sys.executable, [sys.executable, "-m", "cake_eval.bench_policies", *sys.argv[1:]], os.environ | MALLOC
        )
    sys.exit(main())
