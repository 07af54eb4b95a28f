"""Triton kernels of ``window_stats``: two passes over the keys, float32 inside, no atomics.

Pass 1 gives every row (query head, query) its log-sum-exp: one partial result per split of the keys, then a combination
of the splits. Pass 2 recomputes the weights of one block of scored columns for all rows of a head at once, so every
column statistic is finished inside one tile. Both passes share a tile of keys among the query heads of a group.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cake_kernels.backend import interpreted
from cake_kernels.errors import KernelInputError
from cake_kernels.window_stats.reference import ENTROPY_EPSILON
from cake_kernels.window_stats.result import PER_TOKEN, WindowStats

MAX_ROWS = 128
MAX_POOL_KERNEL = 63
# Keys of one split of pass 1; its partial results take 1 / 512 of the weights' memory.
SPLIT = 512
BLOCK_SPLITS = 32
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def window_stats_triton(
    q: Tensor,
    k: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    *,
    scored: tuple[int, int],
    scale: float,
    softcap: float | None,
    stats: frozenset[str],
    pool_kernel: int,
) -> WindowStats:
    """Give the statistics that ``op.window_stats`` documents; the op checked what both backends refuse.

    Raises:
        KernelInputError: The dtype is float64, the window has more than 128 rows, or the pool is wider than 63.
    """
    pooled = "pooled_maximum" in stats
    num_rows, head_dim = q.shape[1:]
    if q.dtype not in DTYPES:
        allowed = ", ".join(map(str, DTYPES))
        raise KernelInputError(f"q is {q.dtype}, allowed by the Triton backend: {allowed}")
    if num_rows > MAX_ROWS:
        raise KernelInputError(f"the window has {num_rows} rows, allowed by the Triton backend: 1 to {MAX_ROWS}")
    if pooled and pool_kernel > MAX_POOL_KERNEL:
        raise KernelInputError(f"pool_kernel is {pool_kernel}, allowed by the Triton backend: 1 to {MAX_POOL_KERNEL}")
    half = pool_kernel // 2 if pooled else 0
    sizes = {
        "W": num_rows,
        "D": head_dim,
        "GROUP": q.shape[0] // k.shape[0],
        "SOFTCAP": softcap is not None,
        # The interpreter multiplies the bit patterns of bfloat16; float32 gives the same products.
        "WIDEN": interpreted() and q.dtype == torch.bfloat16,
        "BLOCK_W": max(16, triton.next_power_of_2(num_rows)),
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        # At least half of a tile is pooled columns, the rest their neighbours.
        "BLOCK_N": 64 if half < 16 else 128,
        "num_warps": 8 if num_rows > 64 else 4,
    }
    inputs = (q, k, q_pos, k_pos, *scored, scale, softcap or 0.0, *q.stride(), *k.stride())
    with torch.cuda.device_of(q):
        log_sums, rescale = _pass_1(q, k, inputs, sizes, pool_kernel if pooled else None)
        return _pass_2(q, k, (*inputs, log_sums, rescale), sizes, stats, scored[1] - scored[0], half)


def _pass_1(
    q: Tensor, k: Tensor, inputs: tuple[Any, ...], sizes: dict[str, int], pool_kernel: int | None
) -> tuple[Tensor, Tensor]:
    """Give [Hq, W] log-sums and, where a pool is given, [Hq, W] factors that undo the mass lost by it."""
    num_heads, num_rows = q.shape[:2]
    num_kv_heads, num_columns = k.shape[:2]
    pooled = pool_kernel is not None
    splits = triton.cdiv(num_columns, SPLIT)
    peaks = q.new_empty((splits, num_heads, num_rows), dtype=torch.float32)
    # All weights; for the pool also the scored ones, and what is left of these after pooling.
    sums = q.new_empty((3 if pooled else 1, splits, num_heads, num_rows), dtype=torch.float32)
    arguments = (*inputs, peaks, sums, num_columns, pool_kernel or 1)
    blocks = SPLIT // sizes["BLOCK_N"]
    _launch(_row_sums, (num_kv_heads, splits), *arguments, POOL=pooled, BLOCKS=blocks, **sizes, num_stages=2)
    log_sums, rescale = q.new_empty((2, num_heads, num_rows), dtype=torch.float32)
    tile = {"BLOCK_W": sizes["BLOCK_W"], "BLOCK_S": BLOCK_SPLITS}
    _launch(_combine, (num_heads,), peaks, sums, log_sums, rescale, splits, W=num_rows, POOL=pooled, **tile)
    return log_sums, rescale


def _pass_2(
    q: Tensor,
    k: Tensor,
    inputs: tuple[Any, ...],
    sizes: dict[str, int],
    stats: frozenset[str],
    num_scored: int,
    half: int,
) -> WindowStats:
    num_heads = q.shape[0]
    blocks = triton.cdiv(num_scored, sizes["BLOCK_N"] - 2 * half)
    out = {
        name: q.new_empty((num_heads, num_scored), dtype=torch.float32) if name in stats else None for name in PER_TOKEN
    }
    partial = q.new_empty((num_heads, blocks), dtype=torch.float32) if "entropy" in stats else None
    arguments = (*inputs, *out.values(), partial, blocks, ENTROPY_EPSILON)
    _launch(_column_stats, (k.shape[0], blocks), *arguments, HALF=half, **sizes, num_stages=1)
    # A sum over blocks in a fixed order, so equal calls give equal bits.
    entropy = None if partial is None else partial.sum(dim=1, dtype=torch.float64).to(torch.float32)
    return WindowStats(**out, entropy=entropy)


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **sizes: Any) -> None:
    """Launch; a kernel's declared type has no grid and no launch options."""
    kernel[grid](*arguments, **sizes)


@triton.jit
def _row_sums(
    p_q, p_k, p_q_pos, p_k_pos, low, high, scale, softcap,
    stride_qh, stride_qw, stride_qd, stride_kh, stride_kn, stride_kd,
    p_peaks, p_sums, N, pool_kernel,
    POOL: tl.constexpr, BLOCKS: tl.constexpr,
    W: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, SOFTCAP: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write each row's peak and sums over one split of the keys; grid (Hkv, splits)."""
    i_kv, i_split = tl.program_id(0), tl.program_id(1)
    num_splits, num_heads = tl.num_programs(1), tl.num_programs(0) * GROUP
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w < W
    b_q_pos = tl.load(p_q_pos + o_w, mask=m_w, other=0)
    for i_group in range(GROUP):
        i_head = i_kv * GROUP + i_group
        # [BLOCK_W, BLOCK_D]
        b_q = _query_tile(p_q, i_head, o_w, m_w, stride_qh, stride_qw, stride_qd, D, BLOCK_D)
        # [BLOCK_W]
        b_peak = tl.full([BLOCK_W], float("-inf"), dtype=tl.float32)
        b_total = tl.zeros([BLOCK_W], dtype=tl.float32)
        b_scored = tl.zeros([BLOCK_W], dtype=tl.float32)
        b_pooled = tl.zeros([BLOCK_W], dtype=tl.float32)
        for i_block in range(BLOCKS):
            o_n = (i_split * BLOCKS + i_block) * BLOCK_N + tl.arange(0, BLOCK_N)
            m_n = o_n < N
            # [BLOCK_W, BLOCK_N]
            b_k = _key_tile(p_k, i_kv, o_n, m_n, stride_kh, stride_kn, stride_kd, D, BLOCK_D)
            b_s = _logits(b_q, b_k, b_q_pos, p_k_pos, o_n, m_n, scale, softcap, SOFTCAP, WIDEN)
            b_new = tl.maximum(b_peak, tl.max(b_s, axis=1))
            # A row that has seen no key yet keeps the peak -inf; its weights are exp(-inf - 0) = 0.
            b_shift = tl.where(b_new == float("-inf"), 0.0, b_new)
            b_a = tl.exp(b_s - b_shift[:, None])
            b_decay = tl.exp(b_peak - b_shift)
            b_total = b_total * b_decay + tl.sum(b_a, axis=1)
            if POOL:
                b_share = _pooled_share(o_n, low, high, pool_kernel)
                b_a = tl.where(((o_n >= low) & (o_n < high))[None, :], b_a, 0.0)
                b_scored = b_scored * b_decay + tl.sum(b_a, axis=1)
                b_pooled = b_pooled * b_decay + tl.sum(b_a * b_share[None, :], axis=1)
            b_peak = b_new
        # [splits, Hq, W]
        o_out = (i_split * num_heads + i_head) * W + o_w
        tl.store(p_peaks + o_out, b_peak, mask=m_w)
        tl.store(p_sums + o_out, b_total, mask=m_w)
        if POOL:
            size = num_splits * num_heads * W
            tl.store(p_sums + size + o_out, b_scored, mask=m_w)
            tl.store(p_sums + 2 * size + o_out, b_pooled, mask=m_w)


@triton.jit
def _combine(
    p_peaks, p_sums, p_log_sums, p_rescale, num_splits,
    W: tl.constexpr, POOL: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Write each row's log-sum-exp over all keys and the factor that undoes the mass lost by pooling; grid (Hq,)."""
    i_head, num_heads = tl.program_id(0), tl.num_programs(0)
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w < W
    size = num_splits * num_heads * W
    b_peak = tl.full([BLOCK_W], float("-inf"), dtype=tl.float32)
    for i_first in range(0, num_splits, BLOCK_S):
        o_s = i_first + tl.arange(0, BLOCK_S)
        # [BLOCK_S, BLOCK_W]
        o_in = (o_s[:, None] * num_heads + i_head) * W + o_w[None, :]
        m_in = (o_s < num_splits)[:, None] & m_w[None, :]
        b_peak = tl.maximum(b_peak, tl.max(tl.load(p_peaks + o_in, mask=m_in, other=float("-inf")), axis=0))
    # Every real row sees a key; the padding rows get any finite peak.
    b_peak = tl.where(m_w, b_peak, 0.0)
    b_total = tl.zeros([BLOCK_W], dtype=tl.float32)
    b_scored = tl.zeros([BLOCK_W], dtype=tl.float32)
    b_pooled = tl.zeros([BLOCK_W], dtype=tl.float32)
    for i_first in range(0, num_splits, BLOCK_S):
        o_s = i_first + tl.arange(0, BLOCK_S)
        # [BLOCK_S, BLOCK_W]
        o_in = (o_s[:, None] * num_heads + i_head) * W + o_w[None, :]
        m_in = (o_s < num_splits)[:, None] & m_w[None, :]
        b_factor = tl.exp(tl.load(p_peaks + o_in, mask=m_in, other=float("-inf")) - b_peak[None, :])
        b_total += tl.sum(b_factor * tl.load(p_sums + o_in, mask=m_in, other=0.0), axis=0)
        if POOL:
            b_scored += tl.sum(b_factor * tl.load(p_sums + size + o_in, mask=m_in, other=0.0), axis=0)
            b_pooled += tl.sum(b_factor * tl.load(p_sums + 2 * size + o_in, mask=m_in, other=0.0), axis=0)
    o_out = i_head * W + o_w
    tl.store(p_log_sums + o_out, b_peak + tl.log(tl.where(m_w, b_total, 1.0)), mask=m_w)
    if POOL:
        m_mass = b_pooled > 0
        b_rescale = tl.where(m_mass, b_scored / tl.where(m_mass, b_pooled, 1.0), 1.0)
        tl.store(p_rescale + o_out, b_rescale, mask=m_w)


@triton.jit
def _column_stats(
    p_q, p_k, p_q_pos, p_k_pos, low, high, scale, softcap,
    stride_qh, stride_qw, stride_qd, stride_kh, stride_kn, stride_kd,
    p_log_sums, p_rescale, p_mean, p_variance, p_maximum, p_pooled, p_entropy, num_blocks, epsilon,
    HALF: tl.constexpr,
    W: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, SOFTCAP: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the statistics of BLOCK_N - 2 * HALF scored columns, HALF more on both sides for the pool.

    Grid (Hkv, blocks). An output that is None is not wanted.
    """
    i_kv, i_block = tl.program_id(0), tl.program_id(1)
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w < W
    b_q_pos = tl.load(p_q_pos + o_w, mask=m_w, other=0)
    o_tile = tl.arange(0, BLOCK_N)
    o_n = low + i_block * (BLOCK_N - 2 * HALF) - HALF + o_tile
    m_n = (o_n >= low) & (o_n < high)
    m_own = m_n & (o_tile >= HALF) & (o_tile < BLOCK_N - HALF)
    # [BLOCK_D, BLOCK_N]
    b_k = _key_tile(p_k, i_kv, o_n, m_n, stride_kh, stride_kn, stride_kd, D, BLOCK_D)
    for i_group in range(GROUP):
        i_head = i_kv * GROUP + i_group
        # [BLOCK_W, BLOCK_D]
        b_q = _query_tile(p_q, i_head, o_w, m_w, stride_qh, stride_qw, stride_qd, D, BLOCK_D)
        b_log_sum = tl.load(p_log_sums + i_head * W + o_w, mask=m_w, other=0.0)
        # [BLOCK_W, BLOCK_N]; zero in padding rows and outside the scored range
        b_s = _logits(b_q, b_k, b_q_pos, p_k_pos, o_n, m_n, scale, softcap, SOFTCAP, WIDEN)
        b_a = tl.where(m_w[:, None], tl.exp(b_s - b_log_sum[:, None]), 0.0)
        # [Hq, n]
        o_out = i_head.to(tl.int64) * (high - low) + (o_n - low)
        b_mean = tl.sum(b_a, axis=0) / W
        if p_mean is not None:
            tl.store(p_mean + o_out, b_mean, mask=m_own)
        if p_variance is not None:
            b_centred = tl.where(m_w[:, None], b_a - b_mean[None, :], 0.0)
            tl.store(p_variance + o_out, tl.sum(b_centred * b_centred, axis=0) / (W - 1), mask=m_own)
        if p_maximum is not None:
            tl.store(p_maximum + o_out, tl.max(b_a, axis=0), mask=m_own)
        if p_pooled is not None:
            # [BLOCK_N, BLOCK_N]; column j averages the columns j - HALF to j + HALF
            b_band = tl.where(tl.abs(o_tile[:, None] - o_tile[None, :]) <= HALF, 1.0 / (2 * HALF + 1), 0.0)
            b_rescale = tl.load(p_rescale + i_head * W + o_w, mask=m_w, other=0.0)
            b_pooled = tl.dot(b_a, b_band, input_precision="ieee") * b_rescale[:, None]
            tl.store(p_pooled + o_out, tl.max(b_pooled, axis=0), mask=m_own)
        if p_entropy is not None:
            b_terms = tl.where(m_own[None, :], -b_a * tl.log(b_a + epsilon), 0.0)
            tl.store(p_entropy + i_head * num_blocks + i_block, tl.sum(tl.sum(b_terms, axis=0), axis=0))


@triton.jit
def _query_tile(p_q, i_head, o_w, m_w, stride_h, stride_w, stride_d, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """[BLOCK_W, BLOCK_D] queries of one head, zero in the padding."""
    o_d = tl.arange(0, BLOCK_D)
    o_q = i_head.to(tl.int64) * stride_h + o_w.to(tl.int64)[:, None] * stride_w + o_d[None, :] * stride_d
    return tl.load(p_q + o_q, mask=m_w[:, None] & (o_d < D)[None, :], other=0.0)


@triton.jit
def _key_tile(p_k, i_kv, o_n, m_n, stride_h, stride_n, stride_d, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """[BLOCK_D, BLOCK_N] keys of one KV head, transposed, zero in the padding."""
    o_d = tl.arange(0, BLOCK_D)
    o_k = i_kv.to(tl.int64) * stride_h + o_d[:, None] * stride_d + o_n.to(tl.int64)[None, :] * stride_n
    return tl.load(p_k + o_k, mask=(o_d < D)[:, None] & m_n[None, :], other=0.0)


@triton.jit
def _logits(
    b_q, b_k, b_q_pos, p_k_pos, o_n, m_n, scale, softcap, SOFTCAP: tl.constexpr, WIDEN: tl.constexpr
):  # fmt: skip
    """[BLOCK_W, BLOCK_N] float32 logits, -inf where the key lies after the query or outside ``m_n``."""
    if WIDEN:
        b_q, b_k = b_q.to(tl.float32), b_k.to(tl.float32)
    b_s = tl.dot(b_q, b_k, input_precision="ieee") * scale
    if SOFTCAP:
        # softcap * tanh(s / softcap)
        b_s = softcap * (2.0 * tl.sigmoid(2.0 * b_s / softcap) - 1.0)
    b_k_pos = tl.load(p_k_pos + o_n, mask=m_n, other=0)
    return tl.where(m_n[None, :] & (b_k_pos[None, :] <= b_q_pos[:, None]), b_s, float("-inf"))


@triton.jit
def _pooled_share(o_n, low, high, pool_kernel):
    """[BLOCK_N] share of a column's weight that its windows keep: those around a column outside are not counted."""
    half = pool_kernel // 2
    b_left = tl.minimum(o_n - low, half)
    b_right = tl.minimum(high - 1 - o_n, half)
    return (b_left + b_right + 1).to(tl.float32) / pool_kernel
