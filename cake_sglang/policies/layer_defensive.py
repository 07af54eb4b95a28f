"""Layer-DefensiveKV: DefensiveKV's score, and one competition over all layers and heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cake_sglang.policies.base import BudgetShape, LayerScore
from cake_sglang.policies.defensive import Defensive
from cake_sglang.policies.head_allocation import global_counts


@dataclass(frozen=True, kw_only=True)
class LayerDefensive(Defensive):
    """Layer-DefensiveKV.

    Source: arXiv 2510.13334, section 4.3; FFY0/DefensiveKV 9251b95.
    """

    name: ClassVar[str] = "layer_defensive"

    def budgets(self, scores: Sequence[LayerScore], shape: BudgetShape) -> list[list[int]]:
        """Keep the best rows of all layers and heads; as published, a forced token has its layer's largest score."""
        rows = shape.total * shape.num_kv_heads
        return global_counts([score.score for score in scores], rows)
