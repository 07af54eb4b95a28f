"""Triton kernels of ``paged_decode``, and the walk over a head's rows that ``paged_extend`` shares; float32 inside.

Each (request, KV head) cuts its own rows into equal splits, so a long head keeps as many programs busy as a short one.
``_split`` gives each split's peak, sum and weighted values, ``_combine`` the output; there are no atomics, so equal
calls give equal bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cake_kernels.backend import interpreted
from cake_kernels.errors import KernelInputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Rows of a tile; K and V tiles of two pipeline stages must fit in shared memory with D = 256 in float32 too.
BLOCK_ROWS = 32
# Fewest rows for which a split of its own pays, most splits, and programs that fill a GPU of 132 multiprocessors.
MIN_SPLIT_ROWS = 128
MAX_SPLITS = 64
ENOUGH_PROGRAMS = 528


def paged_decode_triton(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    *,
    page_size: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Give the attention that ``op.paged_decode`` documents; the op checked what both backends refuse.

    Raises:
        KernelInputError: The dtype is float64.
    """
    check_triton_dtype(q)
    batch, num_heads, head_dim = q.shape
    num_kv_heads, max_pages = base_rows.shape[1:]
    splits = num_splits(batch * num_kv_heads, max_pages * page_size)
    partial = q.new_empty((batch, num_heads, splits, head_dim), dtype=torch.float32)
    peaks, sums = q.new_empty((2, batch, num_heads, splits), dtype=torch.float32)
    out = q.new_empty((batch, num_heads, head_dim))
    split: Any = _split
    combine: Any = _combine
    with torch.cuda.device_of(q):
        split[(batch, num_kv_heads, splits)](
            q.contiguous(),
            slab,
            base_rows.contiguous(),
            kv_lens.contiguous(),
            partial,
            peaks,
            sums,
            slab.shape[2],
            max_pages,
            scale,
            softcap or 0.0,
            BLOCK_M=max(16, triton.next_power_of_2(num_heads // num_kv_heads)),
            **tile_sizes(slab, num_heads, page_size, softcap),
        )
        combine[(batch * num_heads,)](
            partial,
            peaks,
            sums,
            out,
            splits,
            D=head_dim,
            BLOCK_S=triton.next_power_of_2(splits),
            BLOCK_D=triton.next_power_of_2(head_dim),
        )
    return out


def num_splits(num_lists: int, max_rows: int) -> int:
    """Give the splits per head: enough programs for a GPU, unless splits get short; reads no length."""
    return max(1, min(-(-ENOUGH_PROGRAMS // num_lists), max_rows // MIN_SPLIT_ROWS, MAX_SPLITS))


def check_triton_dtype(q: Tensor) -> None:
    """Refuse a dtype that the kernels do not multiply."""
    if q.dtype not in DTYPES:
        allowed = ", ".join(map(str, DTYPES))
        raise KernelInputError(f"q is {q.dtype}, allowed by the Triton backend: {allowed}")


def tile_sizes(slab: Tensor, num_heads: int, page_size: int, softcap: float | None) -> dict[str, Any]:
    """Give the compile-time sizes that the kernels of both ops share."""
    num_kv_heads, head_dim = slab.shape[3:]
    return {
        "HKV": num_kv_heads,
        "GROUP": num_heads // num_kv_heads,
        "P": page_size,
        "D": head_dim,
        "SOFTCAP": softcap is not None,
        # The interpreter multiplies the bit patterns of bfloat16; float32 gives the same products.
        "WIDEN": interpreted() and slab.dtype == torch.bfloat16,
        "BLOCK_N": BLOCK_ROWS,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
    }


@triton.jit
def _split(
    p_q, p_slab, p_base_rows, p_kv_lens, p_partial, p_peaks, p_sums, num_slots, max_pages, scale, softcap,
    HKV: tl.constexpr, GROUP: tl.constexpr, P: tl.constexpr, D: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write what the query heads of one (request, KV head) read in one split; grid (B, Hkv, splits)."""
    i_b, i_kv, i_split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    num_splits = tl.num_programs(2)
    i_list = i_b * HKV + i_kv
    kv_len = tl.minimum(tl.load(p_kv_lens + i_list), max_pages * P)
    # Whole tiles, so that no tile is cut; the last splits of a short head are empty.
    split_len = tl.cdiv(tl.cdiv(kv_len, num_splits), BLOCK_N) * BLOCK_N
    low = i_split * split_len
    high = tl.minimum(low + split_len, kv_len)
    o_g, o_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    m_g, m_d = o_g < GROUP, o_d < D
    o_head = i_list * GROUP + o_g
    m_tile = m_g[:, None] & m_d[None, :]
    # [BLOCK_M, BLOCK_D]
    b_q = tl.load(p_q + o_head[:, None] * D + o_d[None, :], mask=m_tile, other=0.0)
    # [BLOCK_M]
    b_seen = tl.zeros([BLOCK_M], dtype=tl.int32) + kv_len
    b_acc, b_peak, b_sum = walk_rows(
        p_slab, p_base_rows + i_list * max_pages, b_q, b_seen, low, high, num_slots, scale, softcap,
        HKV, P, D, SOFTCAP, WIDEN, BLOCK_M, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    # [B, Hq, splits, D] and [B, Hq, splits]
    o_out = o_head * num_splits + i_split
    tl.store(p_partial + o_out[:, None] * D + o_d[None, :], b_acc, mask=m_tile)
    tl.store(p_peaks + o_out, b_peak, mask=m_g)
    tl.store(p_sums + o_out, b_sum, mask=m_g)


@triton.jit
def _combine(
    p_partial, p_peaks, p_sums, p_out, splits, D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Write the output of one query head, zero where no split has a row; grid (B * Hq,)."""
    i_head = tl.program_id(0).to(tl.int64)
    o_s, o_d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    m_s, m_d = o_s < splits, o_d < D
    o_in = i_head * splits + o_s
    # [BLOCK_S]
    b_peak = tl.load(p_peaks + o_in, mask=m_s, other=float("-inf"))
    b_sum = tl.load(p_sums + o_in, mask=m_s, other=0.0)
    peak = tl.max(b_peak, axis=0)
    b_factor = tl.exp(b_peak - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(b_factor * b_sum, axis=0)
    # [BLOCK_S, BLOCK_D]
    b_acc = tl.load(p_partial + o_in[:, None] * D + o_d[None, :], mask=m_s[:, None] & m_d[None, :], other=0.0)
    b_out = tl.sum(b_factor[:, None] * b_acc, axis=0) / tl.where(total == 0, 1.0, total)
    tl.store(p_out + i_head * D + o_d, b_out.to(p_out.dtype.element_ty), mask=m_d)


@triton.jit
def walk_rows(
    p_slab, p_pages, b_q, b_seen, low, high, num_slots, scale, softcap,
    HKV: tl.constexpr, P: tl.constexpr, D: tl.constexpr, SOFTCAP: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Give weighted values [BLOCK_M, BLOCK_D], peaks and sums [BLOCK_M] of the rows ``low`` to ``high`` of one head.

    Query i sees the rows before ``b_seen[i]``. A query that sees none has zero values, peak -inf and sum 0.
    """
    to_values = tl.cast(num_slots, tl.int64) * (HKV * D)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    b_peak = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    b_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    b_acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for first in range(low, high, BLOCK_N):
        o_n = first + tl.arange(0, BLOCK_N)
        m_n = o_n < high
        b_row = tl.load(p_pages + o_n // P, mask=m_n, other=0) + o_n % P * HKV
        # [BLOCK_N, BLOCK_D]
        p_k = p_slab + b_row[:, None] * D + o_d[None, :]
        m_kv = m_n[:, None] & m_d[None, :]
        b_k = tl.load(p_k, mask=m_kv, other=0.0)
        b_v = tl.load(p_k + to_values, mask=m_kv, other=0.0)
        # [BLOCK_M, BLOCK_N]
        b_s = _product(b_q, tl.trans(b_k), WIDEN) * scale
        if SOFTCAP:
            # softcap * tanh(s / softcap)
            b_s = softcap * (2.0 * tl.sigmoid(2.0 * b_s / softcap) - 1.0)
        b_s = tl.where(m_n[None, :] & (o_n[None, :] < b_seen[:, None]), b_s, float("-inf"))
        b_new = tl.maximum(b_peak, tl.max(b_s, axis=1))
        # A query that has seen no row yet keeps the peak -inf; its weights are exp(-inf - 0) = 0.
        b_shift = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_w = tl.exp(b_s - b_shift[:, None])
        b_decay = tl.exp(b_peak - b_shift)
        b_sum = b_sum * b_decay + tl.sum(b_w, axis=1)
        b_acc = b_acc * b_decay[:, None] + _product(b_w.to(b_v.dtype), b_v, WIDEN)
        b_peak = b_new
    return b_acc, b_peak, b_sum


@triton.jit
def _product(b_left, b_right, WIDEN: tl.constexpr):
    """Matrix product with float32 sums."""
    if WIDEN:
        b_left, b_right = b_left.to(tl.float32), b_right.to(tl.float32)
    return tl.dot(b_left, b_right, input_precision="ieee")
