"""How much a token matters: pooling, reduction over a group of query heads, and what is made of the statistics."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from cake_kernels.window_stats.result import WindowStats

Pooling = Literal["avg", "max"]
Group = Literal["mean", "max"]
POOLINGS: tuple[Pooling, ...] = ("avg", "max")
GROUPS: tuple[Group, ...] = ("mean", "max")


def pool(score: Tensor, kernel: int, pooling: Pooling) -> Tensor:
    """Smooth ``score [H, n]`` along the tokens; stride 1, odd kernel, same length.

    Average pooling pads with zeros and always divides by the kernel; maximum pooling pads with minus infinity.
    """
    half = kernel // 2
    if pooling == "max":
        return functional.max_pool1d(score[None], kernel, stride=1, padding=half)[0]
    return functional.avg_pool1d(score[None], kernel, stride=1, padding=half)[0]


def per_kv_head(score: Tensor, num_kv_heads: int, group: Group) -> Tensor:
    """Reduce ``score [Hq, n]`` to ``[Hkv, n]`` over the query heads that share a KV head."""
    grouped = score.unflatten(0, (num_kv_heads, -1))
    return grouped.amax(dim=1) if group == "max" else grouped.mean(dim=1)


def mean_variance(stats: WindowStats, gamma: float) -> Tensor:
    """Give ``mean + gamma * variance``, [Hq, n], both over the window's rows.

    Source: CAKE (arXiv 2503.12491), section 4.3, the eviction indicator.
    """
    assert stats.mean is not None and stats.variance is not None
    return stats.mean + gamma * stats.variance


def worst_case(pooled_maximum: Tensor, num_kv_heads: int) -> Tensor:
    """Give the largest pooled attention over rows and group, from below clamped at each head's mean: [Hkv, n].

    Args:
        pooled_maximum: [Hq, n] row-wise average-pooled and rescaled attention, maximum over the rows.
        num_kv_heads: Hkv.

    Source: DefensiveKV (arXiv 2510.13334); FFY0/DefensiveKV 9251b95.
    """
    score = per_kv_head(pooled_maximum, num_kv_heads, "max")
    return torch.maximum(score, score.mean(dim=-1, keepdim=True))


def value_output_norm(v: Tensor, w_o: Tensor, block: int = 1024) -> Tensor:
    """Give what a token can write to the residual stream: ``mean over the group of ||v W_O||_1``.

    Args:
        v: [Hkv, n, D] values.
        w_o: [Hq, D, hidden] output projection, head by head.
        block: Tokens per step; a step holds ``[Hq, block, hidden]``.

    Returns:
        [Hkv, n] float32, each column divided by its sum over the KV heads.

    Source: DefensiveKV (arXiv 2510.13334) and CriticalKV (arXiv 2502.03805); FFY0/DefensiveKV 9251b95.
    """
    num_kv_heads, num_tokens = v.shape[:2]
    weights = w_o.float().unflatten(0, (num_kv_heads, -1))
    group = weights.shape[1]
    norm = torch.zeros(num_kv_heads, num_tokens, device=v.device)
    for start in range(0, num_tokens, block):
        values = v[:, start : start + block].float()
        for index in range(group):
            norm[:, start : start + block] += torch.bmm(values, weights[:, index]).abs_().sum(dim=-1)
    norm /= group
    return norm / norm.sum(dim=0, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
