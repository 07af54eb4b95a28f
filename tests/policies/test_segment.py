"""Cells: every kept page of every layer and head has a place of its own in the segment's pages, and none is wasted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_sglang.errors import BudgetError
from cake_sglang.segment import Cell, SegmentLayout

COUNTS = st.integers(1, 4).flatmap(
    lambda heads: st.lists(st.lists(st.integers(0, 70), min_size=heads, max_size=heads), min_size=1, max_size=6)
)


@given(COUNTS, st.sampled_from([1, 4, 16]))
def test_no_two_pages_share_a_cell_and_all_lie_inside(counts: list[list[int]], page_size: int) -> None:
    layout = SegmentLayout.of(counts, page_size)
    layers, heads = len(counts), len(counts[0])
    cells = [cell for layer in range(layers) for head in range(heads) for cell in layout.cells(layer, head)]
    assert len(cells) == len(set(cells)) == sum(math.ceil(count / page_size) for row in counts for count in row)
    assert all(0 <= cell.page < layout.num_owned for cell in cells)
    assert all(0 <= cell.buffer < layers and 0 <= cell.column < heads for cell in cells)


@given(COUNTS, st.sampled_from([1, 4, 16]))
def test_a_segment_owns_the_fewest_pages_that_hold_its_rows_and_at_least_one(
    counts: list[list[int]], page_size: int
) -> None:
    layout = SegmentLayout.of(counts, page_size)
    cells = sum(math.ceil(count / page_size) for row in counts for count in row)
    slots = len(counts) * len(counts[0])
    assert layout.num_owned >= 1 and layout.num_owned * slots >= cells
    assert layout.num_owned == 1 or (layout.num_owned - 1) * slots < cells


def test_any_mix_of_budgets_costs_the_pages_of_its_mean() -> None:
    """Two layers, two heads, pages of 4: 64, 0, 8 and 24 rows are 24 pages, in 4 columns of 6."""
    assert SegmentLayout.of([[64, 0], [8, 24]], 4).num_owned == 6
    assert SegmentLayout.of([[24, 24], [24, 24]], 4).num_owned == 6


def test_cells_are_handed_out_down_the_owned_pages_and_then_to_the_next_column() -> None:
    """Worked by hand: 2 layers x 2 heads, pages 3, 1, 0, 2: six cells on two pages fill columns 0 to 2."""
    layout = SegmentLayout(((3, 1), (0, 2)), 2)
    assert layout.offsets() == [0, 3, 4, 4, 6]
    assert layout.cells(0, 0) == [Cell(0, 0, 0), Cell(1, 0, 0), Cell(0, 0, 1)]
    assert layout.cells(0, 1) == [Cell(1, 0, 1)]
    assert layout.cells(1, 0) == []
    assert layout.cells(1, 1) == [Cell(0, 1, 0), Cell(1, 1, 0)]


@pytest.mark.parametrize(
    ("pages", "num_owned", "message"),
    [
        ((), 1, "pages is empty"),
        (((),), 1, "pages is empty"),
        (((1, 2), (1,)), 2, r"pages\[1\] has 1 KV heads, expected 2"),
        (((1, -1),), 1, r"pages\[0\]\[1\] is -1, expected an integer of at least 0"),
        (((1, 1.5),), 1, r"pages\[0\]\[1\] is 1.5"),
        (((3, 2), (0, 0)), 1, "num_owned is 1, expected an integer of at least 2"),
        (((0, 0),), 0, "num_owned is 0, expected an integer of at least 1"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(pages: tuple, num_owned: int, message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        SegmentLayout(pages, num_owned)


def test_layers_heads_and_page_sizes_out_of_range_are_refused() -> None:
    layout = SegmentLayout(((1, 1),), 1)
    with pytest.raises(BudgetError, match="layer is 1, expected an integer from 0 to 0"):
        layout.cells(1, 0)
    with pytest.raises(BudgetError, match="head is 2, expected an integer from 0 to 1"):
        layout.cells(0, 2)
    with pytest.raises(BudgetError, match="page_size is 0, expected an integer of at least 1"):
        SegmentLayout.of([[1]], 0)


@pytest.mark.parametrize("count", [-1, 2.5, True])
def test_rows_that_are_no_count_are_refused(count: object) -> None:
    with pytest.raises(BudgetError, match=rf"counts\[0\]\[1\] is {count}, expected an integer of at least 0"):
        SegmentLayout.of([[3, count]], 4)  # type: ignore[list-item]
