"""What the plugin needs from SGLang: the pinned version, the seams it sits on, and one stand-in on the CPU."""

import importlib.util
import inspect
import logging
import sys
import types
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from cake_sglang.errors import UnsupportedError

logger = logging.getLogger(__name__)

SGLANG_VERSION = "0.5.23"


def require_sglang_version() -> str:
    """Give SGLang's version.

    Raises:
        UnsupportedError: If SGLang is absent or another version than the pinned one.
    """
    try:
        found = version("sglang")
    except PackageNotFoundError as error:
        raise UnsupportedError(f"sglang is not installed, expected {SGLANG_VERSION}") from error
    if found != SGLANG_VERSION:
        raise UnsupportedError(f"sglang is {found}, expected {SGLANG_VERSION}")
    return found


def require_signature(function: Callable[..., object], expected: tuple[str, ...]) -> None:
    """Check that a function of SGLang still has the parameters that the plugin relies on.

    Raises:
        UnsupportedError: If the parameter names differ.
    """
    found = tuple(inspect.signature(function).parameters)
    if found != expected:
        raise UnsupportedError(f"{function.__qualname__} has parameters {found}, expected {expected}")


def install_rotary_stand_in() -> bool:
    """Give SGLang an importable ``vllm._custom_ops.rotary_embedding`` on a machine without a GPU.

    ``srt/layers/rotary_embedding/base.py`` (0.5.23, line 138) imports it when neither CUDA nor the CPU engine is
    active. SGLang never calls it there: the CPU dispatch goes to ``forward_native``. The stand-in raises if that
    ever changes. A real vllm in the environment is left alone.

    Returns:
        Whether the stand-in is in place.
    """
    loaded = sys.modules.get("vllm")
    if loaded is not None:
        return getattr(loaded, "_cake_stand_in", False)
    if importlib.util.find_spec("vllm") is not None:
        logger.info("cake plugin: a real vllm is installed; no stand-in")
        return False
    package = types.ModuleType("vllm")
    package.__dict__["_cake_stand_in"] = True
    package.__path__ = []
    operations = types.ModuleType("vllm._custom_ops")
    operations.__dict__["rotary_embedding"] = _refuse_rotary_embedding
    package.__dict__["_custom_ops"] = operations
    sys.modules["vllm"] = package
    sys.modules["vllm._custom_ops"] = operations
    return True


def _refuse_rotary_embedding(*args: object, **kwargs: object) -> None:
    raise UnsupportedError("SGLang called vllm's rotary_embedding on the CPU, where only a stand-in exists")
