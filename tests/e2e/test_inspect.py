"""The README's command on the embedded model and the example document."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]


def test_inspect_shows_and_draws_what_cake_keeps_of_the_example(tmp_path: Path) -> None:
    picture = tmp_path / "kept.png"
    command = [sys.executable, "-m", "cake_sglang.cli", "inspect", "examples/patriotes-of-37.md", "--policy", "cake"]
    done = subprocess.run(
        [*command, "--budget", "256", "--plot", str(picture), "--json"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["layers"]) == 30
    budgets = [layer["budget"] for layer in found["layers"]]
    assert sum(budgets) / 30 == 256
    # The layers' preferences differ, and more preference never means fewer tokens.
    order = sorted(found["layers"], key=lambda layer: layer["preference"])
    assert [layer["budget"] for layer in order] == sorted(budgets)
    assert max(budgets) > 2 * min(budgets)
    assert picture.read_bytes().startswith(b"\x89PNG")
