"""Which implementation of an op runs: the torch reference, or the Triton kernel where Triton can run.

``CAKE_KERNELS_BACKEND=reference|triton`` forces one everywhere. Without it a CUDA tensor takes Triton and any other
the reference. What cannot run is refused with the reason; nothing falls back by itself.
"""

import enum
import importlib.util
import os

import torch

from cake_kernels.errors import KernelInputError, UnsupportedDeviceError

VARIABLE = "CAKE_KERNELS_BACKEND"


class Backend(enum.Enum):
    """An implementation; the value is the name in ``CAKE_KERNELS_BACKEND``."""

    REFERENCE = "reference"
    TRITON = "triton"


def backend_for(device: torch.device) -> Backend:
    """Give the implementation for tensors on ``device``.

    Raises:
        KernelInputError: ``CAKE_KERNELS_BACKEND`` names no backend.
        UnsupportedDeviceError: the backend cannot run on this device.
    """
    asked = os.environ.get(VARIABLE)
    if asked is None:
        backend = Backend.TRITON if device.type == "cuda" else Backend.REFERENCE
    else:
        known = [backend.value for backend in Backend]
        if asked not in known:
            raise KernelInputError(f"{VARIABLE}={asked!r} names no backend; known: {', '.join(known)}")
        backend = Backend(asked)
    if backend is Backend.TRITON:
        _require_triton(device)
    return backend


def interpreted() -> bool:
    """Whether Triton kernels run under Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _require_triton(device: torch.device) -> None:
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedDeviceError(
            f"the Triton backend needs the package triton, which is not installed; set {VARIABLE}=reference"
        )
    if device.type != "cuda" and not interpreted():
        raise UnsupportedDeviceError(
            f"the Triton backend cannot run on a {device.type} tensor; it needs a CUDA device, "
            "or TRITON_INTERPRET=1 for the interpreter on the CPU"
        )
