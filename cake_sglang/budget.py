"""Splits a number of tokens over layers by preference, exactly: integers that sum to the total, whatever the input.

Numbers are rational, because a rounding error of one unit in the last place would break the exact sum, or the promise
that no budget shrinks when the total grows and none grows when a further layer arrives.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

from cake_sglang.errors import BudgetError
from cake_sglang.fields import check_int, check_number


def waterfill(weights: Sequence[float], total: int, capacity: int | Sequence[int], minimum: int = 0) -> list[int]:
    """Split ``total``: layer l gets ``clamp(round(level * weights[l]), minimum, capacity)`` for one common level.

    Layers of weight zero get more than the minimum only when all others are full, and then equally; if all weights
    are zero, all layers are treated alike. Halves are rounded up for the larger weight first, then for the lower layer.

    Args:
        weights: [m] preferences, finite, >= 0.
        total: Tokens to split, >= 0; what exceeds the sum of the capacities is not handed out.
        capacity: Tokens that a layer has; one number for all, or one per layer, >= 0.
        minimum: Floor of a layer's budget, >= 0; a smaller capacity goes before it.

    Returns:
        [m] tokens per layer. They sum to ``min(total, sum of capacities)``. A larger weight never gets fewer tokens
        where capacities are equal, a larger total never gives a layer fewer, and a further layer never gives one more.

    Raises:
        BudgetError: A number is out of range, or the minimums alone exceed the total.

    Source: the project's allocator; rounding is the divisor method of Webster and Sainte-Lague, whose monotony is shown
    in Balinski and Young, "Fair Representation" (1982); docs/decisions/0005-monotone-rounding.md.
    """
    check_int("total", total, 0, error=BudgetError)
    check_int("minimum", minimum, 0, error=BudgetError)
    exact = [
        Fraction(check_number(f"weights[{layer}]", weight, 0, error=BudgetError))
        for layer, weight in enumerate(weights)
    ]
    if not exact:
        raise BudgetError("weights is empty, expected at least one layer")
    capacities = _per_layer(capacity, len(exact))
    floors = [min(minimum, cap) for cap in capacities]
    total = min(total, sum(capacities))
    if sum(floors) > total:
        raise BudgetError(f"a minimum of {minimum} in {len(exact)} layers needs {sum(floors)} tokens, total is {total}")
    weighted = [layer for layer, weight in enumerate(exact) if weight > 0] or list(range(len(exact)))
    unweighted = sorted(set(range(len(exact))) - set(weighted))
    room = total - sum(floors[layer] for layer in unweighted)
    first = min(room, sum(capacities[layer] for layer in weighted))
    budgets = [0] * len(exact)
    for layers, tokens in ((weighted, first), (unweighted, total - first)):
        group = [_Layer(exact[layer] or Fraction(1), floors[layer], capacities[layer]) for layer in layers]
        for layer, budget in zip(layers, _fill(group, tokens), strict=True):
            budgets[layer] = budget
    return budgets


def round_to_pages(budgets: Sequence[int], page_size: int, capacity: int | Sequence[int]) -> list[int]:
    """Round budgets to whole pages and keep their sum.

    Args:
        budgets: Tokens per entry (a layer, or a head of a layer), each from 0 to its capacity.
        page_size: Tokens per page, >= 1.
        capacity: Tokens that an entry has; one number for all, or one per entry.

    Returns:
        Budgets of the same sum, none above its capacity. Where capacities are whole pages, all are multiples of
        ``page_size`` except at most one, which takes what the sum leaves over. A capacity that is not a whole number
        of pages is filled to the last token only when the full pages do not suffice.

    Raises:
        BudgetError: A number is out of range.
    """
    check_int("page_size", page_size, 1, error=BudgetError)
    capacities = _per_layer(capacity, len(budgets))
    for index, (budget, cap) in enumerate(zip(budgets, capacities, strict=True)):
        check_int(f"budgets[{index}]", budget, 0, cap, error=BudgetError)
    total = sum(budgets)
    limits = [cap // page_size for cap in capacities]
    pages_wanted = min(total // page_size, sum(limits))
    needs = [min(Fraction(budget, page_size), Fraction(limit)) for budget, limit in zip(budgets, limits, strict=True)]
    pages = [floor(need) for need in needs]
    rest = [need - page for need, page in zip(needs, pages, strict=True)]
    # Largest remainder first; then entries of larger budgets, for the pages that capped entries could not take.
    order = sorted(range(len(pages)), key=lambda i: (-rest[i], -budgets[i], i))
    missing = pages_wanted - sum(pages)
    while missing > 0:
        for index in order:
            if missing > 0 and pages[index] < limits[index]:
                pages[index] += 1
                missing -= 1
    rounded = [page * page_size for page in pages]
    left = total - sum(rounded)
    for index in sorted(range(len(rounded)), key=lambda i: (rounded[i] - budgets[i], i)):
        extra = min(left, capacities[index] - rounded[index])
        rounded[index] += extra
        left -= extra
    return rounded


def _per_layer(capacity: int | Sequence[int], length: int) -> list[int]:
    values = list(capacity) if isinstance(capacity, Sequence) else [capacity] * length
    if len(values) != length:
        raise BudgetError(f"capacity has {len(values)} entries, expected {length}")
    return [check_int("capacity", value, 0, error=BudgetError) for value in values]


class _Layer(NamedTuple):
    weight: Fraction
    floor: int
    capacity: int

    def at(self, level: Fraction) -> Fraction:
        return min(max(level * self.weight, Fraction(self.floor)), Fraction(self.capacity))


def _fill(layers: Sequence[_Layer], total: int) -> list[int]:
    """Round the shares at the common level, then hand out or take back what is missing, by the level of each half."""
    level = _level(layers, total)
    budgets = [ceil(layer.at(level) - Fraction(1, 2)) for layer in layers]

    def key(index: int, step: int) -> tuple[Fraction, Fraction, int]:
        return (budgets[index] + Fraction(step, 2)) / layers[index].weight, -layers[index].weight, index

    while sum(budgets) < total:
        open_layers = [index for index, layer in enumerate(layers) if budgets[index] < layer.capacity]
        budgets[min(open_layers, key=lambda index: key(index, 1))] += 1
    while sum(budgets) > total:
        rich = [index for index, layer in enumerate(layers) if budgets[index] > layer.floor]
        budgets[max(rich, key=lambda index: key(index, -1))] -= 1
    return budgets


def _level(layers: Sequence[_Layer], total: int) -> Fraction:
    """Give the level at which the real-valued shares hold ``total``: their sum is piecewise linear in the level."""
    events = [(layer.floor / layer.weight, layer.weight) for layer in layers]
    events += [(layer.capacity / layer.weight, -layer.weight) for layer in layers]
    held, slope, level = Fraction(sum(layer.floor for layer in layers)), Fraction(0), Fraction(0)
    for event, change in sorted(events):
        reached = held + slope * (event - level)
        if reached >= total and slope:
            return level + (total - held) / slope
        held, slope, level = reached, slope + change, event
    return level
