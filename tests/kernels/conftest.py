"""Memory that shows when it is read before it is written, and the Triton kernels under the interpreter."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parent
INTERPRETER = {"TRITON_INTERPRET": "1", "CAKE_KERNELS_BACKEND": "triton"}


def _spoiled(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.fill_(torch.nan)
    return tensor if tensor.dtype is torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).max)


@contextlib.contextmanager
def nan_filled_empty() -> Iterator[None]:
    """Fill what ``torch.empty`` and its kin give with NaN, integers with their largest value."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
            give = getattr(owner, name)
            patch.setattr(owner, name, lambda *args, _give=give, **kwargs: _spoiled(_give(*args, **kwargs)))
        yield


@pytest.fixture(autouse=True)
def spoiled_memory() -> Iterator[None]:
    with nan_filled_empty():
        yield


@pytest.fixture(scope="session")
def interpreted_cases() -> Callable[[str], list[dict[str, Any]]]:
    """Give the function op -> one ``{case, ok, worst}`` per case, from ``interpreter_run.py`` in its own process."""

    def run(op: str) -> list[dict[str, Any]]:
        result = subprocess.run(
            [sys.executable, HERE / "interpreter_run.py", op],
            env={**os.environ, **INTERPRETER},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run
