"""What is installed here: versions, device, plugin settings and prepared models, without starting anything."""

import os
from importlib.metadata import PackageNotFoundError, entry_points, version

from cake_sglang.config import CakeConfig
from cake_sglang.errors import CakeError
from cake_sglang.runtime.compat import SGLANG_VERSION
from cake_sglang.runtime.device import cuda_device_count
from cake_sglang.runtime.launch import available_memory_bytes
from cake_sglang.runtime.model_files import cache_dir, find_damage

PACKAGES = ("cake-sglang", "sglang", "torch", "transformers", "flashinfer-python", "triton")


def installation_report() -> dict[str, object]:
    """Give the report as JSON values; ``problem`` says why the engine cannot work here, None if it can."""
    problem = None
    try:
        settings = CakeConfig.from_env(os.environ).to_json()
    except CakeError as error:
        settings, problem = None, str(error)
    versions = {name: _version(name) for name in PACKAGES}
    if versions["sglang"] != SGLANG_VERSION:
        problem = f"sglang is {versions['sglang']}, expected {SGLANG_VERSION}"
    cache = cache_dir(os.environ)
    folders = sorted(path for path in cache.glob("*-v*") if path.is_dir()) if cache.is_dir() else []
    return {
        "versions": versions,
        "plugins": [point.value for point in entry_points(group="sglang.srt.plugins")],
        "settings": settings,
        "cuda_devices": cuda_device_count(),
        "available_memory_gb": round(available_memory_bytes() / 1e9, 1),
        "model_cache": str(cache),
        "models": {path.name: find_damage(path) or "intact" for path in folders},
        "problem": problem,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
