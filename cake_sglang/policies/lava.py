"""LAVa: budgets of layers and heads from a bound on what eviction loses in the residual stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cake_kernels.window_stats.result import WindowStats
from cake_sglang.fields import check_number
from cake_sglang.indicator import Group, Pooling, per_kv_head, pool
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, LayerScore
from cake_sglang.policies.head_allocation import published_counts, safeguarded_counts
from cake_sglang.policies.window_policy import WindowPolicy
from cake_sglang.preference import normalised_entropy


@dataclass(frozen=True, kw_only=True)
class LAVa(WindowPolicy):
    """LAVa: pooled attention times the largest L1 norm of a head's values, comparable across the heads of a layer.

    Attributes:
        floor_alpha: Share of the budget that heads get equally, 0 to 1; 0 is the paper, 0.2 the published scripts.

    Source: arXiv 2509.09754, theorem on the residual stream and algorithm 1; MGDDestiny/Lava 71d3cc8
    ``LavaKVCluster``.
    """

    name: ClassVar[str] = "lava"
    needs: ClassVar[frozenset[str]] = frozenset({"v"})
    kernel: int = 7
    pooling: Pooling = "max"
    group: Group = "max"
    floor_alpha: float = 0.2

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_number("floor_alpha", self.floor_alpha, 0, 1)

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the bounded loss of every token, and the layer's normalised entropy."""
        assert layer.v is not None
        values = layer.v[:, candidates.start : candidates.stop]
        norm = values.abs().sum(dim=-1, dtype=values.float().dtype).amax(dim=-1, keepdim=True)

        def loss(stats: WindowStats) -> Tensor:
            assert stats.mean is not None
            pooled = pool(stats.mean, self.kernel, self.pooling)
            return per_kv_head(pooled, layer.num_kv_heads, self.group) * norm.to(pooled.dtype)

        score = self.per_window(layer, candidates, frozenset({"mean"}), loss)
        return LayerScore(score, normalised_entropy(score))

    def layer_budgets(self, weights: Sequence[float], shape: BudgetShape) -> list[int]:
        """Split the total by entropy; the published code truncates, so its sum falls short by up to L - 1."""
        if self.allocator == "waterfill":
            return super().layer_budgets(weights, shape)
        total = sum(weights) or 1.0
        return [min(int(weight / total * shape.total), shape.candidates) for weight in weights]

    def head_budgets(self, score: LayerScore, rows: int, shape: BudgetShape) -> list[int]:
        """Give each head its share of the layer's best tokens.

        The published floor is a share of the whole budget, window included, instead of the layer's.
        """
        if self.allocator == "reference":
            return published_counts(score.score, rows, self.floor_alpha, shape.budget)
        return safeguarded_counts(score.score, rows, int(self.floor_alpha * (rows // shape.num_kv_heads)))
