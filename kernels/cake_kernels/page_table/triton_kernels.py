"""Triton kernel of ``page_table``, and the address of a cell that ``kv_compaction`` shares."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cake_kernels.page_table.result import PageTable

BLOCK_PAGES = 128


def page_table_triton(
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
    """Give the table that ``op.page_table`` documents; the op checked the inputs."""
    batch = slots.shape[0]
    base_rows = slots.new_empty((batch, num_kv_heads, max_pages), dtype=torch.int64)
    kv_lens = slots.new_empty((batch, num_kv_heads), dtype=torch.int32)
    kernel: Any = _fill_table
    with torch.cuda.device_of(slots):
        kernel[(batch, num_kv_heads, triton.cdiv(max_pages, BLOCK_PAGES))](
            slots,
            *slots.stride(),
            seq_lens.contiguous(),
            seg_start.contiguous(),
            seg_end.contiguous(),
            owned_pages.contiguous(),
            num_owned.contiguous(),
            offsets.contiguous(),
            base_rows,
            kv_lens,
            layer,
            num_slots,
            owned_pages.shape[1],
            max_pages,
            CELL_HEADS=num_layers * num_kv_heads,
            HKV=num_kv_heads,
            P=page_size,
            BLOCK=BLOCK_PAGES,
        )
    return PageTable(base_rows, kv_lens)


@triton.jit
def _fill_table(
    p_slots, stride_b, stride_t, p_seq_lens, p_seg_start, p_seg_end, p_owned_pages, p_num_owned, p_offsets,
    p_base_rows, p_kv_lens, layer, num_slots, width_owned, max_pages,
    CELL_HEADS: tl.constexpr, HKV: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write BLOCK pages of one (request, head), and its length; grid (B, Hkv, blocks)."""
    i_b, i_head, i_block = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, end = tl.load(p_seg_start + i_b), tl.load(p_seg_end + i_b)
    p_offset = p_offsets + i_b * (CELL_HEADS + 1) + layer * HKV + i_head
    first = tl.load(p_offset)
    num_cells = tl.where(end > start, tl.load(p_offset + 1) - first, 0)
    kv_len = start + num_cells * P + tl.load(p_seq_lens + i_b) - end
    before = start // P
    # [BLOCK]
    o_page = i_block * BLOCK + tl.arange(0, BLOCK)
    m_used = (o_page < max_pages) & (o_page.to(tl.int64) * P < kv_len)
    m_before = o_page < before
    m_cell = (o_page >= before) & (o_page < before + num_cells) & m_used
    b_token = tl.where(m_before, o_page * P, end + (o_page - before - num_cells) * P).to(tl.int64)
    b_slot = tl.load(p_slots + i_b * stride_b + b_token * stride_t, mask=m_used & (m_cell == 0), other=0).to(tl.int64)
    b_plain = (b_slot + layer * 2 * num_slots) * HKV + i_head
    num_owned = tl.maximum(tl.load(p_num_owned + i_b), 1)
    b_cell = tl.where(m_cell, first + o_page - before, 0)
    b_cell_row = cell_base_row(b_cell, p_owned_pages + i_b * width_owned, num_owned, num_slots, m_cell, HKV, P)
    b_row = tl.where(m_used, tl.where(m_cell, b_cell_row, b_plain), -1)
    tl.store(p_base_rows + (i_b * HKV + i_head) * max_pages + o_page, b_row, mask=o_page < max_pages)
    if i_block == 0:
        tl.store(p_kv_lens + i_b * HKV + i_head, kv_len)


@triton.jit
def cell_base_row(b_cell, p_owned_pages, num_owned, num_slots, m_cell, HKV: tl.constexpr, P: tl.constexpr):
    """Give the flat first K row of each cell, int64; ``cake_kernels.slab.cell_rows`` is the definition."""
    b_column = (b_cell // num_owned).to(tl.int64)
    b_page = tl.load(p_owned_pages + b_cell % num_owned, mask=m_cell, other=0).to(tl.int64)
    return (b_column // HKV * 2 * num_slots + b_page * P) * HKV + b_column % HKV
