"""CAKE's published budget allocation, quirks included: float32 shares, truncation, equal redistribution.

Source: antgroup/cakekv c4675ce ``cake/cake_cache.py`` (``adjust_budgets``); what differs from ``budget.waterfill`` is
listed in docs/decisions/0004-budgets-and-cascade.md.
"""

from collections.abc import Sequence

import torch

from cake_sglang.errors import BudgetError
from cake_sglang.fields import check_int, check_number

LARGEST = torch.finfo(torch.float32).max
# Beyond this no float32 share becomes an integer.
MOST_TOKENS = 2**62


def proportional_shares(preferences: Sequence[float], total: int) -> list[float]:
    """Give ``preferences[l] / sum(preferences) * total`` in float32, the sum taken in layer order.

    Args:
        preferences: [m] finite in float32, >= 0, of the layers seen so far.
        total: Tokens of all layers, seen or not, >= 0.

    Returns:
        [m] float32 values as Python floats. All preferences zero, where the published code divides zero by zero, is
        taken as no preference: equal shares.

    Raises:
        BudgetError: A number is out of range.
    """
    check_int("total", total, 0, MOST_TOKENS, error=BudgetError)
    if not preferences:
        raise BudgetError("preferences is empty, expected at least one layer")
    values = [
        check_number(f"preferences[{layer}]", value, 0, LARGEST, error=BudgetError)
        for layer, value in enumerate(preferences)
    ]
    weights = torch.tensor(values, dtype=torch.float32)
    if not bool(weights.any()):
        weights = torch.ones_like(weights)
    running = torch.zeros((), dtype=torch.float32)
    for weight in weights:
        running = running + weight
    return (weights / running * total).tolist()


def allocate(preferences: Sequence[float], total: int, capacity: int) -> list[int]:
    """Give the budgets of one allocation call over the layers seen so far.

    Shares are truncated and capped; what the cap cuts off, and then what truncation lost, is spread equally over the
    layers below the cap, one token more to the lowest of them. Nothing is capped again while spreading, so a layer
    may end above the cap; the surplus is lost when the budget is used.

    Args:
        preferences: [m] finite, >= 0.
        total: Tokens of all layers, seen or not.
        capacity: Tokens that one layer has, window excluded, >= 0.

    Returns:
        [m] budgets before clamping to the capacity.

    Raises:
        BudgetError: A number is out of range.
    """
    check_int("capacity", capacity, 0, error=BudgetError)
    budgets = [int(share) for share in proportional_shares(preferences, total)]
    excess = sum(max(budget - capacity, 0) for budget in budgets)
    budgets = [min(budget, capacity) for budget in budgets]
    _spread(budgets, excess, [layer for layer, budget in enumerate(budgets) if budget < capacity], 1)
    difference = total - sum(budgets)
    if difference > 0:
        _spread(budgets, difference, [layer for layer, budget in enumerate(budgets) if budget < capacity], 1)
    elif difference < 0:
        _spread(budgets, -difference, [layer for layer, budget in enumerate(budgets) if budget > 1], -1)
    return budgets


def stages(preferences: Sequence[float], total: int, capacity: int) -> list[list[int]]:
    """Give the budgets after each layer of the cascade: entry m holds those of layers 0..m, clamped to the capacity."""
    return [
        [min(budget, capacity) for budget in allocate(preferences[: last + 1], total, capacity)]
        for last in range(len(preferences))
    ]


def _spread(budgets: list[int], amount: int, layers: list[int], sign: int) -> None:
    if amount <= 0 or not layers:
        return
    each, more = divmod(amount, len(layers))
    for order, layer in enumerate(layers):
        budgets[layer] += sign * (each + (order < more))
