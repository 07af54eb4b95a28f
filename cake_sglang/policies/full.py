"""Full: evicts nothing. The measure of every other policy."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, KVPolicy, LayerScore


@dataclass(frozen=True, kw_only=True)
class Full(KVPolicy):
    """The whole cache, whatever the budget."""

    name: ClassVar[str] = "full"

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Score all tokens alike."""
        return LayerScore(torch.zeros(layer.num_kv_heads, candidates.size, device=layer.k.device))

    def budgets(self, scores: object, shape: BudgetShape) -> list[list[int]]:
        """Keep all candidates."""
        return [[shape.candidates] * shape.num_kv_heads for _ in range(shape.num_layers)]
