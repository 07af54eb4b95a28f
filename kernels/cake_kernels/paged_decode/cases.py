"""Named inputs of ``paged_decode`` for its tests and its benchmark, and the comparison with the reference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cake_kernels.backend import interpreted
from cake_kernels.paged_decode.op import paged_decode
from cake_kernels.paged_decode.reference import paged_decode_reference
from cake_kernels.slab import page_rows

# Allowed error relative to the same sum over the values' sizes. A weight is rounded to the dtype before it multiplies
# its value, and so is the output: twice half a unit in the last place. In float32 the logits' errors weigh more.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}
FLOOR = 1e-12


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of one call.

    Attributes:
        name: What is special about it; unique.
        kv_lens: [B][Hkv] physical rows.
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
        """Give the arguments of ``paged_decode``, on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        num_heads = len(self.kv_lens[0]) * self.group
        q = torch.randn(len(self.kv_lens), num_heads, self.head_dim, generator=generator) * self.spread
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
            "page_size": self.page_size,
            "softcap": self.softcap,
        }

    def bytes_moved(self) -> int:
        """Give the bytes that any implementation moves: each K and V row, query and output once."""
        width = torch.empty(0, dtype=self.dtype).element_size()
        num_heads = len(self.kv_lens) * len(self.kv_lens[0]) * self.group
        return 2 * (sum(map(sum, self.kv_lens)) + num_heads) * self.head_dim * width


def scattered_rows(
    kv_lens: tuple[tuple[int, ...], ...],
    *,
    head_dim: int,
    page_size: int,
    num_layers: int,
    spare_pages: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Give slab, base_rows and kv_lens whose pages lie in any layer, page and head; what nobody may read is NaN."""
    lens = torch.tensor(kv_lens, dtype=torch.int32)
    num_kv_heads = lens.shape[1]
    pages = -(-lens // page_size)
    num_cells = int(pages.sum()) + 3
    num_slots = -(-num_cells // (num_layers * num_kv_heads)) * page_size
    cells = torch.randperm(num_layers * num_kv_heads * num_slots // page_size, generator=generator)
    cells, heads = cells // num_kv_heads, cells % num_kv_heads
    layers, slots = cells // (num_slots // page_size), cells % (num_slots // page_size) * page_size
    first_rows = (layers * 2 * num_slots + slots) * num_kv_heads + heads
    base_rows = torch.full((*lens.shape, max(1, int(pages.max())) + spare_pages), -1)
    in_use = torch.arange(base_rows.shape[2]) < pages[..., None]
    base_rows[in_use] = first_rows[: int(pages.sum())]
    slab = torch.full((num_layers, 2, num_slots, num_kv_heads, head_dim), torch.nan, dtype=dtype)
    rows = page_rows(base_rows, page_size, num_kv_heads)
    rows = rows[torch.arange(rows.shape[2]) < lens[..., None]]
    flat = slab.view(-1, head_dim)
    for half in (rows, rows + num_slots * num_kv_heads):
        flat[half] = torch.randn(half.shape[0], head_dim, generator=generator).to(dtype)
    return {"slab": slab, "base_rows": base_rows, "kv_lens": lens}


# Small: the interpreter walks the tiles one after the other.
CASES = (
    Case("one row", ((1,),), 1, 64, 1),
    Case("group of 1, P = 1", ((37, 5), (1, 64)), 1, 64, 1),
    Case("group of 3, D = 96, P = 8", ((40, 33), (8, 7)), 3, 96, 8),
    Case("group of 7, D = 128, P = 16", ((50,), (16,)), 7, 128, 16),
    Case("group of 8, P = 32, three layers", ((33, 96, 64),), 8, 64, 32, num_layers=3),
    Case("group of 2, P off the power of two", ((50, 23), (24, 25)), 2, 64, 12),
    Case("group of 20, smallest D", ((21, 40),), 20, 8, 4),
    Case("largest D", ((35,),), 2, 256, 16),
    Case("heads without rows", ((0, 18), (0, 0), (3, 0)), 2, 64, 8),
    Case("no rows at all", ((0,),), 1, 64, 8),
    Case("three splits, some empty", ((400, 130), (31, 0), (385, 384)), 4, 64, 16),
    Case("wide table", ((30, 2),), 4, 64, 16, spare_pages=14),
    Case("bfloat16, group of 4", ((70, 41), (300, 17)), 4, 128, 16, torch.bfloat16),
    Case("float16, peaked", ((70, 41), (300, 17)), 4, 64, 16, torch.float16, spread=8.0),
    Case("float32, peaked", ((70, 41), (300, 17)), 4, 64, 16, spread=8.0),
    Case("soft cap", ((70, 41),), 4, 64, 16, softcap=5.0, spread=8.0),
)
BENCH_CASES = tuple(
    Case(f"{batch} x {length} rows, bfloat16", ((length,) * 8,) * batch, 4, 128, 16, torch.bfloat16)
    for batch, length in ((1, 131072), (16, 2048), (64, 1024))
)


def compare(case: Case) -> float:
    """Give the op's worst error over its tolerance, against the reference in float64; good up to 1."""
    return compare_attention(case, paged_decode, paged_decode_reference)


def compare_attention(case: Any, op: Callable[..., Tensor], reference: Callable[..., Tensor]) -> float:
    """Give the worst error over the tolerance of an attention over pages, infinity for the wrong shape or dtype."""
    device = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"
    kwargs: dict[str, Any] = {
        name: value.to(device) if isinstance(value, Tensor) else value for name, value in case.make(0).items()
    }
    result = op(**kwargs)
    if result.shape != kwargs["q"].shape or result.dtype != case.dtype:
        return float("inf")
    kwargs |= {"q": kwargs["q"].double(), "slab": kwargs["slab"].double(), "scale": case.head_dim**-0.5}
    expected = reference(**kwargs)
    # Values in place of their sizes give the sum to which the rounding errors are relative.
    kwargs["slab"][:, 1] = kwargs["slab"][:, 1].abs()
    allowed = TOLERANCES[case.dtype] * reference(**kwargs) + FLOOR
    if interpreted() and case.dtype == torch.bfloat16:
        # The interpreter cuts bfloat16 off where a GPU rounds, which doubles each rounding error.
        allowed *= 2
    error = (result.double() - expected).abs() / allowed
    # max() of NaN would keep the other one.
    return float(error.nan_to_num(nan=float("inf")).max())
