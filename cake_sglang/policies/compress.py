"""The whole method on one prompt: observe each layer, split the budget, keep the best."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from cake_sglang.errors import PolicyError
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, KVPolicy, LayerScore, check_score
from cake_sglang.policies.full import Full
from cake_sglang.selection import Selection, select


def compress(policy: KVPolicy, layers: Sequence[LayerObservation], budget: int) -> Selection:
    """Choose the columns that a compressed segment keeps.

    Args:
        policy: The policy.
        layers: [L] observations, in layer order, all over the same columns.
        budget: C, mean tokens kept per layer and KV head over the compressed range, protected ones included.

    Returns:
        The kept columns. A range that is not longer than the budget or the window is kept whole.

    Raises:
        BudgetError: The budget is not an integer that the policy can keep.
        PolicyError: The observations do not fit each other or the policy.
    """
    compressor = Compressor(policy, budget)
    for layer in layers:
        compressor.add(layer)
    return compressor.finish()


class Compressor:
    """Takes the layers one by one, as a forward pass makes them, and chooses when the last one has come.

    Of a layer only its scores stay, [Hkv, n] float32; its keys, values and queries are let go.
    """

    def __init__(self, policy: KVPolicy, budget: int) -> None:
        """Start without layers; arguments and ``BudgetError`` as for ``compress``."""
        self._policy = policy
        is_number = isinstance(budget, int) and not isinstance(budget, bool) and budget > 0
        self._budget = budget if is_number else policy.check_budget(budget)
        self._first: _Common | None = None
        self._scores: list[LayerScore] = []
        self._num_layers = 0

    @property
    def weights(self) -> list[float]:
        """[L] preference of the layers so far, 1 where the method knows none; empty if nothing is evicted."""
        return [score.weight for score in self._scores]

    def add(self, layer: LayerObservation) -> None:
        """Observe one more layer.

        Raises:
            PolicyError: The observation does not fit the earlier ones or the policy.
        """
        common = self._first = self._first or _Common(self._policy, layer, self._budget)
        common.require(layer)
        self._num_layers += 1
        if common.split is not None:
            candidates, shape = common.split
            self._policy.require(layer)
            score = self._policy.observe(layer, candidates)
            self._scores.append(check_score(score, layer.layer, (shape.num_kv_heads, shape.candidates)))

    def finish(self) -> Selection:
        """Give the kept columns.

        Raises:
            PolicyError: No layer was added.
        """
        common = self._first
        if common is None:
            raise PolicyError("layers is empty, expected at least one observation")
        if common.split is None:
            return common.everything(self._num_layers)
        candidates, shape = common.split
        counts = self._policy.budgets(self._scores, replace(shape, num_layers=self._num_layers))
        return select([score.score for score in self._scores], counts, candidates[:2], shape.protected)


def stays_whole(policy: KVPolicy, layer: LayerObservation, budget: int) -> bool:
    """Whether nothing is evicted, because the range fits the budget, or the least that the policy can keep.

    Raises:
        BudgetError: The policy cannot keep so few tokens of a range that is longer.
    """
    length = layer.num_compressed
    if isinstance(policy, Full) or length <= max(budget, policy.smallest_budget()):
        return True
    policy.check_budget(budget)
    return not policy.strict_budget and length <= budget + policy.protected(layer, budget)


def split_range(
    policy: KVPolicy, layer: LayerObservation, num_layers: int, budget: int
) -> tuple[Candidates, BudgetShape]:
    """Give the columns that may be evicted, and the numbers that the split of the budget depends on."""
    start, stop = layer.range
    protected = policy.protected(layer, budget)
    shape = BudgetShape(num_layers, layer.num_kv_heads, stop - protected - start, protected, budget)
    return Candidates(start, stop - protected, shape.per_layer), shape


class _Common:
    """What all layers of one prompt have in common, taken from the first."""

    def __init__(self, policy: KVPolicy, layer: LayerObservation, budget: int) -> None:
        self.layer = layer.layer
        self.last = layer.layer - 1
        self.shape = _shape(layer)
        self.num_kv_heads = layer.num_kv_heads
        self.range = layer.range
        self.device = layer.k.device
        self.split = None if stays_whole(policy, layer, budget) else split_range(policy, layer, 1, budget)

    def require(self, layer: LayerObservation) -> None:
        ours, theirs = (layer.num_kv_heads, layer.range), (self.num_kv_heads, self.range)
        if ours != theirs:
            raise PolicyError(
                f"layer {layer.layer} has {ours[0]} KV heads and columns {ours[1]}, "
                f"layer {self.layer} has {theirs[0]} and {theirs[1]}; they must be equal"
            )
        if _shape(layer) != self.shape:
            raise PolicyError(
                f"layer {layer.layer} is {_shape(layer)}, layer {self.layer} is {self.shape}; they must be equal"
            )
        if layer.layer <= self.last:
            raise PolicyError(f"layer {layer.layer} follows layer {self.last}, expected layers in ascending order")
        self.last = layer.layer

    def everything(self, num_layers: int) -> Selection:
        start, stop = self.range
        counts = [[stop - start] * self.num_kv_heads] * num_layers
        empty = [torch.zeros(self.num_kv_heads, stop - start, device=self.device)] * num_layers
        whole = select(empty, counts, (start, stop), 0)
        return Selection(whole.kept, whole.layer_budgets, 0, whole=True)


def _shape(layer: LayerObservation) -> str:
    return f"{layer.k.dtype} on {layer.k.device} with {layer.num_query_heads} query heads and D = {layer.k.shape[2]}"
