"""Ada-KV over SnapKV: equal layers, but the heads of a layer compete for its budget."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cake_sglang.fields import check_bool, check_number
from cake_sglang.indicator import Pooling
from cake_sglang.policies.base import BudgetShape, LayerScore
from cake_sglang.policies.head_allocation import published_counts, safeguarded_counts
from cake_sglang.policies.snapkv import SnapKV


@dataclass(frozen=True, kw_only=True)
class AdaKV(SnapKV):
    """Ada-SnapKV.

    Attributes:
        floor_alpha: Share of a layer's budget that its heads get equally, 0 to 1.
        normalize: Weight a head by the share of its mass that its best tokens hold, before heads compete.

    Source: arXiv 2407.11550, algorithm 1; FFY0/AdaKV efe4e2e (alpha 0.2, maximum pooling 7).
    """

    name: ClassVar[str] = "adakv"
    kernel: int = 7
    pooling: Pooling = "max"
    floor_alpha: float = 0.2
    normalize: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_number("floor_alpha", self.floor_alpha, 0, 1)
        check_bool("normalize", self.normalize)

    def head_budgets(self, score: LayerScore, rows: int, shape: BudgetShape) -> list[int]:
        """Give each head its share of the layer's best tokens."""
        layer_budget = rows // shape.num_kv_heads
        values = self._weighted(score.score, layer_budget) if self.normalize else score.score
        if self.allocator == "reference":
            return published_counts(values, rows, self.floor_alpha, layer_budget)
        return safeguarded_counts(values, rows, int(self.floor_alpha * layer_budget))

    def _weighted(self, score: Tensor, layer_budget: int) -> Tensor:
        if layer_budget == 0:
            return score
        best = torch.topk(score, layer_budget, dim=-1).values.sum(dim=-1, keepdim=True)
        return score * (best / score.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(score.dtype).tiny))
