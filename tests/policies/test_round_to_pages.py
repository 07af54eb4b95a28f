"""``round_to_pages`` makes whole pages and keeps the total to the token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_sglang.budget import round_to_pages
from cake_sglang.errors import BudgetError

PAGE = st.integers(1, 33)
# Worked by hand: budgets, page size, capacity, result.
EXAMPLES = {
    "already whole": ([16, 32, 0], 16, 64, [16, 32, 0]),
    # 48 tokens are 3 pages; wanted 1.25, 0.625, 1.125: one floor page each of two, the third to 0.625.
    "largest remainder": ([20, 10, 18], 16, 64, [16, 16, 16]),
    # 32 tokens are two pages; wanted half a page and one and a half, and the page left goes to the larger budget.
    "of equal remainders the larger budget's goes first": ([8, 24], 16, 64, [0, 32]),
    # 50 tokens are 3 pages and 2 tokens; these go to the entry that lost most.
    "what no page holds goes to the entry that lost most": ([23, 10, 17], 16, 64, [18, 16, 16]),
    "less than a page": ([3, 4], 16, 64, [0, 7]),
    "pages of one token": ([5, 0, 7], 1, 64, [5, 0, 7]),
    "nothing": ([0, 0], 16, 64, [0, 0]),
    # 37 tokens are 2 pages and 5 tokens; the first entry has room for one page, the second for one and 4 tokens.
    "a capacity that is no whole page": ([18, 19], 16, [18, 20], [17, 20]),
    # 36 tokens are 4 pages of 8 and 4 tokens. The first two can hold one page each, so the rest goes to the third.
    "capped entries leave their page to another": ([12, 12, 12], 8, [12, 12, 30], [12, 8, 16]),
}


@pytest.mark.parametrize(("budgets", "page", "capacity", "rounded"), EXAMPLES.values(), ids=EXAMPLES)
def test_budgets_are_rounded_as_worked_by_hand(budgets, page, capacity, rounded):
    assert round_to_pages(budgets, page, capacity) == rounded


@st.composite
def entries(draw) -> tuple[list[int], list[int]]:
    capacities = draw(st.lists(st.integers(0, 200), min_size=1, max_size=12))
    return [draw(st.integers(0, capacity)) for capacity in capacities], capacities


@given(entries(), PAGE)
def test_the_total_is_kept_and_no_entry_is_above_its_capacity(both, page):
    budgets, capacities = both
    rounded = round_to_pages(budgets, page, capacities)
    assert sum(rounded) == sum(budgets)
    assert all(0 <= new <= capacity for new, capacity in zip(rounded, capacities, strict=True))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.data(), PAGE)
def test_where_capacities_are_pages_at_most_one_entry_is_not(pages, data, page):
    capacities = [count * page for count in pages]
    budgets = [data.draw(st.integers(0, capacity)) for capacity in capacities]
    broken = [new % page for new in round_to_pages(budgets, page, capacities) if new % page]
    assert broken in ([], [sum(budgets) % page])


@given(st.lists(st.integers(0, 200), min_size=1, max_size=12), PAGE)
def test_with_room_no_entry_moves_by_a_page_or_more_beside_the_remainder(budgets, page):
    left = sum(budgets) % page
    rounded = round_to_pages(budgets, page, 1000)
    assert all(-page < new - old < page + left for new, old in zip(rounded, budgets, strict=True))


@given(st.lists(st.integers(0, 200), min_size=2, max_size=12), st.integers(2, 33))
def test_the_entries_that_round_up_are_those_with_the_largest_remainders(budgets, page):
    budgets[-1] += -sum(budgets) % page
    rounded = round_to_pages(budgets, page, 1000)
    up = [old % page for new, old in zip(rounded, budgets, strict=True) if new > old]
    down = [old % page for new, old in zip(rounded, budgets, strict=True) if new < old]
    assert not up or not down or min(up) >= max(down)


REFUSED = {
    "no page size": (([5], 0, 9), r"page_size is 0, expected an integer of at least 1"),
    "a page size with a fraction": (([5], 1.5, 9), r"page_size is 1.5, expected an integer"),
    "a negative budget": (([5, -1], 4, 9), r"budgets\[1\] is -1, expected an integer from 0 to 9"),
    "a budget with a fraction": (([5, 1.5], 4, 9), r"budgets\[1\] is 1.5, expected an integer from 0 to 9"),
    "a budget above the capacity": (([5, 10], 4, 9), r"budgets\[1\] is 10, expected an integer from 0 to 9"),
    "one capacity of two": (([5, 1], 4, [9]), r"capacity has 1 entries, expected 2"),
    "a capacity with a fraction": (([5], 4, 9.5), r"capacity is 9.5, expected an integer"),
}


@pytest.mark.parametrize(("args", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_rounded_is_refused_with_value_and_range(args, message):
    with pytest.raises(BudgetError, match=message):
        round_to_pages(*args)
