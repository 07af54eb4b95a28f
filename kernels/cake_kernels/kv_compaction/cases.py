"""Named inputs of ``kv_compaction`` for its tests and its benchmark, and the comparison with the reference."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cake_kernels.backend import interpreted
from cake_kernels.kv_compaction.op import kv_compaction
from cake_kernels.kv_compaction.reference import kv_compaction_reference


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of one call.

    Attributes:
        name: What is special about it; unique.
        cells: [L][Hkv] cells of each layer and head.
        layer: Layer that is compacted.
        num_tokens: N.
        head_dim: D.
        page_size: P.
        dtype: Of the slab.
        spare_pages: Owned pages past the fewest that hold all cells.
        spare_width: Width of ``kept`` past the largest count.
        counts_dtype: Of ``counts``.
    """

    name: str
    cells: tuple[tuple[int, ...], ...]
    layer: int
    num_tokens: int
    head_dim: int
    page_size: int
    dtype: torch.dtype = torch.float32
    spare_pages: int = 0
    spare_width: int = 0
    counts_dtype: torch.dtype = torch.int32

    def make(self, seed: int) -> dict[str, Any]:
        """Give the arguments of ``kv_compaction``, on the CPU; entries that nobody may read are out of range."""
        generator = torch.Generator().manual_seed(seed)
        cells = torch.tensor(self.cells)
        num_layers, num_kv_heads = cells.shape
        num_owned = max(1, -(-int(cells.sum()) // cells.numel())) + self.spare_pages
        num_pages = num_owned + -(-self.num_tokens // self.page_size) + 2
        pages = torch.randperm(num_pages, generator=generator)
        others = (pages[num_owned:, None] * self.page_size + torch.arange(self.page_size)).flatten()
        counts = cells[self.layer] * self.page_size
        kept = torch.full((num_kv_heads, int(counts.max()) + self.spare_width), torch.iinfo(torch.int64).max)
        for head, count in enumerate(counts.tolist()):
            kept[head, :count] = torch.randperm(self.num_tokens, generator=generator)[:count].sort().values
        shape = (num_layers, 2, num_pages * self.page_size, num_kv_heads, self.head_dim)
        return {
            "slab": torch.randn(shape, generator=generator).to(self.dtype),
            "src_slots": others[torch.randperm(others.shape[0], generator=generator)[: self.num_tokens]],
            "kept": kept,
            "counts": counts.to(self.counts_dtype),
            "offsets": torch.cat([torch.zeros(1), cells.flatten().cumsum(0)]).int(),
            "owned_pages": pages[:num_owned],
            "layer": self.layer,
            "page_size": self.page_size,
        }

    def bytes_moved(self) -> int:
        """Give the bytes that any implementation moves: K and V rows read and written, ``kept`` and slots read."""
        rows = sum(self.cells[self.layer]) * self.page_size
        return rows * (4 * self.head_dim * torch.empty(0, dtype=self.dtype).element_size() + 16)


CASES = (
    Case("one row", ((1,),), 0, 1, 8, 1),
    Case("P = 1, many layers", ((3, 0), (1, 5), (2, 2)), 1, 9, 64, 1),
    Case("P = 16, unequal heads", ((1, 3), (4, 0)), 1, 90, 64, 16),
    Case("first of three layers", ((2, 2), (2, 2), (2, 2)), 0, 50, 64, 8),
    Case("last of three layers", ((5, 0), (0, 1), (1, 2)), 2, 50, 64, 8),
    Case("all cells in one layer", ((0, 0), (7, 9)), 1, 80, 64, 8),
    Case("D = 96, three heads", ((1, 2, 3), (0, 1, 2)), 0, 40, 96, 8),
    Case("D = 128, P = 32, bfloat16", ((1, 2), (2, 1)), 1, 70, 128, 32, torch.bfloat16),
    Case("float16, P off the power of two", ((1, 2), (2, 1)), 0, 30, 64, 12, torch.float16),
    Case("float64", ((1, 2), (2, 1)), 0, 20, 64, 8, torch.float64),
    Case("largest D", ((1,), (2,)), 1, 16, 256, 8),
    Case("every token is kept", ((4,), (4,)), 0, 32, 64, 8),
    Case("nothing is kept", ((0, 0), (3, 3)), 0, 32, 64, 8),
    Case("owned pages to spare", ((1, 2), (2, 1)), 1, 20, 64, 8, spare_pages=3),
    Case("kept wider than the counts, int64", ((1, 2),), 0, 40, 64, 8, spare_width=50, counts_dtype=torch.int64),
)
BENCH_CASES = tuple(
    Case(f"{cells * 16} of 32768 tokens, {dtype}".replace("torch.", ""), ((cells,) * 8,) * 2, 0, 32768, 128, 16, dtype)
    for cells in (64, 512)
    for dtype in (torch.bfloat16, torch.float32)
)


def compare(case: Case) -> float:
    """Give 0 where the op leaves the whole slab as the reference does, bit for bit, else infinity."""
    device = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"
    kwargs: dict[str, Any] = {
        name: value.to(device) if isinstance(value, Tensor) else value for name, value in case.make(0).items()
    }
    expected = {**kwargs, "slab": kwargs["slab"].clone()}
    kv_compaction(**kwargs)
    kv_compaction_reference(**expected)
    return 0.0 if torch.equal(kwargs["slab"], expected["slab"]) else float("inf")
