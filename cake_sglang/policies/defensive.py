"""DefensiveKV: tokens by the worst case over rows and group, weighted by what their values can write."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cake_kernels.window_stats.result import WindowStats
from cake_sglang.fields import check_number
from cake_sglang.indicator import per_kv_head, value_output_norm, worst_case
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, LayerScore
from cake_sglang.policies.head_allocation import flattened_counts
from cake_sglang.policies.window_policy import WindowPolicy


@dataclass(frozen=True, kw_only=True)
class Defensive(WindowPolicy):
    """DefensiveKV: the heads of a layer compete for its budget, layers get equal ones.

    The pooling is part of the score, row by row, averaging; ``pooling`` and ``group`` do not apply.

    Attributes:
        forced_mass: Keep, before heads compete, a head's best tokens as long as they hold less than this share of its
            mean attention, 0 to 1; 0 for none.

    Source: arXiv 2510.13334, sections 4.1 and 4.2; FFY0/DefensiveKV 9251b95 (window 32, pooling 5, mass 0.9).
    """

    name: ClassVar[str] = "defensive"
    needs: ClassVar[frozenset[str]] = frozenset({"v", "w_o"})
    forced_mass: float = 0.9

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_number("forced_mass", self.forced_mass, 0, 1)

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the worst-case score; forced tokens get the largest score of the layer."""
        found = self.unforced(layer, candidates)
        if found.forced is None:
            return found
        return LayerScore(found.score.masked_fill(found.forced, float(found.score.max())), forced=found.forced)

    def unforced(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the worst-case score as it is, and which tokens are forced."""
        assert layer.v is not None and layer.w_o is not None
        forced_stats = {"mean"} if self.forced_mass else set()
        found: list[WindowStats] = [
            layer.statistics(window, candidates[:2], frozenset({"pooled_maximum", *forced_stats}), self.kernel)
            for window in layer.windows
        ]
        peak = torch.stack([_given(stats.pooled_maximum) for stats in found]).amax(dim=0)
        score = worst_case(peak, layer.num_kv_heads)
        score = score * value_output_norm(layer.v[:, candidates.start : candidates.stop], layer.w_o)
        if not self.forced_mass:
            return LayerScore(score)
        mean = torch.stack([_given(stats.mean) for stats in found]).mean(dim=0)
        forced = self._forced(per_kv_head(mean, layer.num_kv_heads, "mean"), candidates.mean_kept)
        return LayerScore(score, forced=forced)

    def head_budgets(self, score: LayerScore, rows: int, shape: BudgetShape) -> list[int]:
        """Let all heads of the layer compete."""
        return flattened_counts(score.score, rows)

    def _forced(self, mean: Tensor, limit: int) -> Tensor:
        """Mark each head's forced tokens, up to the one that would reach the threshold.

        As published, the threshold drops by the attention to the last W candidates, mean over heads and rows.
        """
        share = mean / mean.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(mean.dtype).tiny)
        order = torch.sort(share, dim=-1, descending=True, stable=True)
        threshold = self.forced_mass - mean[:, -self.window :].sum(dim=-1).mean()
        count = (order.values.cumsum(dim=-1) < threshold).sum(dim=-1, keepdim=True).clamp(max=max(limit, 0))
        rank = torch.arange(mean.shape[1], device=mean.device)
        return torch.zeros_like(mean, dtype=torch.bool).scatter(1, order.indices, rank < count)


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value
