"""Torch definition of ``window_stats``: two passes over blocks of keys, so ``[Hq, W, N]`` never exists."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from cake_kernels.window_stats.result import ALL_STATS, PER_TOKEN, WindowStats

# Bytes of one [Hq, W, block] array; about three of them live at a time.
BLOCK_BYTES = 2 << 20
MIN_BLOCK = 64
# The reference implementation of CAKE adds this inside the logarithm.
ENTROPY_EPSILON = 1e-10


def window_stats_reference(
    q: Tensor,
    k: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    *,
    scored: tuple[int, int],
    scale: float,
    softcap: float | None = None,
    stats: frozenset[str] = ALL_STATS,
    pool_kernel: int = 5,
) -> WindowStats:
    """Give the statistics that ``op.window_stats`` documents; inputs are not checked here."""
    rows = _Rows(q, k, q_pos, k_pos, scale, softcap)
    low, high = scored
    num_heads, num_scored = q.shape[0], high - low
    out = {
        name: torch.empty(num_heads, num_scored, dtype=rows.dtype, device=q.device)
        for name in PER_TOKEN
        if name in stats
    }
    entropy = torch.zeros(num_heads, dtype=torch.float64, device=q.device)
    rescale = _pool_rescale(rows, low, high, pool_kernel) if "pooled_maximum" in stats else None
    half = pool_kernel // 2 if rescale is not None else 0
    for start in range(low, high, rows.block):
        stop = min(start + rows.block, high)
        left, right = max(start - half, low), min(stop + half, high)
        wide = rows.attention(left, right)
        attention = wide[..., start - left : stop - left]
        columns = slice(start - low, stop - low)
        if "mean" in out:
            out["mean"][:, columns] = attention.mean(dim=1)
        if "variance" in out:
            out["variance"][:, columns] = attention.var(dim=1, correction=1)
        if "maximum" in out:
            out["maximum"][:, columns] = attention.amax(dim=1)
        if rescale is not None:
            padding = (half - (start - left), half - (right - stop))
            pooled = functional.avg_pool1d(functional.pad(wide, padding), pool_kernel, stride=1)
            out["pooled_maximum"][:, columns] = pooled.mul_(rescale).amax(dim=1)
        if "entropy" in stats:
            logs = attention.add(ENTROPY_EPSILON).log_().mul_(attention)
            entropy -= logs.sum(dim=(1, 2))
    return WindowStats(**out, entropy=entropy.to(rows.dtype) if "entropy" in stats else None)


class _Rows:
    """Softmax rows of the window, normalised over all keys, given back one block of columns at a time."""

    def __init__(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float, softcap: float | None) -> None:
        num_heads, num_rows, head_dim = q.shape
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.shape = (num_heads, num_rows)
        self.q = (q.to(self.dtype) * scale).reshape(k.shape[0], -1, head_dim)
        self.k, self.q_pos, self.k_pos, self.softcap = k, q_pos, k_pos, softcap
        width = torch.finfo(self.dtype).bits // 8
        self.block = max(MIN_BLOCK, BLOCK_BYTES // (num_heads * num_rows * width))
        self.log_sum = self._log_sum(0, k.shape[1])

    def attention(self, start: int, stop: int) -> Tensor:
        """[Hq, W, stop - start] softmax weights; zero where the key lies after the query."""
        return self._logits(start, stop).sub_(self.log_sum[..., None]).exp_()

    def mass(self, start: int, stop: int) -> Tensor:
        """[Hq, W] summed weights of the columns ``[start, stop)``."""
        total = torch.zeros(self.shape, dtype=self.dtype, device=self.q.device)
        for left in range(start, stop, self.block):
            total += self.attention(left, min(left + self.block, stop)).sum(dim=-1)
        return total

    def _logits(self, start: int, stop: int) -> Tensor:
        keys = self.k[:, start:stop].to(self.dtype)
        logits = torch.bmm(self.q, keys.transpose(1, 2)).view(*self.shape, stop - start)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        hidden = self.k_pos[start:stop][None, :] > self.q_pos[:, None]
        return logits.masked_fill_(hidden, -math.inf)

    def _log_sum(self, start: int, stop: int) -> Tensor:
        peak = torch.full(self.shape, -math.inf, dtype=self.dtype, device=self.q.device)
        total = torch.zeros_like(peak)
        for left in range(start, stop, self.block):
            logits = self._logits(left, min(left + self.block, stop))
            new = torch.maximum(peak, logits.amax(dim=-1))
            # A row that has seen no key yet keeps the peak -inf; its weights are exp(-inf - 0) = 0.
            shift = new.masked_fill(new.isneginf(), 0.0)
            total = total * (peak - shift).exp() + logits.sub_(shift[..., None]).exp_().sum(dim=-1)
            peak = new
        return (peak + total.log()).masked_fill(peak.isneginf(), 0.0)


def _pool_rescale(rows: _Rows, low: int, high: int, kernel: int) -> Tensor:
    """[Hq, W, 1] factor that gives each average-pooled row the mass it had before pooling.

    Only the outermost columns lose mass to the zero padding: column j is read by ``min(j, p) + min(n-1-j, p) + 1``
    of ``kernel`` windows, with p half the kernel.
    """
    half, num = kernel // 2, high - low
    mass = rows.mass(low, high)
    lost = torch.zeros_like(mass)
    edges = set(range(min(half, num))) | {num - 1 - j for j in range(min(half, num))}
    for j in sorted(edges):
        read = min(j, half) + min(num - 1 - j, half) + 1
        lost += rows.attention(low + j, low + j + 1)[..., 0] * (1.0 - read / kernel)
    kept = mass - lost
    return torch.where(kept > 0, mass / kept, torch.ones_like(mass))[..., None]
