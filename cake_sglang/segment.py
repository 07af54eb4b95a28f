"""Where the rows of a compressed segment lie: cells, one KV head's page of rows in one layer.

A segment owns whole pages of the engine's slots. One slot page holds ``L * Hkv`` cells. Cells are handed out in
order: layer 0 head 0 takes the first ones, then layer 0 head 1, and so on; cell ``c`` lies in owned page ``c % m`` and
column ``c // m``, where column ``x`` is layer buffer ``x // Hkv``, head ``x % Hkv``. So a segment with any mix of
budgets over layers and heads costs the pages of its mean budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cake_sglang.errors import BudgetError
from cake_sglang.fields import check_int


class Cell(NamedTuple):
    """One KV head's page of rows: which of the segment's pages, which layer buffer, which head column."""

    page: int
    buffer: int
    column: int


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Cells of a segment.

    Attributes:
        pages: [L][Hkv] cells per layer and KV head, each >= 0.
        num_owned: Pages that the segment owns.
    """

    pages: tuple[tuple[int, ...], ...]
    num_owned: int

    def __post_init__(self) -> None:
        """Refuse a layout whose cells do not fit the owned pages."""
        if not self.pages or not self.pages[0]:
            raise BudgetError("pages is empty, expected at least one layer with one KV head")
        for layer, row in enumerate(self.pages):
            if len(row) != self.num_kv_heads:
                raise BudgetError(f"pages[{layer}] has {len(row)} KV heads, expected {self.num_kv_heads}")
            for head, count in enumerate(row):
                check_int(f"pages[{layer}][{head}]", count, 0, error=BudgetError)
        least = -(-self.num_cells // (self.num_layers * self.num_kv_heads))
        check_int("num_owned", self.num_owned, max(least, 1), error=BudgetError)

    @classmethod
    def of(cls, counts: Sequence[Sequence[int]], page_size: int) -> "SegmentLayout":
        """Give the smallest layout for rows per layer and KV head; a started page counts as a whole one."""
        check_int("page_size", page_size, 1, error=BudgetError)
        for layer, row in enumerate(counts):
            for head, count in enumerate(row):
                check_int(f"counts[{layer}][{head}]", count, 0, error=BudgetError)
        pages = tuple(tuple(-(-count // page_size) for count in row) for row in counts)
        cells = sum(map(sum, pages))
        slots = max(1, sum(map(len, pages)))
        return cls(pages, max(1, -(-cells // slots)))

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.pages)

    @property
    def num_kv_heads(self) -> int:
        """Hkv."""
        return len(self.pages[0])

    @property
    def num_cells(self) -> int:
        """Cells in use."""
        return sum(map(sum, self.pages))

    def offsets(self) -> list[int]:
        """[L * Hkv + 1] first cell of each layer and head; the last entry is the number of cells."""
        offsets = [0]
        for row in self.pages:
            for count in row:
                offsets.append(offsets[-1] + count)
        return offsets

    def cells(self, layer: int, head: int) -> list[Cell]:
        """Give the cells of one layer and KV head, in order of its pages."""
        check_int("layer", layer, 0, self.num_layers - 1, error=BudgetError)
        check_int("head", head, 0, self.num_kv_heads - 1, error=BudgetError)
        offsets = self.offsets()
        index = layer * self.num_kv_heads + head
        return [self._cell(number) for number in range(offsets[index], offsets[index + 1])]

    def _cell(self, number: int) -> Cell:
        column, page = divmod(number, self.num_owned)
        buffer, head = divmod(column, self.num_kv_heads)
        return Cell(page, buffer, head)
