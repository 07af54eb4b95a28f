"""Triton kernel of ``kv_compaction``: one gather and scatter, no buffer between."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cake_kernels.page_table.triton_kernels import cell_base_row

BLOCK_ROWS = 32


def kv_compaction_triton(
    slab: Tensor,
    src_slots: Tensor,
    kept: Tensor,
    counts: Tensor,
    offsets: Tensor,
    owned_pages: Tensor,
    *,
    layer: int,
    page_size: int,
) -> None:
    """Copy the rows that ``op.kv_compaction`` documents; the op checked the inputs."""
    _, _, num_slots, num_kv_heads, head_dim = slab.shape
    if kept.shape[1] == 0:
        return
    kernel: Any = _copy_rows
    with torch.cuda.device_of(slab):
        kernel[(num_kv_heads, triton.cdiv(kept.shape[1], BLOCK_ROWS))](
            slab,
            src_slots.contiguous(),
            kept.contiguous(),
            counts.contiguous(),
            offsets.contiguous(),
            owned_pages.contiguous(),
            layer,
            num_slots,
            owned_pages.shape[0],
            kept.shape[1],
            HKV=num_kv_heads,
            P=page_size,
            D=head_dim,
            BLOCK_ROWS=BLOCK_ROWS,
            BLOCK_D=triton.next_power_of_2(head_dim),
        )


@triton.jit
def _copy_rows(
    p_slab, p_src_slots, p_kept, p_counts, p_offsets, p_owned_pages, layer, num_slots, num_owned, width,
    HKV: tl.constexpr, P: tl.constexpr, D: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK_ROWS kept rows of one head; grid (Hkv, blocks)."""
    i_head, i_block = tl.program_id(0), tl.program_id(1)
    o_row = i_block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    m_row = o_row < tl.load(p_counts + i_head)
    # [BLOCK_ROWS]
    b_token = tl.load(p_kept + i_head.to(tl.int64) * width + o_row, mask=m_row, other=0)
    b_slot = tl.load(p_src_slots + b_token, mask=m_row, other=0).to(tl.int64)
    b_source = (b_slot + layer * 2 * num_slots) * HKV + i_head
    b_cell = tl.load(p_offsets + layer * HKV + i_head) + o_row // P
    b_target = cell_base_row(b_cell, p_owned_pages, num_owned, num_slots, m_row, HKV, P) + o_row % P * HKV
    # [BLOCK_ROWS, BLOCK_D]
    o_d = tl.arange(0, BLOCK_D)[None, :]
    m_tile = m_row[:, None] & (o_d < D)
    p_source = p_slab + b_source[:, None] * D + o_d
    p_target = p_slab + b_target[:, None] * D + o_d
    to_values = num_slots.to(tl.int64) * (HKV * D)
    tl.store(p_target, tl.load(p_source, mask=m_tile), mask=m_tile)
    tl.store(p_target + to_values, tl.load(p_source + to_values, mask=m_tile), mask=m_tile)
