"""Model preparation: checked, atomic, and clear about what it will not take."""

import json
import shutil
from pathlib import Path

import pytest

from cake_sglang.errors import ModelError
from cake_sglang.runtime import model_files


@pytest.fixture
def fake_conversion(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the conversion's child process by one that writes two files, and record its calls."""
    calls: list[Path] = []

    def convert(source: Path, target: Path, lock: int) -> None:
        calls.append(source)
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(source.read_bytes())

    monkeypatch.setattr(model_files, "_run_conversion", convert)
    return calls


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "Tiny.gguf"
    path.write_bytes(b"GGUF" + bytes(range(100)))
    return path


def test_a_converted_model_is_used_again(fake_conversion: list[Path], gguf: Path, tmp_path: Path) -> None:
    first = model_files.resolve_model(str(gguf), tmp_path / "cache")
    assert model_files.resolve_model(str(gguf), tmp_path / "cache") == first
    assert len(fake_conversion) == 1
    assert Path(first).name.startswith("tiny-")


def test_a_killed_conversion_leaves_no_model_and_is_done_again(
    fake_conversion: list[Path], gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    working = model_files._run_conversion

    def die(source: Path, target: Path, lock: int) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(model_files, "_run_conversion", die)
    with pytest.raises(KeyboardInterrupt):
        model_files.resolve_model(str(gguf), cache)
    (cache / ".converting-killed-earlier").mkdir()
    assert not [path for path in cache.iterdir() if path.name.startswith("tiny")]
    monkeypatch.setattr(model_files, "_run_conversion", working)
    folder = Path(model_files.resolve_model(str(gguf), cache))
    assert (folder / "model.safetensors").read_bytes() == gguf.read_bytes()
    assert not list(cache.glob(".converting-*"))


@pytest.mark.parametrize("damage", ["flip", "remove", "manifest"])
def test_a_damaged_model_is_found_and_converted_again(
    fake_conversion: list[Path], gguf: Path, tmp_path: Path, damage: str
) -> None:
    folder = Path(model_files.resolve_model(str(gguf), tmp_path / "cache"))
    if damage == "flip":
        (folder / "model.safetensors").write_bytes(b"X" + gguf.read_bytes()[1:])
    elif damage == "remove":
        (folder / "config.json").unlink()
    else:
        (folder / model_files.MANIFEST).write_text("{")
    assert model_files.find_damage(folder) is not None
    model_files.resolve_model(str(gguf), tmp_path / "cache")
    assert model_files.find_damage(folder) is None
    assert len(fake_conversion) == 2


def test_the_embedded_model_with_a_wrong_checksum_is_refused(
    fake_conversion: list[Path], gguf: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"Tiny.gguf has SHA-256 [0-9a-f]{64}, expected 0000"):
        model_files.convert_gguf(gguf, tmp_path / "cache", name="tiny", expected_sha256="0000")
    assert not fake_conversion


def test_a_full_disk_is_said_before_anything_is_written(
    fake_conversion: list[Path], gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match=r"has 0.00 GB free, converting Tiny.gguf needs"):
        model_files.resolve_model(str(gguf), tmp_path / "cache")


def test_a_hugging_face_id_is_passed_through(tmp_path: Path) -> None:
    assert model_files.resolve_model("owner/name-1B", tmp_path) == "owner/name-1B"


def test_a_model_folder_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert model_files.resolve_model(str(tmp_path), tmp_path) == str(tmp_path.resolve())


def test_what_is_no_model_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "noise.gguf").write_bytes(b"noise")
    for spec, message in [
        (str(tmp_path), "has no config.json"),
        (str(tmp_path / "noise.gguf"), "is not GGUF"),
        (str(tmp_path / "absent.gguf"), "neither a folder"),
    ]:
        with pytest.raises(ModelError, match=message):
            model_files.resolve_model(spec, tmp_path)


def test_the_cache_folder_follows_its_variables() -> None:
    assert model_files.cache_dir({"CAKE_CACHE_DIR": "/x"}) == Path("/x")
    assert model_files.cache_dir({"XDG_CACHE_HOME": "/y"}) == Path("/y/cake-sglang/models")
