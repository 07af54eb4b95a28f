"""Splits a number of tokens over layers by preference, exactly: integers that sum to the total, whatever the input.

Shares are computed in rational numbers, because a rounding error of one unit in the last place would break the
exact sum, or the promise that a budget never grows as more layers arrive.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor

from cake_sglang.errors import BudgetError
from cake_sglang.fields import check_int, check_number


def waterfill(
    weights: Sequence[float], total: int, capacity: int | Sequence[int], minimum: int = 0, *, ceiling: bool = False
) -> list[int]:
    """Split ``total`` tokens: layer l gets ``clamp(level * weights[l], minimum, capacity)`` for one common level.

    Layers of weight zero get more than the minimum only when all others are full, and then equally; if all weights
    are zero, all layers are treated alike. Fractions go to the largest remainders; ties to the larger weight, then to
    the lower layer.

    Args:
        weights: [m] preferences, finite, >= 0.
        total: Tokens to split, >= 0; what exceeds the sum of the capacities is not handed out.
        capacity: Tokens that a layer has; one number for all, or one per layer, >= 0.
        minimum: Floor of a layer's budget, >= 0; a smaller capacity goes before it.
        ceiling: Round every share up instead (at most m tokens over the total): what a cascade may hold while
            further layers are to come.

    Returns:
        [m] tokens per layer. They sum to ``min(total, sum of capacities)`` unless ``ceiling``. A larger weight never
        gets fewer tokens where capacities are equal, and a further layer never raises another's share.

    Raises:
        BudgetError: A number is out of range, or the minimums alone exceed the total.

    Source: the project's allocator; docs/decisions/0004-budgets-and-cascade.md.
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
    shares = _shares(exact, total, capacities, floors)
    if ceiling:
        return [ceil(share) for share in shares]
    return _largest_remainders(shares, total, exact)


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


def _shares(weights: list[Fraction], total: int, capacities: list[int], floors: list[int]) -> list[Fraction]:
    """Give the real-valued shares; they sum to the total exactly."""
    weighted = [layer for layer, weight in enumerate(weights) if weight > 0]
    if not weighted:
        weights, weighted = [Fraction(1)] * len(weights), list(range(len(weights)))
    unweighted = [layer for layer in range(len(weights)) if layer not in set(weighted)]
    shares = [Fraction(value) for value in floors]
    room = total - sum(floors[layer] for layer in unweighted)
    first = min(room, sum(capacities[layer] for layer in weighted))
    for layer, share in zip(weighted, _fill(weights, weighted, first, capacities, floors), strict=True):
        shares[layer] = share
    if unweighted:
        ones = [Fraction(1)] * len(weights)
        rest = total - first
        for layer, share in zip(unweighted, _fill(ones, unweighted, rest, capacities, floors), strict=True):
            shares[layer] = share
    return shares


def _fill(
    weights: list[Fraction], layers: list[int], total: int, capacities: list[int], floors: list[int]
) -> list[Fraction]:
    """Raise a common level from zero until the layers hold ``total``: the sum is piecewise linear in the level."""
    starts = sorted(layers, key=lambda layer: floors[layer] / weights[layer])
    ends = sorted(layers, key=lambda layer: capacities[layer] / weights[layer])
    held, slope, level = Fraction(sum(floors[layer] for layer in layers)), Fraction(0), Fraction(0)
    begun = ended = 0
    while held < total:
        next_end = Fraction(capacities[ends[ended]]) / weights[ends[ended]]
        is_start = begun < len(starts) and Fraction(floors[starts[begun]]) / weights[starts[begun]] <= next_end
        event = Fraction(floors[starts[begun]]) / weights[starts[begun]] if is_start else next_end
        if held + slope * (event - level) >= total:
            level += (total - held) / slope
            break
        held += slope * (event - level)
        level = event
        if is_start:
            slope += weights[starts[begun]]
            begun += 1
        else:
            slope -= weights[ends[ended]]
            ended += 1
    return [min(max(level * weights[layer], Fraction(floors[layer])), Fraction(capacities[layer])) for layer in layers]


def _largest_remainders(shares: list[Fraction], total: int, weights: list[Fraction]) -> list[int]:
    budgets = [floor(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: (budgets[i] - shares[i], -weights[i], i))
    for layer in order[: total - sum(budgets)]:
        budgets[layer] += 1
    return budgets
