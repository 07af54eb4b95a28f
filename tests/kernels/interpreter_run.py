"""Compares the Triton kernels of one op with its reference, and prints one JSON line per case.

Usage: ``TRITON_INTERPRET=1 CAKE_KERNELS_BACKEND=triton python tests/kernels/interpreter_run.py <op>``

Triton reads ``TRITON_INTERPRET`` when it is imported, so this runs in its own process. ``cake_kernels/<op>/cases.py``
gives ``CASES``, objects with a ``name`` and ``make(seed)``, and ``compare(case)``, which runs the op and the reference
on the same inputs and returns the worst error over the tolerance; a case is good up to 1.
"""

import importlib
import json
import sys

from conftest import nan_filled_empty


def main(op: str) -> None:
    cases = importlib.import_module(f"cake_kernels.{op}.cases")
    for case in cases.CASES:
        with nan_filled_empty():
            worst = float(cases.compare(case))
        print(json.dumps({"case": case.name, "ok": worst <= 1.0, "worst": worst}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
