"""H2O: heavy hitters by the attention that all prompt rows paid, and the most recent tokens."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from cake_sglang.errors import PolicyError
from cake_sglang.fields import check_choice, check_int
from cake_sglang.indicator import GROUPS, Group, per_kv_head
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import Candidates, KVPolicy, LayerScore

# Rows per pass; bounds the memory of the statistics, not their value.
ROWS = 256


@dataclass(frozen=True, kw_only=True)
class H2O(KVPolicy):
    """H2O, cut once at the end of the prompt.

    Reads every prompt row: its windows together hold the queries of all N tokens, so the cost grows with N squared.

    Attributes:
        recent: Most recent tokens that stay, >= 1; None for half the budget, as the paper's equal ratios.
        group: How query heads of one KV head are reduced, ``mean`` or ``max``.

    Source: arXiv 2306.14048, section 4; FMInference/H2O ac75c2a.
    """

    name: ClassVar[str] = "h2o"
    needs: ClassVar[frozenset[str]] = frozenset({"all_rows"})
    recent: int | None = None
    group: Group = "mean"

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        if self.recent is not None:
            check_int("recent", self.recent, 1)
        check_choice("group", self.group, GROUPS)

    def protected(self, layer: LayerObservation, budget: int) -> int:
        """Give the number of recent tokens."""
        recent = budget // 2 if self.recent is None else self.recent
        return min(recent, layer.num_compressed)

    def smallest_budget(self) -> int:
        """Give the recent tokens, or 2: one recent, one heavy."""
        return 2 if self.recent is None else self.recent

    def require(self, layer: LayerObservation) -> None:
        """Refuse windows that do not hold every row of the compressed range."""
        super().require(layer)
        rows = sum(window.q.shape[1] for window in layer.windows)
        if rows < layer.num_compressed:
            raise PolicyError(f"h2o needs the queries of all {layer.num_compressed} tokens, layer has {rows}")

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the attention that a token received, summed over all rows."""
        total = torch.zeros(layer.num_query_heads, candidates.size, device=layer.k.device)
        for window in layer.windows:
            for start in range(0, window.q.shape[1], ROWS):
                part = window.rows(start, start + ROWS)
                stats = layer.statistics(part, candidates[:2], frozenset({"mean"}))
                assert stats.mean is not None
                total = total + stats.mean * part.q.shape[1]
        return LayerScore(per_kv_head(total, layer.num_kv_heads, self.group))
