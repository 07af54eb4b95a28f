"""Named inputs of ``paged_extend`` for its tests and its benchmark, and the comparison with the reference."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from cake_kernels.paged_decode.cases import compare_attention, scattered_rows
from cake_kernels.paged_extend.op import paged_extend
from cake_kernels.paged_extend.reference import paged_extend_reference


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of one call.

    Attributes:
        name: What is special about it; unique.
        q_lens: [B] new rows of each request.
        kv_lens: [B][Hkv] physical rows, the new ones included.
        group: Query heads per KV head.
        head_dim: D.
        page_size: P.
        dtype: Of queries and slab.
        num_layers: Layer buffers over which the pages are scattered.
        softcap: Soft cap of the logits; None for none.
        spread: Standard deviation of the queries; 1 gives flat rows, 8 gives peaked ones.
        spare_pages: Width of the table past the longest list.
    """

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[tuple[int, ...], ...]
    group: int
    head_dim: int
    page_size: int
    dtype: torch.dtype = torch.float32
    num_layers: int = 2
    softcap: float | None = None
    spread: float = 1.0
    spare_pages: int = 0

    def make(self, seed: int) -> dict[str, Any]:
        """Give the arguments of ``paged_extend``, on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        num_heads = len(self.kv_lens[0]) * self.group
        q = torch.randn(sum(self.q_lens), num_heads, self.head_dim, generator=generator) * self.spread
        return {
            "q": q.to(self.dtype),
            **scattered_rows(
                self.kv_lens,
                head_dim=self.head_dim,
                page_size=self.page_size,
                num_layers=self.num_layers,
                spare_pages=self.spare_pages,
                dtype=self.dtype,
                generator=generator,
            ),
            "qo_indptr": torch.tensor([0, *accumulate(self.q_lens)], dtype=torch.int32),
            "page_size": self.page_size,
            "softcap": self.softcap,
        }

    def bytes_moved(self) -> int:
        """Give the bytes that any implementation moves: each K and V row, query and output once."""
        width = torch.empty(0, dtype=self.dtype).element_size()
        queries = sum(self.q_lens) * len(self.kv_lens[0]) * self.group
        return 2 * (sum(map(sum, self.kv_lens)) + queries) * self.head_dim * width


# Small: the interpreter walks the tiles one after the other.
CASES = (
    Case("one row", (1,), ((1,),), 1, 64, 1),
    Case("everything is new", (19,), ((19, 19),), 2, 64, 8),
    Case("one new row, as in decode", (1, 1), ((40, 33), (8, 1)), 4, 64, 8),
    Case("group of 1, P = 1", (5, 3), ((37, 5), (3, 64)), 1, 64, 1),
    Case("group of 3, D = 96, P = 8", (30, 7), ((40, 33), (8, 7)), 3, 96, 8),
    Case("group of 7, D = 128, P = 16", (20, 11), ((50,), (16,)), 7, 128, 16),
    Case("group of 8, P = 32, three layers", (33,), ((33, 96, 64),), 8, 64, 32, num_layers=3),
    Case("group of 5, P off the power of two", (13, 1, 24), ((50, 23), (24, 25), (24, 60)), 5, 64, 12),
    Case("group of 64, smallest D", (3,), ((21,),), 64, 8, 4),
    Case("largest D", (9,), ((35,),), 2, 256, 16),
    Case("requests without new rows", (0, 4, 0, 2, 0), ((0,), (9,), (5,), (2,), (0,)), 2, 64, 8),
    Case("a tile ends where a request ends", (32, 16, 1), ((32,), (48,), (1,)), 4, 64, 16),
    Case("more keys than one tile", (40, 70), ((140, 47), (70, 200)), 2, 64, 16),
    Case("wide table", (4,), ((30, 6),), 4, 64, 16, spare_pages=14),
    Case("bfloat16, group of 4", (20, 17), ((70, 41), (150, 17)), 4, 128, 16, torch.bfloat16),
    Case("float16, peaked", (20, 17), ((70, 41), (150, 17)), 4, 64, 16, torch.float16, spread=8.0),
    Case("soft cap", (40,), ((70, 41),), 4, 64, 16, softcap=5.0, spread=8.0),
)
BENCH_CASES = tuple(
    Case(
        f"{batch} x {new} new rows of {rows}, bfloat16",
        (new,) * batch,
        ((rows,) * 8,) * batch,
        4,
        128,
        16,
        torch.bfloat16,
    )
    for batch, new, rows in ((1, 64, 131072), (1, 1024, 8192), (16, 64, 2048))
)


def compare(case: Case) -> float:
    """Give the op's worst error over its tolerance, against the reference in float64; good up to 1."""
    return compare_attention(case, paged_extend, paged_extend_reference)
