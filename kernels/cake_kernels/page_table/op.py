"""The op ``page_table``: checks and dispatch."""

import torch
from torch import Tensor

from cake_kernels.backend import Backend, backend_for
from cake_kernels.checks import check_device, check_dtype, check_range, check_shape
from cake_kernels.errors import KernelInputError
from cake_kernels.page_table.reference import page_table_reference
from cake_kernels.page_table.result import PageTable
from cake_kernels.slab import check_multiples, check_page_size, check_within, values_are_checked

MAX_PAGES = 2**31 - 1


def page_table(
    slots: Tensor,
    seq_lens: Tensor,
    seg_start: Tensor,
    seg_end: Tensor,
    owned_pages: Tensor,
    num_owned: Tensor,
    offsets: Tensor,
    *,
    layer: int,
    num_layers: int,
    num_kv_heads: int,
    num_slots: int,
    page_size: int,
    max_pages: int,
) -> PageTable:
    """Give the physical pages of a batch in one layer, a list for each KV head.

    The pages of request b and head h are its plain pages before ``seg_start``, then the segment's cells of (layer, h),
    full of rows, then its plain pages from ``seg_end`` to ``seq_lens``, the last one perhaps partly used.
    ``cake_kernels.slab`` says where pages and cells lie. No value is read on the host on an accelerator, so the call
    can be recorded in a graph.

    Args:
        slots: [B, max_len] int32 or int64 slot of each logical token. Each page of plain tokens lies in one page of
            slots, in order. Entries of the segment and past ``seq_lens`` are not read.
        seq_lens: [B] int32 logical tokens, 0 to max_len.
        seg_start: [B] int32 first logical token of the compressed segment, a multiple of P.
        seg_end: [B] int32 end of it, a multiple of P, ``seg_start <= seg_end <= seq_lens``; equal to ``seg_start``
            where the request has no segment.
        owned_pages: [B, m_max] int64 pages of the segment, 0 to R / P - 1; entries from ``num_owned`` on are not read.
        num_owned: [B] int32 pages that the segment owns, 1 to m_max; not read without a segment, like ``offsets``.
        offsets: [B, L * Hkv + 1] int32 first cell of each (layer, head), ascending from 0; the last entry is the number
            of cells, at most ``num_owned * L * Hkv``.
        layer: 0 to L - 1.
        num_layers: L.
        num_kv_heads: Hkv.
        num_slots: R, slots of one buffer.
        page_size: P, slots per page; divides R.
        max_pages: Width of the table; at least the pages of the longest list.

    Returns:
        The table; pages past the end of a list are -1.

    Raises:
        KernelInputError: A shape, dtype, device or number is wrong; on the CPU also a value outside its range. On an
            accelerator values are not looked at, which would wait for the device, and pages past ``max_pages`` are
            dropped.
        UnsupportedDeviceError: The backend asked for cannot run on this device.
    """
    for name, number in {"num_layers": num_layers, "num_kv_heads": num_kv_heads, "num_slots": num_slots}.items():
        check_range(name, number, 1, MAX_PAGES)
    check_range("max_pages", max_pages, 1, MAX_PAGES)
    check_range("layer", layer, 0, num_layers - 1)
    check_page_size(num_slots, page_size)
    tensors = {"seq_lens": seq_lens, "seg_start": seg_start, "seg_end": seg_end, "num_owned": num_owned}
    check_shape("slots", slots, (None, None))
    check_dtype("slots", slots, (torch.int32, torch.int64))
    for name, tensor in tensors.items():
        check_shape(name, tensor, (slots.shape[0],))
        check_dtype(name, tensor, (torch.int32,))
    check_shape("owned_pages", owned_pages, (slots.shape[0], None))
    check_dtype("owned_pages", owned_pages, (torch.int64,))
    check_shape("offsets", offsets, (slots.shape[0], num_layers * num_kv_heads + 1))
    check_dtype("offsets", offsets, (torch.int32,))
    check_device(slots=slots, owned_pages=owned_pages, offsets=offsets, **tensors)
    if values_are_checked(slots.device):
        _check_plain(slots, seq_lens, seg_start, seg_end, num_slots, page_size)
        _check_segments(seg_end > seg_start, owned_pages, num_owned, offsets, num_slots // page_size)
    if backend_for(slots.device) is Backend.TRITON:
        from cake_kernels.page_table.triton_kernels import page_table_triton as implementation
    else:
        implementation = page_table_reference
    table = implementation(
        slots,
        seq_lens,
        seg_start,
        seg_end,
        owned_pages,
        num_owned,
        offsets,
        layer=layer,
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        num_slots=num_slots,
        page_size=page_size,
        max_pages=max_pages,
    )
    if values_are_checked(slots.device):
        longest = int(table.kv_lens.max())
        if longest > max_pages * page_size:
            needed = -(-longest // page_size)
            raise KernelInputError(f"max_pages is {max_pages}, allowed: {needed} (the longest list) or more")
    return table


def _check_plain(
    slots: Tensor, seq_lens: Tensor, seg_start: Tensor, seg_end: Tensor, num_slots: int, page_size: int
) -> None:
    check_within("seq_lens", seq_lens, 0, slots.shape[1], unit="(the width of slots)")
    check_within("seg_end", seg_end, 0, seq_lens, unit="(seq_lens)")
    check_within("seg_start", seg_start, 0, seg_end, unit="(seg_end)")
    check_multiples("seg_start", seg_start, page_size)
    check_multiples("seg_end", seg_end, page_size)
    position = torch.arange(0, slots.shape[1], page_size)
    used = position < seq_lens[:, None]
    plain = used & ((position < seg_start[:, None]) | (position >= seg_end[:, None]))
    name = "slots" if page_size == 1 else f"slots[:, ::{page_size}]"
    check_within(name, slots[:, ::page_size], 0, num_slots - page_size, plain)
    check_multiples(name, slots[:, ::page_size], page_size, plain)


def _check_segments(has: Tensor, owned_pages: Tensor, num_owned: Tensor, offsets: Tensor, num_pages: int) -> None:
    if not bool(has.any()):
        return
    check_within("num_owned", num_owned, 1, owned_pages.shape[1], has, unit="(the width of owned_pages)")
    owned = torch.arange(owned_pages.shape[1]) < num_owned[:, None]
    check_within("owned_pages", owned_pages, 0, num_pages - 1, owned & has[:, None])
    check_within("offsets[:, :1]", offsets[:, :1], 0, 0, has[:, None])
    most = num_owned[:, None] * (offsets.shape[1] - 1)
    check_within("offsets[:, 1:]", offsets[:, 1:], offsets[:, :-1], most, has[:, None], unit="(the segment's cells)")
