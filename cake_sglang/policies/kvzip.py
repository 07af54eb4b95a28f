"""KVzip: a repeat pass reads the document again; what it needs to do so stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from cake_sglang.errors import PolicyError
from cake_sglang.fields import check_bool, check_int
from cake_sglang.indicator import per_kv_head, value_output_norm
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, KVPolicy, LayerScore
from cake_sglang.policies.head_allocation import global_counts


@dataclass(frozen=True, kw_only=True)
class KVzip(KVPolicy):
    """KVzip: maximum attention during a repeat pass, one competition over all layers and heads.

    Every window holds the queries of one repeated chunk; its ``attended`` columns are the tokens before the document,
    the chunk, and the chunk's repetition; its ``scored`` columns are the chunk.

    Attributes:
        recent: Last tokens of the document that always stay, >= 0; the paper protects none.
        value_weight: Multiply by the norm of what a token can write to the residual stream.

    Source: arXiv 2505.23416, section 3; snu-mllab/KVzip 5d84729 (chunks of 2,000 tokens).
    """

    name: ClassVar[str] = "kvzip"
    needs: ClassVar[frozenset[str]] = frozenset({"repeat"})
    recent: int = 0
    value_weight: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_int("recent", self.recent, 0)
        check_bool("value_weight", self.value_weight)

    def protected(self, layer: LayerObservation, budget: int) -> int:
        """Give the last tokens that always stay."""
        return min(self.recent, layer.num_compressed)

    def smallest_budget(self) -> int:
        """Give the protected tokens, at least one."""
        return max(self.recent, 1)

    def require(self, layer: LayerObservation) -> None:
        """Refuse windows that do not score every column once more."""
        super().require(layer)
        if self.value_weight and (layer.v is None or layer.w_o is None):
            raise PolicyError(f"kvzip with value_weight needs v and w_o, layer {layer.layer} lacks one")
        reached = layer.range[0]
        for start, stop in sorted(window.scored or layer.range for window in layer.windows):
            if start <= reached:
                reached = max(reached, stop)
        end = layer.range[1] - self.recent
        if reached < end:
            raise PolicyError(
                f"kvzip needs windows that score columns {layer.range[0]} to {end}, none scores {reached}"
            )

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give each column's largest attention over the repeat's rows and the group."""
        score = torch.zeros(layer.num_kv_heads, candidates.size, device=layer.k.device)
        for window in layer.windows:
            low, high = window.scored or layer.range
            low, high = max(low, candidates.start), min(high, candidates.stop)
            if low >= high:
                continue
            stats = layer.statistics(window.scoring(low, high), (low, high), frozenset({"maximum"}))
            assert stats.maximum is not None
            part = per_kv_head(stats.maximum, layer.num_kv_heads, "max")
            columns = slice(low - candidates.start, high - candidates.start)
            score[:, columns] = torch.maximum(score[:, columns], part.to(score.dtype))
        if self.value_weight:
            assert layer.v is not None and layer.w_o is not None
            score = score * value_output_norm(layer.v[:, candidates.start : candidates.stop], layer.w_o)
        return LayerScore(score)

    def budgets(self, scores: Sequence[LayerScore], shape: BudgetShape) -> list[list[int]]:
        """Keep the best rows of all layers and heads."""
        rows = shape.total * shape.num_kv_heads
        return global_counts([score.score for score in scores], rows)
