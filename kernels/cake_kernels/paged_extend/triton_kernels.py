"""Triton kernel of ``paged_extend``: one program per tile of query rows and KV head, float32 inside.

A tile holds BLOCK_M consecutive (row, query head of the group) pairs of one request, so the heads of a group share each
tile of K and V. Lengths stay on the device: the grid is large enough for any split of T rows over B requests, and each
program looks up which request its tile belongs to.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cake_kernels.paged_decode.triton_kernels import check_triton_dtype, tile_sizes, walk_rows

# (row, query head) pairs of a tile; float32 has no tensor cores here, and larger tiles would spill registers.
BLOCK_PAIRS = 64
BLOCK_PAIRS_FLOAT32 = 32


def paged_extend_triton(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    qo_indptr: Tensor,
    *,
    page_size: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Give the attention that ``op.paged_extend`` documents; the op checked what both backends refuse.

    Raises:
        KernelInputError: The dtype is float64.
    """
    check_triton_dtype(q)
    num_rows, num_heads, _ = q.shape
    batch, num_kv_heads, max_pages = base_rows.shape
    block = BLOCK_PAIRS_FLOAT32 if q.dtype == torch.float32 else BLOCK_PAIRS
    # Tiles of T rows in one piece, and at most one started tile more per further request.
    tiles = triton.cdiv(num_rows * (num_heads // num_kv_heads), block) + batch - 1
    out = q.new_empty(q.shape)
    kernel: Any = _extend
    with torch.cuda.device_of(q):
        kernel[(tiles, num_kv_heads)](
            q.contiguous(),
            slab,
            base_rows.contiguous(),
            kv_lens.contiguous(),
            qo_indptr.contiguous(),
            out,
            slab.shape[2],
            max_pages,
            batch,
            scale,
            softcap or 0.0,
            BLOCK_B=triton.next_power_of_2(batch),
            BLOCK_M=block,
            **tile_sizes(slab, num_heads, page_size, softcap),
            num_warps=8 if q.dtype == torch.float32 else 4,
        )
    return out


@triton.jit
def _extend(
    p_q, p_slab, p_base_rows, p_kv_lens, p_indptr, p_out, num_slots, max_pages, batch, scale, softcap,
    HKV: tl.constexpr, GROUP: tl.constexpr, P: tl.constexpr, D: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the output of one tile of queries and one KV head; grid (tiles, Hkv)."""
    i_tile, i_kv = tl.program_id(0), tl.program_id(1)
    i_b, i_first = _locate(p_indptr, i_tile, batch, GROUP, BLOCK_B, BLOCK_M)
    if i_b < batch:
        start = tl.load(p_indptr + i_b)
        num_new = tl.load(p_indptr + i_b + 1) - start
        i_list = i_b.to(tl.int64) * HKV + i_kv
        kv_len = tl.load(p_kv_lens + i_list)
        # Pair r of the request is row r // GROUP, head r % GROUP of the group.
        o_pair = i_first + tl.arange(0, BLOCK_M)
        o_row = o_pair // GROUP
        m_row = o_row < num_new
        # [T, Hq]
        o_q = ((start + o_row).to(tl.int64) * HKV + i_kv) * GROUP + o_pair % GROUP
        o_d = tl.arange(0, BLOCK_D)
        m_tile = m_row[:, None] & (o_d < D)[None, :]
        # [BLOCK_M, BLOCK_D]
        b_q = tl.load(p_q + o_q[:, None] * D + o_d[None, :], mask=m_tile, other=0.0)
        # [BLOCK_M]; the padding sees nothing
        b_seen = tl.where(m_row, kv_len - num_new + o_row + 1, 0)
        high = tl.minimum(tl.max(b_seen, axis=0), max_pages * P)
        b_acc, _, b_sum = walk_rows(
            p_slab, p_base_rows + i_list * max_pages, b_q, b_seen, 0, high, num_slots, scale, softcap,
            HKV, P, D, SOFTCAP, WIDEN, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        b_out = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
        tl.store(p_out + o_q[:, None] * D + o_d[None, :], b_out.to(p_out.dtype.element_ty), mask=m_tile)


@triton.jit
def _locate(p_indptr, i_tile, batch, GROUP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_M: tl.constexpr):
    """Give the request of a tile and its first (row, head) pair in it; the request is ``batch`` past the last tile."""
    o_b = tl.arange(0, BLOCK_B)
    m_b = o_b < batch
    # [BLOCK_B]
    b_rows = tl.load(p_indptr + o_b + 1, mask=m_b, other=0) - tl.load(p_indptr + o_b, mask=m_b, other=0)
    b_tiles = tl.cdiv(b_rows * GROUP, BLOCK_M)
    b_done = tl.cumsum(b_tiles, axis=0) <= i_tile
    i_b = tl.sum((b_done & m_b).to(tl.int32), axis=0)
    return i_b, (i_tile - tl.sum(tl.where(b_done, b_tiles, 0), axis=0)) * BLOCK_M
