"""Where K and V rows lie in the slab, and the checks that the ops over a slab share.

A slab [L, 2, R, Hkv, D] holds the K rows (first) and V rows (second) of R slots in every layer. Seen as
[L * 2 * R * Hkv, D], the K row of (layer, slot, head) is ``(layer * 2 * R + slot) * Hkv + head``; a V row always lies
``R * Hkv`` rows after its K row. Page p is the slots ``p * P`` to ``p * P + P - 1``.

A compressed segment owns m whole pages, cut into cells: the rows of one page in one column, where column x is layer
buffer ``x // Hkv``, head ``x % Hkv``. Cell c lies in owned page ``c % m``, column ``c // m``. So rows of one layer and
head may lie in the buffers of other layers and heads; their base address and the row stride Hkv say where.
"""

import math

import torch
from torch import Tensor

from cake_kernels.checks import FLOATS, check_dtype, check_shape
from cake_kernels.errors import KernelInputError

MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8
MAX_GROUP = 64


def plain_rows(slots: Tensor, layer: int, heads: Tensor | int, *, num_slots: int, num_kv_heads: int) -> Tensor:
    """Give the flat K rows of ``slots`` in one layer; int64, ``slots`` and ``heads`` broadcast together."""
    return (slots.long() + layer * 2 * num_slots) * num_kv_heads + heads


def cell_rows(
    cells: Tensor, owned_pages: Tensor, num_owned: Tensor | int, *, num_slots: int, num_kv_heads: int, page_size: int
) -> Tensor:
    """Give the flat first K row of each cell.

    Args:
        cells: [..., n] int64 cell numbers, >= 0.
        owned_pages: [..., m] int64 pages of the segment, leading sizes as in ``cells``.
        num_owned: Pages in use, at least 1; broadcasts with ``cells``.
        num_slots: R.
        num_kv_heads: Hkv.
        page_size: P.

    Returns:
        [..., n] int64.
    """
    columns = cells // num_owned
    pages = owned_pages.gather(-1, cells % num_owned)
    buffers, heads = columns // num_kv_heads, columns % num_kv_heads
    return (buffers * 2 * num_slots + pages * page_size) * num_kv_heads + heads


def values_are_checked(device: torch.device) -> bool:
    """Whether an op looks at index values; on an accelerator that would wait for the device."""
    return device.type == "cpu"


def check_slab(slab: Tensor, page_size: int) -> None:
    """Refuse a slab that is not contiguous [L, 2, R, Hkv, D], R a multiple of the page size, D 8, 16, ... 256."""
    check_shape("slab", slab, (None, 2, None, None, None))
    check_dtype("slab", slab, FLOATS)
    num_slots, head_dim = slab.shape[2], slab.shape[4]
    if not slab.is_contiguous():
        raise KernelInputError(f"slab has strides {list(slab.stride())}, allowed: contiguous")
    if head_dim % HEAD_DIM_STEP or head_dim > MAX_HEAD_DIM:
        raise KernelInputError(
            f"the head size D is {head_dim}, allowed: multiples of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"
        )
    check_page_size(num_slots, page_size)


def check_page_size(num_slots: int, page_size: int) -> None:
    """Refuse a page size below 1 or one that does not divide the slots."""
    if page_size < 1 or num_slots % page_size:
        raise KernelInputError(f"page_size is {page_size}, allowed: divisors of the {num_slots} slots of a buffer")


def check_positive(name: str, value: float | None) -> None:
    """Refuse a number that is given and not finite and positive."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise KernelInputError(f"{name} is {value}, allowed: finite and above 0")


def check_within(
    name: str, values: Tensor, low: Tensor | int, high: Tensor | int, where: Tensor | None = None, unit: str = ""
) -> None:
    """Refuse an integer tensor with a value outside ``[low, high]``, looking only ``where`` that is true."""
    bad = (values < low) | (values > high)
    bad = bad if where is None else bad & where
    if bool(bad.any()):
        index = bad.nonzero()[0].tolist()
        place = tuple(index)
        least, most = (int(torch.as_tensor(bound).expand_as(bad)[place]) for bound in (low, high))
        raise KernelInputError(
            f"{name}{index} is {int(values.expand_as(bad)[place])}, allowed: {least} to {most}{unit and ' ' + unit}"
        )


def check_multiples(name: str, values: Tensor, step: int, where: Tensor | None = None) -> None:
    """Refuse an integer tensor with a value that is no multiple of ``step``, looking only ``where`` that is true."""
    if step == 1:
        return
    bad = values % step != 0
    bad = bad if where is None else bad & where
    if bool(bad.any()):
        index = bad.nonzero()[0].tolist()
        raise KernelInputError(f"{name}{index} is {int(values[tuple(index)])}, allowed: multiples of {step}, a page")


def check_base_rows(slab: Tensor, base_rows: Tensor, kv_lens: Tensor, page_size: int) -> None:
    """Refuse a page that is in use and does not start at the K row of a page's first slot."""
    num_layers, _, num_slots, num_kv_heads, _ = slab.shape
    pages = (kv_lens + (page_size - 1)) // page_size
    rows = base_rows[..., : int(pages.max())]
    used = torch.arange(rows.shape[-1], device=rows.device) < pages[..., None]
    check_within("base_rows", rows, 0, num_layers * 2 * num_slots * num_kv_heads - 1, used)
    slots = rows // num_kv_heads
    bad = (slots // num_slots % 2 != 0) | (slots % page_size != 0)
    bad &= used
    if bool(bad.any()):
        index = bad.nonzero()[0].tolist()
        raise KernelInputError(
            f"base_rows{index} is {int(rows[tuple(index)])}, allowed: K rows of a page's first slot, "
            f"(layer * {2 * num_slots} + page * {page_size}) * {num_kv_heads} + head"
        )
