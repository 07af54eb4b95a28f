"""Entry point of the plugin: SGLang calls ``register`` once in every process.

SGLang logs a plugin's exceptions and goes on, so the plugin fails closed in two places. With ``required`` set (the
launcher sets it) a failure here ends the process. And the engine is started with ``--radix-cache-backend cake``,
a name that exists only when ``register`` ran to its end; the factory behind it checks the process once more.
"""

import logging
import os
from typing import TYPE_CHECKING

from cake_sglang.config import CakeConfig
from cake_sglang.errors import UnsupportedError
from cake_sglang.runtime.compat import (
    SGLANG_VERSION,
    install_rotary_stand_in,
    require_sglang_version,
    require_signature,
)
from cake_sglang.runtime.device import cuda_device_count

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

logger = logging.getLogger(__name__)

BACKEND_NAME = "torch_native"
RADIX_CACHE_NAME = "cake"


def register() -> None:
    """Register everything, in order; the radix cache's name comes last because it stands for the whole.

    Raises:
        CakeError: If the plugin cannot work here and is not required.
        SystemExit: If it cannot work and ``required`` is set; SGLang does not swallow this one.
    """
    required = True  # unreadable settings are somebody's wish that cannot be met
    try:
        config = CakeConfig.from_env(os.environ)
        required = config.required
        _register(config)
    except Exception as error:
        logger.error("cake plugin: state=failed reason=%s", error)
        if required:
            raise SystemExit(f"cake plugin: {error}") from error
        raise


def _register(config: CakeConfig) -> None:
    found = require_sglang_version()
    stand_in = cuda_device_count() == 0 and install_rotary_stand_in()

    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    from cake_sglang.runtime.backends.torch_native_backend import create_backend, required_signatures

    for function, parameters in required_signatures():
        require_signature(function, parameters)
    register_attention_backend(BACKEND_NAME)(create_backend)
    if get_radix_cache_factory(RADIX_CACHE_NAME) is None:
        register_radix_cache_backend(RADIX_CACHE_NAME, create_radix_cache)
    logger.info(
        "cake plugin: state=registered sglang=%s compression=%s rotary_stand_in=%s",
        found,
        "on" if config.enabled else "off",
        stand_in,
    )


def create_radix_cache(context: "TreeCacheBuildContext") -> "BasePrefixCache":
    """Build the tree cache of a scheduler, after checking that this process carries the whole plugin.

    Args:
        context: SGLang's ``TreeCacheBuildContext``.

    Returns:
        SGLang's default tree: with compression off nothing about it changes.

    Raises:
        UnsupportedError: If another plugin replaced the attention backend after ours.
    """
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.mem_cache.registry import default_radix_cache_factory

    from cake_sglang.runtime.backends.torch_native_backend import create_backend

    if ATTENTION_BACKENDS.get(BACKEND_NAME) is not create_backend:
        raise UnsupportedError(f"attention backend {BACKEND_NAME!r} was replaced after the cake plugin registered it")
    config = CakeConfig.from_env(os.environ)
    logger.info(
        "cake plugin: state=active sglang=%s compression=%s",
        SGLANG_VERSION,
        "on" if config.enabled else "off",
    )
    return default_radix_cache_factory(context)
