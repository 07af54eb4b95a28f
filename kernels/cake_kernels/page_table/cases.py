"""Named inputs of ``page_table`` for its tests and its benchmark, and the comparison with the reference."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cake_kernels.backend import interpreted
from cake_kernels.page_table.op import page_table
from cake_kernels.page_table.reference import page_table_reference


class Request(NamedTuple):
    """Logical tokens of a request: plain ones before the segment, compressed ones, plain ones after it."""

    before: int = 0
    compressed: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of one call.

    Attributes:
        name: What is special about it; unique.
        requests: [B] tokens of each request.
        most_cells: Cells of one (layer, head) of a segment lie between 0 and this.
        page_size: P.
        num_layers: L.
        num_kv_heads: Hkv.
        layer: Layer of the table.
        slots_dtype: Of ``slots``.
        spare_pages: Width of the table past the longest list.
    """

    name: str
    requests: tuple[Request, ...]
    most_cells: int
    page_size: int
    num_layers: int = 2
    num_kv_heads: int = 2
    layer: int = 1
    slots_dtype: torch.dtype = torch.int32
    spare_pages: int = 2

    def make(self, seed: int) -> dict[str, Any]:
        """Give the arguments of ``page_table``, on the CPU; entries that nobody may read are wrong."""
        generator = torch.Generator().manual_seed(seed)
        batch, columns, size = len(self.requests), self.num_layers * self.num_kv_heads, self.page_size
        before, compressed, after = torch.tensor(self.requests).T
        seg_start, seg_end, seq_lens = before, before + compressed, before + compressed + after
        has = compressed[:, None] > 0
        cells = torch.randint(0, self.most_cells + 1, (batch, columns), generator=generator) * has
        num_owned = (-(-cells.sum(1) // columns)).clamp(min=1)
        width = max(1, int(seq_lens.max()))
        num_pages = 3 * (-(-width // size) + int(num_owned.max()))
        nothing = torch.iinfo(torch.int32).max

        position = torch.arange(width)
        of_page = torch.rand(batch, num_pages, generator=generator).argsort(1)[:, : -(-width // size)]
        slots = of_page.repeat_interleave(size, dim=1)[:, :width] * size + position % size
        unread = (position >= seg_start[:, None]) & (position < seg_end[:, None]) | (position >= seq_lens[:, None])
        owned = torch.rand(batch, num_pages, generator=generator).argsort(1)[:, : int(num_owned.max()) + 1]
        unowned = torch.arange(owned.shape[1]) >= num_owned[:, None]
        first = torch.cat([torch.zeros(batch, 1, dtype=torch.int64), cells.cumsum(1)], dim=1)
        own = cells.unflatten(1, (self.num_layers, -1))[:, self.layer]
        longest = int((-(-(before + after) // size) + own.amax(1)).max())
        return {
            "slots": slots.masked_fill(unread, nothing).to(self.slots_dtype),
            "seq_lens": seq_lens.int(),
            "seg_start": seg_start.int(),
            "seg_end": seg_end.int(),
            "owned_pages": owned.masked_fill(unowned | ~has, nothing),
            "num_owned": num_owned.where(has[:, 0], nothing).int(),
            "offsets": first.where(has, 3 + 7 * torch.arange(columns + 1)).int(),
            "layer": self.layer,
            "num_layers": self.num_layers,
            "num_kv_heads": self.num_kv_heads,
            "num_slots": num_pages * size,
            "page_size": size,
            "max_pages": max(1, longest) + self.spare_pages,
        }

    def bytes_moved(self) -> int:
        """Give the bytes that any implementation moves: one slot or owned page read and one row written per entry."""
        return len(self.requests) * self.num_kv_heads * self.make(0)["max_pages"] * 16


CASES = (
    Case("one plain token", (Request(0, 0, 1),), 0, 1, 1, 1, 0),
    Case("plain requests, P = 1", (Request(after=5), Request(after=0), Request(after=9)), 0, 1),
    Case("plain requests, P = 16", (Request(after=33), Request(after=16), Request(after=1)), 0, 16),
    Case("segment at the start", (Request(0, 64, 5),), 3, 8),
    Case("segment at the end", (Request(16, 64, 0),), 3, 8),
    Case("nothing but a segment", (Request(0, 64, 0),), 3, 8),
    Case("segment in the middle, P = 1", (Request(3, 20, 4), Request(1, 9, 2)), 4, 1),
    Case("segment in the middle, P = 32", (Request(32, 96, 40), Request(64, 128, 1)), 2, 32),
    Case("with and without a segment", (Request(8, 40, 3), Request(after=21), Request(16, 8, 8)), 4, 8),
    Case("segment without cells", (Request(8, 40, 3),), 0, 8),
    Case("first of three layers", (Request(8, 40, 3), Request(8, 48, 0)), 5, 8, 3, 4, 0),
    Case("last of three layers, int64", (Request(8, 40, 3), Request(8, 48, 0)), 5, 8, 3, 4, 2, torch.int64),
    Case("three heads, P off the power of two", (Request(12, 48, 30),), 5, 12, 2, 3),
    Case("longer than one block", (Request(140, 300, 200), Request(after=3)), 60, 1),
    Case("table as wide as the longest list", (Request(8, 40, 3), Request(after=21)), 4, 8, spare_pages=0),
    Case("table much wider than the lists", (Request(8, 40, 3),), 4, 8, spare_pages=300),
)
BENCH_CASES = tuple(
    Case(f"{batch} x 131072 tokens, P = 16", (Request(64, 130944, 64),) * batch, 128, 16, 32, 8) for batch in (1, 64)
)


def compare(case: Case) -> float:
    """Give 0 where the op gives the reference's table, else infinity."""
    device = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"
    kwargs: dict[str, Any] = {
        name: value.to(device) if isinstance(value, Tensor) else value for name, value in case.make(0).items()
    }
    result, expected = page_table(**kwargs), page_table_reference(**kwargs)
    same = all(
        got.dtype == wanted.dtype and torch.equal(got, wanted) for got, wanted in zip(result, expected, strict=True)
    )
    return 0.0 if same else float("inf")
