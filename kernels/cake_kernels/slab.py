"""Where K and V rows lie in the slab, and the checks that the ops over a slab share.

A slab [L, 2, R, Hkv, D] holds the K rows (first) and V rows (second) of R slots in every layer. Seen as
[L * 2 * R * Hkv, D], the K row of (layer, slot, head) is ``(layer * 2 * R + slot) * Hkv + head``; a V row always lies
``R * Hkv`` rows after its K row. Page p is the slots ``p * P`` to ``p * P + P - 1``.

A compressed segment owns m whole pages, cut into cells: the rows of one page in one column, where column x is layer
buffer ``x // Hkv``, head ``x % Hkv``. Cell c lies in owned page ``c % m``, column ``c // m``. So rows of one layer and
head may lie in the buffers of other layers and heads; their base address and the row stride Hkv say where.
"""

import torch
from torch import Tensor

from cake_kernels.checks import FLOATS, check_device, check_dtype, check_positive, check_same, check_shape
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


def page_rows(base_rows: Tensor, page_size: int, num_kv_heads: int) -> Tensor:
    """Give the flat K rows of pages, [..., pages] int64 first rows -> [..., pages * P], in the order of the pages."""
    rows = base_rows[..., None] + torch.arange(page_size, device=base_rows.device) * num_kv_heads
    return rows.flatten(-2)


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


def check_paged_attention(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    *,
    num_requests: int,
    page_size: int,
    scale: float | None,
    softcap: float | None,
) -> None:
    """Refuse inputs of an attention over pages that do not fit each other; looks at no index value.

    ``q`` is [any, Hq, D] with Hq a multiple of Hkv, at most 64 times as much; ``base_rows`` and ``kv_lens`` are what
    ``page_table`` gives for ``num_requests``.
    """
    check_slab(slab, page_size)
    num_kv_heads, head_dim = slab.shape[3:]
    check_shape("q", q, (None, None, head_dim))
    num_heads = q.shape[1]
    if num_heads % num_kv_heads or num_heads // num_kv_heads > MAX_GROUP:
        raise KernelInputError(
            f"q has {num_heads} heads, allowed: multiples of the {num_kv_heads} heads of the slab "
            f"up to {MAX_GROUP * num_kv_heads}"
        )
    check_shape("base_rows", base_rows, (num_requests, num_kv_heads, None))
    check_shape("kv_lens", kv_lens, (num_requests, num_kv_heads))
    check_dtype("base_rows", base_rows, (torch.int64,))
    check_dtype("kv_lens", kv_lens, (torch.int32,))
    check_same(q=q, slab=slab)
    check_device(slab=slab, base_rows=base_rows, kv_lens=kv_lens)
    check_positive("scale", scale)
    check_positive("softcap", softcap)


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
