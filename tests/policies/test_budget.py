"""``waterfill`` splits a total exactly, by one common level, and never takes from a layer what another needs less."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cake_sglang.budget import waterfill
from cake_sglang.errors import BudgetError
from cake_testing.policy_oracle_parts import water

WEIGHT = st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(0, 20).map(float), st.floats(0, 1e300))
WEIGHTS = st.lists(WEIGHT, min_size=1, max_size=12)
POSITIVE = st.lists(st.one_of(st.floats(1e-6, 1e6), st.integers(1, 9).map(float)), min_size=1, max_size=12)
TOTAL, CAPACITY = st.integers(0, 3000), st.integers(0, 400)

# Worked by hand: weights, total, capacity, minimum, budgets.
EXAMPLES = {
    "in proportion": ([1, 2, 5], 80, 100, 0, [10, 20, 50]),
    "a full layer's surplus goes to the others in proportion": ([1, 3, 16], 100, 60, 0, [10, 30, 60]),
    # Level 1 would give 80; layer 2 stops at 40, so 60 are left for weights 1 and 3, of which the second stops too.
    "two full layers": ([1, 3, 16], 100, 40, 0, [20, 40, 40]),
    "more than all have": ([1, 3, 16], 1000, 40, 0, [40, 40, 40]),
    "nothing to split": ([1, 3], 0, 40, 0, [0, 0]),
    # 10/7, 20/7, 40/7, each to the nearest.
    "to the nearest": ([1, 2, 4], 10, 100, 0, [1, 3, 6]),
    # Level 3/2 gives a half too many of three; two of them are rounded up.
    "equal halves and weights": ([1, 1, 1], 5, 100, 0, [2, 2, 1]),
    # 1/2, 3/2 and 3: the one token left goes to the larger weight of the two.
    "equal halves": ([1, 3, 6], 5, 100, 0, [0, 2, 3]),
    "no preferences": ([0, 0, 0], 7, 100, 0, [3, 2, 2]),
    "weight zero while others have room": ([0, 1, 0], 50, 100, 0, [0, 50, 0]),
    "weight zero when all others are full": ([0, 1, 0], 50, 20, 0, [15, 20, 15]),
    # Level 10 gives 10, 20, 70; the floor of 15 takes 5 from weights 2 and 7, as 2 : 7, so 18.9 and 66.1.
    "a floor is paid by the others in proportion": ([1, 2, 7], 100, 100, 15, [15, 19, 66]),
    "floor and capacity": ([1, 2, 97], 100, 50, 20, [20, 30, 50]),
    "floors take everything": ([1, 2, 97], 60, 50, 20, [20, 20, 20]),
    "a floor above the capacity is the capacity": ([1, 1], 12, 6, 20, [6, 6]),
    "a layer of weight zero has its floor": ([0, 1, 1], 50, 100, 4, [4, 23, 23]),
    "a capacity per layer": ([1, 1, 1], 30, [4, 100, 9], 0, [4, 17, 9]),
    "a layer that has nothing": ([5, 1], 30, [0, 100], 0, [0, 30]),
    "tiny weights are weights": ([1e-300, 3e-300], 8, 100, 0, [2, 6]),
}


@pytest.mark.parametrize(("weights", "total", "capacity", "minimum", "budgets"), EXAMPLES.values(), ids=EXAMPLES)
def test_a_total_is_split_as_worked_by_hand(weights, total, capacity, minimum, budgets):
    assert waterfill(weights, total, capacity, minimum) == budgets


@given(WEIGHTS, TOTAL, CAPACITY, st.integers(0, 60))
def test_the_sum_is_exact_and_every_layer_within_floor_and_capacity(weights, total, capacity, minimum):
    assume(min(minimum, capacity) * len(weights) <= total)
    budgets = waterfill(weights, total, capacity, minimum)
    assert sum(budgets) == min(total, capacity * len(weights))
    assert all(min(minimum, capacity) <= budget <= capacity for budget in budgets)


@given(st.lists(st.tuples(WEIGHT, CAPACITY), min_size=1, max_size=12), TOTAL, st.integers(0, 60))
def test_the_sum_is_exact_with_a_capacity_per_layer(layers, total, minimum):
    weights, capacities = [weight for weight, _ in layers], [capacity for _, capacity in layers]
    floors = [min(minimum, capacity) for capacity in capacities]
    assume(sum(floors) <= total)
    budgets = waterfill(weights, total, capacities, minimum)
    assert sum(budgets) == min(total, sum(capacities))
    assert all(low <= budget <= high for low, budget, high in zip(floors, budgets, capacities, strict=True))


@given(POSITIVE, TOTAL, st.integers(1, 400), st.integers(0, 60))
def test_it_hands_out_token_after_token_to_the_lowest_next_half_step(weights, total, capacity, minimum):
    assume(min(minimum, capacity) * len(weights) <= total)
    assert waterfill(weights, total, capacity, minimum) == water(weights, total, capacity, min(minimum, capacity))


@given(POSITIVE, TOTAL, st.integers(1, 400), st.integers(0, 60))
def test_no_token_lies_better_in_another_layer(weights, total, capacity, minimum):
    """A layer above its floor gave up no token that a layer below its capacity would value more, to one rounding."""
    assume(min(minimum, capacity) * len(weights) <= total)
    budgets = waterfill(weights, total, capacity, minimum)
    exact = [Fraction(weight) for weight in weights]
    givers = [(b - 1) / w for b, w in zip(budgets, exact, strict=True) if b > min(minimum, capacity)]
    takers = [(b + 1) / w for b, w in zip(budgets, exact, strict=True) if b < capacity]
    assert not givers or not takers or max(givers) < min(takers)


@given(WEIGHTS, TOTAL, CAPACITY, st.integers(0, 60))
def test_more_weight_never_gets_fewer_tokens(weights, total, capacity, minimum):
    assume(min(minimum, capacity) * len(weights) <= total)
    ranked = sorted(zip(weights, waterfill(weights, total, capacity, minimum), strict=True))
    for (less, few), (more, many) in zip(ranked, ranked[1:], strict=False):
        assert few <= many or less == more


@given(WEIGHTS, TOTAL, CAPACITY, st.integers(1, 500))
def test_a_larger_total_never_gives_a_layer_fewer_tokens(weights, total, capacity, more):
    before, after = waterfill(weights, total, capacity), waterfill(weights, total + more, capacity)
    assert all(new >= old for old, new in zip(before, after, strict=True))


@given(WEIGHTS, WEIGHT, TOTAL, CAPACITY)
def test_a_further_layer_never_gives_another_one_more_tokens(weights, further, total, capacity):
    before, after = waterfill(weights, total, capacity), waterfill([*weights, further], total, capacity)
    assert all(new <= old for old, new in zip(before, after, strict=False))


def test_the_paradoxes_of_largest_remainders_do_not_happen():
    """By remainders, the third layer has 2 of 10 but 1 of 11, and the fifth nothing until a sixth layer joins."""
    # Halves meet at level 3/4: 4.5, 4.5 and 1.5.
    assert waterfill([6, 6, 2], 10, 100) == [5, 4, 1]
    assert waterfill([6, 6, 2], 11, 100) == [5, 5, 1]
    # Level 0.45 gives 10.35, 11.7, 2.7, 2.25 and 0.45, which is 27 already; 0.44 leaves room for none of the sixth.
    assert waterfill([23, 26, 6, 5, 1], 27, 1000) == [10, 12, 3, 2, 0]
    assert waterfill([23, 26, 6, 5, 1, 1], 27, 1000) == [10, 12, 3, 2, 0, 0]


@given(POSITIVE, TOTAL, CAPACITY, st.sampled_from([2.0**-30, 0.25, 4.0, 2.0**40]))
def test_only_the_ratios_of_the_weights_count(weights, total, capacity, factor):
    assert waterfill([weight * factor for weight in weights], total, capacity) == waterfill(weights, total, capacity)


REFUSED = {
    "a negative total": (([1.0], -1, 5), {}, r"total is -1, expected an integer of at least 0"),
    "a total with a fraction": (([1.0], 2.5, 5), {}, r"total is 2.5, expected an integer"),
    "a total that is a truth value": (([1.0], True, 5), {}, r"total is True, expected an integer"),
    "a negative capacity": (([1.0], 3, -5), {}, r"capacity is -5, expected an integer of at least 0"),
    "a capacity with a fraction": (([1.0], 3, 2.5), {}, r"capacity is 2.5, expected an integer"),
    "one capacity of two": (([1.0, 2.0], 3, [5]), {}, r"capacity has 1 entries, expected 2"),
    "a negative capacity of a layer": (([1.0, 2.0], 3, [5, -1]), {}, r"capacity is -1, expected"),
    "a negative minimum": (([1.0], 3, 5, -2), {}, r"minimum is -2, expected an integer of at least 0"),
    "a minimum with a fraction": (([1.0], 3, 5, 0.5), {}, r"minimum is 0.5, expected an integer"),
    "minimums above the total": (([1.0, 1.0], 7, 9, 4), {}, r"a minimum of 4 in 2 layers needs 8 tokens, total is 7"),
    "no layers": (([], 3, 5), {}, r"weights is empty, expected at least one layer"),
    "a negative weight": (([1.0, -0.5], 3, 5), {}, r"weights\[1\] is -0.5, expected a finite number of at least 0"),
    "a weight that is no number": (([1.0, float("nan")], 3, 5), {}, r"weights\[1\] is nan, expected a finite number"),
    "an infinite weight": (([float("inf")], 3, 5), {}, r"weights\[0\] is inf, expected a finite number"),
    "a weight in words": ((["much"], 3, 5), {}, r"weights\[0\] is 'much', expected a finite number"),
}


@pytest.mark.parametrize(("args", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_split_is_refused_with_value_and_range(args, options, message):
    with pytest.raises(BudgetError, match=message):
        waterfill(*args, **options)
