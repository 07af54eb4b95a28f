"""CAKE's layer budgets with DefensiveKV's score: an example of independent choices that has a name."""

from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch

from cake_sglang.fields import check_number
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, LayerScore
from cake_sglang.policies.cake import Cake
from cake_sglang.policies.defensive import Defensive


@dataclass(frozen=True, kw_only=True)
class CakeDefensive(Cake):
    """CAKE's preference and budgets, the worst-case score inside a layer.

    Attributes:
        forced_mass: See ``Defensive``.

    Source: arXiv 2503.12491 and 2510.13334.
    """

    name: ClassVar[str] = "cake_defensive"
    needs: ClassVar[frozenset[str]] = frozenset({"v", "w_o"})
    forced_mass: float = 0.9
    scorer: Defensive = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_number("forced_mass", self.forced_mass, 0, 1)
        shared = {f.name: getattr(self, f.name) for f in fields(Defensive)}
        object.__setattr__(self, "scorer", Defensive(**shared))

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the worst-case score with CAKE's preference.

        Forced tokens lie above all others and keep their order: a layer that is given less than the mean may not have
        room for all of them, and the best of them stay.
        """
        preference = super().observe(layer, candidates).weight
        found = self.scorer.unforced(layer, candidates)
        if found.forced is None:
            return LayerScore(found.score, preference)
        score = torch.where(found.forced, found.score + found.score.max(), found.score)
        return LayerScore(score, preference, found.forced)

    def head_budgets(self, score: LayerScore, rows: int, shape: BudgetShape) -> list[int]:
        """Let all heads of the layer compete."""
        return self.scorer.head_budgets(score, rows, shape)
