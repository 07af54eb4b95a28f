"""``python -m cake_eval.method_report [FILE…]``: the method's own figures, last line JSON.

Recorded reference outputs that differ, what the cascade would hold at its peak, and the memory of ``window_stats``.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cake_eval.golden.__main__ import check_file
from cake_eval.golden.comparison import Recorded
from cake_sglang import cascade

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "golden" / "recorded"
MEMORY_CASE = "N = 131072, bfloat16"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the peaks of CAKE's recorded files, then all figures."""
    parser = argparse.ArgumentParser(prog="python -m cake_eval.method_report", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="recorded .npz files; default those of the tests")
    files = parser.parse_args(argv).files or sorted(RECORDED.glob("*.npz"))
    checked = [check_file(path) for path in files]
    peaks = [peak for path in files if (peak := cascade_peaks(path)) is not None]
    for peak in peaks:
        print(json.dumps(peak), flush=True)
    figures = {
        "golden_files": len(checked),
        "golden_different": sum(not result["ok"] for result in checked),
        "worst_preference": max(result["compared"].get("pref", 0.0) for result in checked),
        "peak_reference": max(peak["peak_reference"] / peak["peak_one_shot"] for peak in peaks),
        "peak_waterfill": max(peak["peak_waterfill"] / peak["peak_one_shot"] for peak in peaks),
        "window_stats_mib": window_stats_memory(),
    }
    print(json.dumps(figures))
    return 1 if figures["golden_different"] else 0


def cascade_peaks(path: Path) -> dict[str, Any] | None:
    """Give the tokens per KV head held over all layers, at the peak and at the end; None where CAKE evicts nothing."""
    recorded = Recorded(path)
    if "pref" not in recorded.names or recorded.setting("S") <= recorded.setting("cache") + recorded.setting("W"):
        return None
    num_layers, num_tokens, window = (recorded.setting(name) for name in ("L", "S", "W"))
    weights = recorded["pref"].tolist()
    capacity = num_tokens - window
    total = (recorded.setting("cache") - window) * num_layers
    reference = cascade.trace(cascade.reference_stages(weights, total, capacity), num_tokens, window)
    waterfill = cascade.trace(cascade.waterfill_stages(weights, total, capacity), num_tokens, window)
    return {
        "file": path.name,
        "peak_one_shot": cascade.one_shot_peak(num_layers, num_tokens),
        "peak_reference": reference.peak,
        "end_reference": reference.held[-1],
        "peak_waterfill": waterfill.peak,
        "end_waterfill": waterfill.held[-1],
    }


def window_stats_memory() -> float:
    """Give MiB that ``window_stats`` needs besides its inputs: 131,072 keys, 32 query heads, 32 rows."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "kernels/benchmarks/bench_ops.py"), "window_stats", "--memory"]
        + ["--case", MEMORY_CASE],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "CAKE_KERNELS_BACKEND": "reference"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(result.stdout.splitlines()[-1])["results"][0]["extra_mib"]


if __name__ == "__main__":
    sys.exit(main())
