"""The whole method on one prompt: observe each layer, split the budget, keep the best."""

from collections.abc import Sequence

from cake_sglang.errors import PolicyError
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, KVPolicy, check_score
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
    policy.check_budget(budget)
    if not layers:
        raise PolicyError("layers is empty, expected at least one observation")
    first = layers[0]
    for layer in layers[1:]:
        ours, theirs = (layer.num_kv_heads, layer.range), (first.num_kv_heads, first.range)
        if ours != theirs:
            raise PolicyError(
                f"layer {layer.layer} has {ours[0]} KV heads and columns {ours[1]}, "
                f"layer {first.layer} has {theirs[0]} and {theirs[1]}; they must be equal"
            )
    if stays_whole(policy, first, budget):
        return _everything(layers)
    candidates, shape = split_range(policy, first, len(layers), budget)
    scores = []
    for layer in layers:
        policy.require(layer)
        scores.append(
            check_score(policy.observe(layer, candidates), layer.layer, (shape.num_kv_heads, shape.candidates))
        )
    counts = policy.budgets(scores, shape)
    return select([score.score for score in scores], counts, candidates[:2], shape.protected)


def stays_whole(policy: KVPolicy, layer: LayerObservation, budget: int) -> bool:
    """Whether nothing is evicted, because the range fits the budget or holds nothing but protected columns."""
    length = layer.num_compressed
    if isinstance(policy, Full) or length <= budget:
        return True
    protected = policy.protected(layer, budget)
    return length <= protected or (not policy.strict_budget and length <= budget + protected)


def split_range(
    policy: KVPolicy, layer: LayerObservation, num_layers: int, budget: int
) -> tuple[Candidates, BudgetShape]:
    """Give the columns that may be evicted, and the numbers that the split of the budget depends on."""
    start, stop = layer.range
    protected = policy.protected(layer, budget)
    shape = BudgetShape(num_layers, layer.num_kv_heads, stop - protected - start, protected, budget)
    return Candidates(start, stop - protected, shape.per_layer), shape


def _everything(layers: Sequence[LayerObservation]) -> Selection:
    start, stop = layers[0].range
    counts = [[stop - start] * layer.num_kv_heads for layer in layers]
    empty = [layer.k.new_zeros(layer.num_kv_heads, stop - start) for layer in layers]
    whole = select(empty, counts, (start, stop), 0)
    return Selection(whole.kept, whole.layer_budgets, 0, whole=True)
