"""What a policy is: how much each token matters, and how many tokens each layer and head keeps.

A policy is a frozen dataclass of hyper-parameters and answers two questions:

* ``observe``: one layer's scores ``[Hkv, n]`` and its weight, from keys, values and the queries of its windows;
* ``budgets``: tokens per layer and KV head, from all layers' scores and weights.

Window source, score and allocator are independent: the source is a field, ``CombinedPolicy`` takes the score of one
policy and the budgets of another.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cake_sglang.budget import waterfill
from cake_sglang.errors import BudgetError, PolicyError
from cake_sglang.fields import check_bool, check_choice, check_int
from cake_sglang.observation import LayerObservation

ALLOCATORS = ("waterfill", "reference")


class Candidates(NamedTuple):
    """Columns of one layer that may be evicted: a half-open range, and how many of them stay on average."""

    start: int
    stop: int
    mean_kept: int

    @property
    def size(self) -> int:
        """n, number of candidates."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class LayerScore:
    """What a policy found out about one layer.

    Attributes:
        score: [Hkv, n] float32 or float64, finite; larger stays. n counts the candidates.
        weight: Preference of the layer, finite, >= 0; 1 where the method knows none.
        forced: [Hkv, n] bool, candidates that win every competition inside their layer: no other score there is larger.
            None for no such candidates.
        other: What the policy found that splits the budget, where that is not the one that scores.
    """

    score: Tensor
    weight: float = 1.0
    forced: Tensor | None = None
    other: "LayerScore | None" = None


@dataclass(frozen=True, slots=True)
class BudgetShape:
    """The numbers that a split of the budget depends on.

    Attributes:
        num_layers: L.
        num_kv_heads: Hkv.
        candidates: n, tokens per head that may be evicted.
        protected: Tokens per head that stay whatever their score.
        budget: C, mean tokens per layer and KV head, protected ones included.
    """

    num_layers: int
    num_kv_heads: int
    candidates: int
    protected: int
    budget: int

    @property
    def per_layer(self) -> int:
        """Mean candidates kept per layer and KV head, at most all of them."""
        return min(self.budget - self.protected, self.candidates)

    @property
    def total(self) -> int:
        """Candidates kept per KV head, summed over the layers."""
        return self.per_layer * self.num_layers


@dataclass(frozen=True, kw_only=True)
class KVPolicy(ABC):
    """Base of all policies.

    Attributes:
        allocator: ``waterfill`` keeps exactly the stated budget; ``reference`` computes budgets as the published code
            does, with its roundings.
        minimum: Least candidates that a layer keeps, with ``waterfill``.
        strict_budget: Evict as soon as the range is longer than the budget. False leaves ranges of up to budget plus
            protected tokens whole, as CAKE's published code does.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    allocator: str = "waterfill"
    minimum: int = 0
    strict_budget: bool = True

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_choice("allocator", self.allocator, ALLOCATORS)
        check_int("minimum", self.minimum, 0)
        check_bool("strict_budget", self.strict_budget)
        if self.minimum and self.allocator == "reference":
            raise PolicyError(f"minimum is {self.minimum}, the reference allocator knows none; expected 0")

    @abstractmethod
    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Score the candidates of one layer."""

    def protected(self, layer: LayerObservation, budget: int) -> int:
        """Give the number of columns at the end of the compressed range that always stay."""
        return 0

    def smallest_budget(self) -> int:
        """Give the smallest budget that this policy can keep."""
        return 1

    def layer_budgets(self, weights: Sequence[float], shape: BudgetShape) -> list[int]:
        """Split ``shape.total`` candidates over the layers by weight: [L]."""
        return waterfill(weights, shape.total, shape.candidates, min(self.minimum, shape.per_layer))

    def head_budgets(self, score: LayerScore, rows: int, shape: BudgetShape) -> list[int]:
        """Split the ``rows`` that a layer keeps over its heads: [Hkv]. By default equally, the rest to the first."""
        each, more = divmod(rows, shape.num_kv_heads)
        return [each + (head < more) for head in range(shape.num_kv_heads)]

    def budgets(self, scores: Sequence[LayerScore], shape: BudgetShape) -> list[list[int]]:
        """Give the candidates that each layer and KV head keeps: [L][Hkv]."""
        layers = self.layer_budgets([score.weight for score in scores], shape)
        heads = shape.num_kv_heads
        return [self.head_budgets(score, budget * heads, shape) for score, budget in zip(scores, layers, strict=True)]

    def check_budget(self, budget: object) -> int:
        """Give the budget back if this policy can keep it."""
        return check_int(f"budget of {self.name}", budget, self.smallest_budget(), error=BudgetError)

    def require(self, layer: LayerObservation) -> None:
        """Refuse an observation that lacks what this policy reads."""
        for field in sorted(self.needs & {"v", "w_o"}):
            if getattr(layer, field) is None:
                raise PolicyError(f"{self.name} needs {field}, layer {layer.layer} has none")


def check_score(score: LayerScore, layer: int, shape: tuple[int, int]) -> LayerScore:
    """Give the score back if it is finite and of the expected shape, and its weight is a preference.

    Raises:
        PolicyError: It is not.
    """
    if tuple(score.score.shape) != shape:
        raise PolicyError(f"score of layer {layer} has shape {list(score.score.shape)}, expected {list(shape)}")
    if not bool(torch.isfinite(score.score).all()):
        bad = int((~torch.isfinite(score.score)).sum())
        raise PolicyError(f"score of layer {layer} holds NaN or infinity in {bad} places; every score must be finite")
    if not 0 <= score.weight < float("inf"):
        raise PolicyError(f"weight of layer {layer} is {score.weight}, expected a finite number of at least 0")
    return score
