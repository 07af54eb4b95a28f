"""Checks that every op makes before it launches anything; kernels assume them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cake_kernels.errors import KernelInputError

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_shape(name: str, tensor: Tensor, shape: Sequence[int | None]) -> None:
    """Refuse a tensor whose shape is not ``shape``; None stands for any size of at least one."""
    fits = tensor.dim() == len(shape) and all(
        size >= 1 if wanted is None else size == wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise KernelInputError(f"{name} has shape {list(tensor.shape)}, expected [{wanted}]")


def check_dtype(name: str, tensor: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """Refuse a tensor of another dtype."""
    if tensor.dtype not in dtypes:
        allowed = ", ".join(str(dtype) for dtype in dtypes)
        raise KernelInputError(f"{name} is {tensor.dtype}, allowed: {allowed}")


def check_same(**tensors: Tensor) -> None:
    """Refuse tensors that are not all of one dtype and on one device."""
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) > 1:
        listed = ", ".join(f"{name} is {tensor.dtype}" for name, tensor in tensors.items())
        raise KernelInputError(f"mixed dtypes: {listed}; they must be equal")
    check_device(**tensors)


def check_device(**tensors: Tensor) -> None:
    """Refuse tensors that are not all on one device."""
    if len({tensor.device for tensor in tensors.values()}) > 1:
        listed = ", ".join(f"{name} is on {tensor.device}" for name, tensor in tensors.items())
        raise KernelInputError(f"mixed devices: {listed}; they must be on one")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside ``[low, high]`` and every NaN."""
    if not low <= value <= high:
        raise KernelInputError(f"{name} is {value}, allowed: {low} to {high}")


def check_positive(name: str, value: float | None) -> None:
    """Refuse a number that is given and not finite and positive."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise KernelInputError(f"{name} is {value}, allowed: finite and above 0")
