"""Named inputs of ``window_stats`` for its tests and its benchmark, and the comparison with the reference."""

from dataclasses import dataclass
from typing import Any

import torch

from cake_kernels.backend import interpreted
from cake_kernels.window_stats.op import DEFAULT_STATS, window_stats
from cake_kernels.window_stats.reference import window_stats_reference
from cake_kernels.window_stats.result import ALL_STATS

# Allowed error relative to the reference in float64. A float32 logit of size 10 is off by up to 1e-6, its weight by as
# much; the variance subtracts the mean, which leaves a tenth of the digits where rows differ by 1%.
TOLERANCES = {"mean": 2e-5, "variance": 2e-4, "maximum": 2e-5, "pooled_maximum": 2e-5, "entropy": 2e-5}
# Smallest weights and variances that the comparison tells from zero.
FLOORS = {"mean": 1e-12, "variance": 1e-15, "maximum": 1e-12, "pooled_maximum": 1e-12, "entropy": 1e-6}


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes of one call.

    Attributes:
        name: What is special about it; unique.
        num_heads: Hq.
        num_kv_heads: Hkv.
        num_rows: W; the window is the last rows of the keys' range.
        num_columns: N.
        head_dim: D.
        dtype: Of queries and keys.
        scored: Columns that are scored; None for all.
        softcap: Soft cap of the logits; None for none.
        stats: Wanted statistics.
        pool_kernel: Width of the pool.
        spread: Standard deviation of the queries; 1 gives flat rows, 8 gives peaked ones.
        lag: Positions between the last key and the last query; negative hides keys from all rows.
        shuffled: Whether the keys are in no order of position.
        strided: Whether the keys are a [N, Hkv, D] array seen as [Hkv, N, D], as a cache stores them.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    num_rows: int
    num_columns: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    scored: tuple[int, int] | None = None
    softcap: float | None = None
    stats: frozenset[str] = ALL_STATS
    pool_kernel: int = 5
    spread: float = 1.0
    lag: int = 0
    shuffled: bool = False
    strided: bool = False

    def make(self, seed: int) -> dict[str, Any]:
        """Give the arguments of ``window_stats``, on the CPU."""
        columns = self.num_columns
        generator = torch.Generator().manual_seed(seed)
        q = torch.randn(self.num_heads, self.num_rows, self.head_dim, generator=generator) * self.spread
        k = torch.randn(columns, self.num_kv_heads, self.head_dim, generator=generator).to(self.dtype)
        k = k.transpose(0, 1)
        last = columns + self.lag
        return {
            "q": q.to(self.dtype),
            "k": k if self.strided else k.contiguous(),
            "q_pos": torch.arange(last - self.num_rows, last),
            "k_pos": torch.randperm(columns, generator=generator) if self.shuffled else torch.arange(columns),
            "scored": self.scored,
            "softcap": self.softcap,
            "stats": self.stats,
            "pool_kernel": self.pool_kernel,
        }

    def bytes_moved(self) -> int:
        """Give the bytes that any two-pass implementation moves: keys twice, queries twice, outputs once."""
        width = torch.empty(0, dtype=self.dtype).element_size()
        low, high = self.scored or (0, self.num_columns)
        keys = self.num_kv_heads * (self.num_columns + high - low) * self.head_dim * width
        queries = 2 * self.num_heads * self.num_rows * self.head_dim * width
        return keys + queries + 4 * self.num_heads * (high - low) * len(self.stats - {"entropy"})


# Small: the interpreter takes about a second per ten tiles.
CASES = (
    Case("group of 4, off the power of two", 8, 2, 31, 200, 64, scored=(3, 169)),
    Case("one head, two rows", 1, 1, 2, 17, 64),
    Case("one row without variance", 2, 1, 1, 40, 64, stats=ALL_STATS - {"variance"}),
    Case("D = 96, group of 3", 3, 1, 16, 130, 96, scored=(0, 114)),
    Case("D = 128, 33 rows, group of 8", 8, 1, 33, 150, 128, scored=(0, 117)),
    Case("bfloat16, strided keys", 4, 2, 32, 160, 64, torch.bfloat16, scored=(0, 128), strided=True),
    Case("float16, peaked rows", 2, 2, 8, 129, 128, torch.float16, spread=4.0),
    Case("soft cap", 2, 1, 8, 140, 64, softcap=5.0, spread=8.0, scored=(0, 132)),
    Case("pool wider than the scored range", 2, 1, 6, 60, 64, scored=(20, 23), pool_kernel=7),
    Case("pool of 63", 2, 1, 6, 150, 64, scored=(7, 140), pool_kernel=63),
    Case("pool of 1", 2, 1, 6, 140, 64, scored=(7, 140), pool_kernel=1),
    Case("keys after every query", 2, 1, 7, 150, 64, lag=-60, scored=(0, 150)),
    Case("foreign queries far behind the keys", 2, 1, 5, 133, 64, lag=400, scored=(1, 132)),
    Case("rows that see a few keys", 2, 1, 20, 20, 64),
    Case("two splits, scored in the second", 1, 1, 4, 600, 64, scored=(520, 596), stats=frozenset({"mean", "entropy"})),
    Case("second split hidden", 1, 1, 4, 600, 64, lag=-100, scored=(480, 560)),
    Case("more splits than one tile combines", 1, 1, 2, 16500, 16, scored=(16450, 16490)),
    Case("keys in no order", 2, 1, 5, 150, 64, shuffled=True, lag=-40, scored=(10, 140)),
    Case("rows that are almost equal", 2, 1, 16, 150, 64, spread=1e-2, scored=(0, 134)),
    Case("only the mean", 2, 1, 4, 70, 64, stats=frozenset({"mean"})),
    Case("only the entropy", 2, 1, 4, 270, 64, stats=frozenset({"entropy"})),
)
BENCH_CASES = tuple(
    Case(f"N = {n}, {dtype}".replace("torch.", ""), 32, 8, 32, n, 128, dtype, (0, n - 32), stats=DEFAULT_STATS)
    for n in (8192, 131072)
    for dtype in (torch.bfloat16, torch.float32)
)


def compare(case: Case) -> float:
    """Give the op's worst error over its tolerance, against the reference in float64; good up to 1."""
    device = "cuda" if torch.cuda.is_available() and not interpreted() else "cpu"
    kwargs = case.make(0)
    kwargs |= {name: kwargs[name].to(device) for name in ("q", "k", "q_pos", "k_pos")}
    result = window_stats(**kwargs)
    kwargs |= {name: kwargs[name].double() for name in ("q", "k")}
    kwargs |= {"scored": case.scored or (0, case.num_columns), "scale": case.head_dim**-0.5}
    expected = window_stats_reference(**kwargs)
    worst = 0.0
    for name in sorted(ALL_STATS):
        got, wanted = getattr(result, name), getattr(expected, name)
        if (got is None) != (name not in case.stats):
            return float("inf")
        if got is not None:
            error = (got.double() - wanted).abs() / (TOLERANCES[name] * wanted.abs() + FLOORS[name])
            # max() of NaN would keep the other one.
            worst = max(worst, float(error.nan_to_num(nan=float("inf")).max()))
    return worst
