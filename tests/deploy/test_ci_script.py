"""The script that CI runs, driven with stand-in makefiles."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cake_testing.deployment import ROOT

STAGES = ("install", "check", "test", "smoke")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    return tmp_path


def run_ci(clone: Path, recipes: dict[str, str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    targets = {stage: recipes.get(stage, f"@echo ran {stage}") for stage in STAGES}
    (clone / "Makefile").write_text("".join(f"{stage}:\n\t{recipe}\n" for stage, recipe in targets.items()))
    clean = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MAKEFLAGS", "MFLAGS")
    }
    return subprocess.run(
        ["bash", ".ci/run"],
        cwd=clone,
        env={**clean, **(env or {})},
        input="typed",
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_makefile_has_every_stage():
    lines = (ROOT / "Makefile").read_text().splitlines()
    assert [stage for stage in STAGES if not any(line.startswith(f"{stage}:") for line in lines)] == []


def test_all_stages_run_in_order_and_are_timed(clone: Path):
    result = run_ci(clone, {})
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("ran")] == [f"ran {s}" for s in STAGES]
    assert all(f"ci: make {stage} passed in " in result.stdout for stage in STAGES)


def test_a_failing_stage_stops_the_run_and_is_named(clone: Path):
    result = run_ci(clone, {"test": "@echo '1 failed, 2 passed'; exit 1"})
    assert result.returncode != 0
    assert "1 failed, 2 passed" in result.stdout
    assert "ci: make test failed" in result.stderr
    assert "ran smoke" not in result.stdout


def test_a_stage_that_hangs_is_stopped_and_named(clone: Path):
    result = run_ci(clone, {"test": "@sleep 50"}, {"CI_TOTAL_S": "2"})
    assert result.returncode == 124
    assert "ci: make test did not end within" in result.stderr


def test_standard_input_is_empty_and_threads_have_a_default(clone: Path):
    result = run_ci(clone, {"test": "@cat; echo threads=$$OMP_NUM_THREADS"})
    assert "typed" not in result.stdout
    assert "threads=2" in result.stdout
    assert "threads=7" in run_ci(clone, {"test": "@echo threads=$$OMP_NUM_THREADS"}, {"OMP_NUM_THREADS": "7"}).stdout
