"""Every Triton kernel compiles for an H100 or H200 with the arguments that its op launches it with.

The ops run on CPU tensors with a driver that compiles for sm_90 and launches nothing, so no GPU is needed. What Triton
fixes at compile time (block sizes, sizes equal to 1, multiples of 16, optional outputs) is what a GPU would get.
"""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import cake_kernels

pytest.importorskip("triton", reason="needs triton")

# Shared memory that one block can have on sm_90 (CUDA C++ Programming Guide, technical specifications).
MAX_SHARED_BYTES = 227 * 1024
# Kernels of each op.
KERNELS = {
    "kv_compaction": {"_copy_rows"},
    "page_table": {"_fill_table"},
    "paged_decode": {"_combine", "_split"},
    "paged_extend": {"_extend"},
    "window_stats": {"_column_stats", "_combine", "_row_sums"},
}


class CompilingDriver:
    """Names an sm_90 GPU that is not there."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        # Triton keeps compiled kernels per device; a real one has no such number.
        return -1

    def get_current_stream(self, device: int) -> int:
        return device


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """The kernels that ops compile instead of launching them; nothing comes from Triton's cache on disk."""
    from triton.runtime import JITFunction
    from triton.runtime.driver import driver

    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernels.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(driver, "_active", CompilingDriver())
    yield kernels


def launch(op: str, case: Any) -> None:
    module = importlib.import_module(f"cake_kernels.{op}.triton_kernels")
    arguments = case.make(0)
    if "softcap" in arguments:
        arguments["scale"] = case.head_dim**-0.5
    if "scored" in arguments:
        arguments["scored"] = case.scored or (0, case.num_columns)
    getattr(module, f"{op}_triton")(**arguments)


def widest(cases: Sequence[Any]) -> list[Any]:
    """The case with the largest head for each dtype, with and without a soft cap; compiling one takes a second."""
    cases = sorted(cases, key=lambda case: getattr(case, "head_dim", 0))
    return list({tuple(getattr(case, name, None) for name in ("dtype", "softcap")): case for case in cases}.values())


@pytest.mark.parametrize("op", KERNELS)
def test_the_kernels_compile_for_sm_90_and_fit_its_shared_memory(op: str, compiled: list[Any]):
    for case in widest(importlib.import_module(f"cake_kernels.{op}.cases").CASES):
        launch(op, case)
    assert {kernel.metadata.name for kernel in compiled} == KERNELS[op]
    assert [kernel.metadata.target.arch for kernel in compiled] == [90] * len(compiled)
    assert all(kernel.asm["cubin"].startswith(b"\x7fELF") for kernel in compiled)
    assert max(kernel.metadata.shared for kernel in compiled) <= MAX_SHARED_BYTES


def test_every_op_with_kernels_is_compiled():
    folder = Path(cake_kernels.__file__).parent
    assert sorted(KERNELS) == sorted(path.parent.name for path in folder.glob("*/triton_kernels.py"))
