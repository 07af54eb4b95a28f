"""One policy's scores with another's budgets, and a refinement of scores: the independent choices of a policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from cake_sglang.errors import PolicyError
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, KVPolicy, LayerScore


class Refinement(Protocol):
    """A second look at a policy's scores, with the layer's keys, values and windows at hand."""

    def __call__(self, score: LayerScore, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the refined scores; shape and meaning stay."""
        ...


@dataclass(frozen=True, kw_only=True)
class CombinedPolicy(KVPolicy):
    """Scores of one policy, layer budgets of another.

    Attributes:
        scorer: Decides which tokens of a head stay, and how a layer's rows are split over its heads.
        budgeter: Decides how many rows each layer keeps. It must protect the same columns.
        refine: Applied to the scorer's result; None for none.
    """

    name: ClassVar[str] = "combined"
    scorer: KVPolicy
    budgeter: KVPolicy
    refine: Refinement | None = None

    def __post_init__(self) -> None:
        """Refuse fields that its two halves decide."""
        super().__post_init__()
        if self.allocator != "waterfill" or self.minimum:
            raise PolicyError(
                f"a combined policy has allocator {self.allocator!r} and minimum {self.minimum}, "
                "expected the defaults; set them in the budgeter"
            )

    def protected(self, layer: LayerObservation, budget: int) -> int:
        """Give what both protect."""
        ours, theirs = self.scorer.protected(layer, budget), self.budgeter.protected(layer, budget)
        if ours != theirs:
            raise PolicyError(
                f"{self.scorer.name} protects {ours} tokens and {self.budgeter.name} {theirs}; they must be equal"
            )
        return ours

    def smallest_budget(self) -> int:
        """Give the larger of both."""
        return max(self.scorer.smallest_budget(), self.budgeter.smallest_budget())

    def require(self, layer: LayerObservation) -> None:
        """Refuse an observation that lacks what one of both reads."""
        self.scorer.require(layer)
        self.budgeter.require(layer)

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Observe with both."""
        score = self.scorer.observe(layer, candidates)
        if self.refine is not None:
            score = self.refine(score, layer, candidates)
        other = score if self.budgeter == self.scorer else self.budgeter.observe(layer, candidates)
        return replace(score, weight=other.weight, other=other)

    def budgets(self, scores: Sequence[LayerScore], shape: BudgetShape) -> list[list[int]]:
        """Take each layer's rows from the budgeter, and split them over the heads as the scorer does."""
        rows = [sum(row) for row in self.budgeter.budgets([score.other or score for score in scores], shape)]
        return [self.scorer.head_budgets(score, count, shape) for score, count in zip(scores, rows, strict=True)]
