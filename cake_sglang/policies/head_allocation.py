"""Budgets that differ by head: a layer's tokens, or all layers' tokens, compete with each other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cake_sglang.selection import keep_mask


def flattened_counts(score: Tensor, total: int, least: Sequence[int] | None = None) -> list[int]:
    """Count how many of the ``total`` best entries of ``score`` fall to each head.

    Args:
        score: [H, n]; all heads compete.
        total: Entries to keep, 0 to ``H * n``.
        least: [H] best entries of each head that are kept first; they count towards the total.

    Returns:
        [H] counts that sum to ``total``, each at least ``least``.
    """
    if least is None or not any(least):
        return keep_mask(score, total).sum(dim=-1).tolist()
    held = torch.stack([keep_mask(head, count) for head, count in zip(score, least, strict=True)])
    rest = score.masked_fill(held, -torch.inf)
    return (held | keep_mask(rest, total - int(held.sum()))).sum(dim=-1).tolist()


def global_counts(scores: Sequence[Tensor], total: int) -> list[list[int]]:
    """Count how many of the ``total`` best entries of all layers fall to each layer and head.

    Args:
        scores: [L] of [Hkv, n]; all layers and heads compete.
        total: Entries to keep over all layers and heads.

    Returns:
        [L][Hkv] counts that sum to ``total``.
    """
    return keep_mask(torch.stack(list(scores)), total).sum(dim=-1).tolist()


def safeguarded_counts(score: Tensor, rows: int, floor_tokens: int) -> list[int]:
    """Split ``rows`` entries over heads: ``floor_tokens`` of each head first, the rest to the best of all heads.

    Source: NVIDIA/kvpress 8bb29b9, the safeguard of its AdaKV; sums exactly, unlike the published rounding.
    """
    return flattened_counts(score, rows, [floor_tokens] * score.shape[0])


def published_counts(score: Tensor, rows: int, floor_alpha: float, floor_base: int) -> list[int]:
    """Split a layer's budget as the published AdaKV and LAVa code does: float32, rounded half to even.

    Args:
        score: [H, n].
        rows: Entries that compete, over all heads; ``H * n`` leaves the layer whole.
        floor_alpha: Share that is split equally, 0 to 1.
        floor_base: Number of which that share is taken.

    Returns:
        [H] counts, at most n; their sum is near ``rows``, not equal to it.
    """
    num_heads, num_tokens = score.shape
    if rows >= score.numel():
        return [num_tokens] * num_heads
    counts = torch.tensor(flattened_counts(score, rows), dtype=torch.float32)
    capacity = torch.round(counts * (1 - floor_alpha) + int(floor_alpha * floor_base)).int()
    return capacity.clamp(max=num_tokens).tolist()
