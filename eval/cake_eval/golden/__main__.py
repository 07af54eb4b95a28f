"""``python -m cake_eval.golden FILE…``: one JSON line per recorded file; exit 1 on any difference.

The kind of a file (CAKE, LAVa or baselines) follows from its entries, not from its name.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cake_eval.golden import baselines_file, cake_file, lava_file
from cake_eval.golden.comparison import Comparison, GoldenError, Recorded

KINDS: dict[str, tuple[set[str], Callable[[Recorded], Comparison]]] = {
    "cake": ({"pref", "indicator"}, cake_file.compare),
    "lava": ({"entropy", "head_len"}, lava_file.compare),
    "baselines": ({"q", "k"}, baselines_file.compare),
}
SHOWN = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Compare every file, also after one that differs."""
    parser = argparse.ArgumentParser(prog="python -m cake_eval.golden", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="recorded .npz files")
    results = []
    for path in parser.parse_args(argv).files:
        results.append(check_file(path))
        print(json.dumps(results[-1]), flush=True)
    return 0 if all(result["ok"] for result in results) else 1


def check_file(path: Path) -> dict[str, Any]:
    """Give the file's kind, what was compared, and the differences found."""
    kind, comparison = None, Comparison()
    try:
        recorded = Recorded(path)
        kind, compare = _kind(recorded)
        comparison = compare(recorded)
        if not comparison.compared:
            comparison.differences.append("nothing in the file can be compared")
        if recorded.unread and not comparison.differences:
            comparison.differences.append(f"entries that are never compared: {', '.join(recorded.unread)}")
    # A file that somebody else wrote: whatever it breaks is a difference, and the next file is still compared.
    except Exception as error:
        comparison.differences.append(f"{type(error).__name__}: {error}")
    return {
        "file": path.name,
        "kind": kind,
        "ok": not comparison.differences,
        "compared": comparison.compared,
        "differences": comparison.differences[:SHOWN],
        "num_differences": len(comparison.differences),
    }


def _kind(recorded: Recorded) -> tuple[str, Callable[[Recorded], Comparison]]:
    for kind, (entries, compare) in KINDS.items():
        if entries <= recorded.names:
            return kind, compare
    wanted = "; ".join(f"{kind}: {', '.join(sorted(entries))}" for kind, (entries, _) in KINDS.items())
    raise GoldenError(f"entries {', '.join(sorted(recorded.names)) or 'none'} are of no known kind ({wanted})")


if __name__ == "__main__":
    sys.exit(main())
