"""The plugin inside SGLang's own loader, in fresh processes: it registers whole, or not at all."""

import os
import subprocess
import sys

import pytest

from cake_sglang.errors import UnsupportedError
from cake_sglang.runtime import compat

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

REPORT = """
import sys
{before}
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.mem_cache.registry import registered_radix_cache_backends
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
print("radix", registered_radix_cache_backends())
print("attention", ATTENTION_BACKENDS["torch_native"].__module__)
"""


def in_process(before: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CAKE_", "SGLANG_"))}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REPORT.format(before=before)],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_sglangs_loader_finds_the_plugin_and_it_registers_both_names() -> None:
    done = in_process()
    assert done.returncode == 0, done.stderr
    assert "radix ['cake']" in done.stdout
    assert "attention cake_sglang.runtime.backends.torch_native_backend" in done.stdout


BREAK = "import importlib.metadata as m; v = m.version; m.version = lambda n: '0.5.22' if n == 'sglang' else v(n)"


def test_another_sglang_version_ends_the_process_when_the_plugin_is_required() -> None:
    done = in_process(BREAK, CAKE_KV_CONFIG='{"required": true}')
    assert done.returncode != 0
    assert "sglang is 0.5.22, expected 0.5.23" in done.stderr


def test_another_sglang_version_leaves_the_radix_cache_name_unknown_when_not_required() -> None:
    done = in_process(BREAK)
    assert done.returncode == 0, done.stderr
    assert "radix []" in done.stdout


def test_unreadable_settings_end_the_process() -> None:
    done = in_process(CAKE_KV_CONFIG='{"requird": true}')
    assert done.returncode != 0
    assert "did you mean required" in done.stderr


def test_a_changed_signature_in_sglang_is_refused_by_name() -> None:
    def init_forward_metadata(self: object, batch: object) -> None: ...

    with pytest.raises(UnsupportedError, match=r"init_forward_metadata has parameters \('self', 'batch'\), expected"):
        compat.require_signature(init_forward_metadata, ("self", "forward_batch"))


def test_the_rotary_stand_in_refuses_to_be_called() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from cake_sglang.runtime.compat import install_rotary_stand_in as f\n"
            "assert f() and f()\n"
            "from vllm._custom_ops import rotary_embedding\n"
            "rotary_embedding()",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "where only a stand-in exists" in done.stderr
