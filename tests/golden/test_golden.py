"""Recorded outputs of reference implementations agree with the policies, and a changed file does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cake_eval.golden.__main__ import check_file, main

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.npz"))
CAKE, DECODE = "cake_01_basic.npz", "cake_20_decode.npz"
LAVA, BASELINES = "lava_01_basic.npz", "baselines_01.npz"
ENTRIES = [
    *((name, entry) for name in (CAKE, LAVA) for entry in np.load(Path(__file__).parent / "recorded" / name).files),
    *((DECODE, entry) for entry in ("q_dec", "k_dec", "dec_count", "dec_kept_order", "kept_order")),
    *((BASELINES, entry) for entry in np.load(Path(__file__).parent / "recorded" / BASELINES).files),
]
SETTINGS = [
    *((CAKE, setting, value) for setting, value in {
        "L": 5, "Hq": 4, "Hkv": 4, "d": 16, "S": 255, "W": 9, "cache": 65, "tau1": 1.2, "tau2": 0.8, "gamma": 150.0,
    }.items()),
    *((LAVA, setting, value) for setting, value in {
        "W": 9, "cache": 65, "kernel": 5, "pooling": "avgpool", "floor_alpha": 0.2, "normalize": True, "skip": 1,
    }.items()),
    *((BASELINES, setting, value) for setting, value in {"W": 16, "capacity": 65, "beta": 10, "gqa": "max"}.items()),
    (DECODE, "T", 23),
]  # fmt: skip


def entries(name: str) -> dict[str, Any]:
    with np.load(Path(__file__).parent / "recorded" / name) as archive:
        return {entry: archive[entry] for entry in archive.files}


def check(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    np.savez(folder / "changed.npz", **content)
    return check_file(folder / "changed.npz")


def changed(value: np.ndarray) -> np.ndarray:
    """One entry in the middle is a hundredth larger, or larger by one."""
    value = value.copy()
    middle = np.unravel_index(value.size // 2, value.shape)
    value[middle] = value[middle] + 1 if value.dtype.kind == "i" else value[middle] * 1.01 + 0.01
    return value


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_file_agrees_with_the_policies(path: Path):
    result = check_file(path)
    assert result["differences"] == []
    assert result["ok"] and len(result["compared"]) >= 5


@pytest.mark.parametrize(("name", "entry"), [pair for pair in ENTRIES if pair[1] != "config"])
def test_one_changed_number_in_any_entry_is_a_difference(tmp_path: Path, name: str, entry: str):
    content = entries(name)
    if entry in ("q", "q_win", "k", "v", "q_dec", "k_dec"):
        # One number moves a score by less than the tolerance; a whole layer does not.
        content[entry][-1] = content[entry][-1][..., ::-1] * 1.05
    else:
        content[entry] = changed(content[entry])
    assert not check(tmp_path, content)["ok"]


@pytest.mark.parametrize(("name", "setting", "value"), SETTINGS)
def test_a_changed_setting_is_a_difference(tmp_path: Path, name: str, setting: str, value: object):
    content = entries(name)
    config = json.loads(str(content["config"]))
    assert config[setting] != value
    content["config"] = json.dumps(config | {setting: value})
    assert not check(tmp_path, content)["ok"]


def test_two_kept_positions_in_the_wrong_order_are_a_difference(tmp_path: Path):
    content = entries(CAKE)
    content["kept_order"][[0, 20]] = content["kept_order"][[20, 0]]
    assert "kept_order[0][0] is not in order of falling scores" in check(tmp_path, content)["differences"]


@pytest.mark.parametrize("entry", ["pref", "kept_sorted", "stage_sizes", "k", "config"])
def test_a_missing_entry_is_a_difference(tmp_path: Path, entry: str):
    content = entries(CAKE)
    del content[entry]
    assert not check(tmp_path, content)["ok"]


def test_an_entry_that_nothing_compares_is_a_difference(tmp_path: Path):
    result = check(tmp_path, entries(CAKE) | {"kept_twice": np.arange(3)})
    assert result["differences"] == ["entries that are never compared: kept_twice"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_a_file_that_cannot_be_read_is_a_difference(tmp_path: Path, content: bytes):
    (tmp_path / "broken.npz").write_bytes(content)
    result = check_file(tmp_path / "broken.npz")
    assert not result["ok"] and "cannot be read" in result["differences"][0]


def test_the_command_prints_a_line_per_file_and_exits_with_1_on_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    np.savez(tmp_path / "changed.npz", **entries(CAKE) | {"pref": entries(CAKE)["pref"] * 1.001})
    assert main([str(RECORDED[0]), str(RECORDED[1])]) == 0
    assert main([str(tmp_path / "changed.npz"), str(tmp_path / "absent.npz"), str(RECORDED[1])]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ok"] for line in lines] == [True, True, False, False, True]


def test_the_module_runs_as_a_command():
    command = [sys.executable, "-m", "cake_eval.golden", str(RECORDED[1])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, json.loads(result.stdout)["ok"]) == (0, True), result.stderr


def test_a_file_with_nothing_to_compare_is_a_difference(tmp_path: Path):
    content = {name: value for name, value in entries(BASELINES).items() if name in ("q", "k", "config")}
    result = check(tmp_path, content)
    assert not result["ok"] and result["differences"] == ["nothing in the file can be compared"]


@pytest.mark.parametrize("entry", ["k", "v"])
def test_a_missing_input_is_a_difference_and_the_next_file_is_still_compared(
    tmp_path: Path, entry: str, capsys: pytest.CaptureFixture[str]
):
    content = {name: value for name, value in entries(LAVA).items() if name != entry}
    np.savez(tmp_path / "without.npz", **content)
    assert main([str(tmp_path / "without.npz"), str(RECORDED[0])]) == 1
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["ok"] for result in results] == [False, True]
    assert results[0]["differences"]
