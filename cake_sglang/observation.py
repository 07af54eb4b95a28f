"""What a policy sees of one layer: its keys, and the queries of one or several observation windows.

Columns are the tokens whose keys are at hand. The compressed range is the part of them that a segment replaces; columns
before it (a shared system prompt) and after it (a probe's own tokens) are attended, never scored.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cake_kernels.window_stats.op import window_stats
from cake_kernels.window_stats.result import WindowStats
from cake_sglang.errors import PolicyError
from cake_sglang.fields import check_int, check_number

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# A column that lies later than every query is seen by none.
UNSEEN = torch.iinfo(torch.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Queries that observe the keys: the prompt's last rows, a probe's, or those of a repeat pass.

    Attributes:
        q: [Hq, W, D] queries as the attention uses them (normalised, rotated).
        q_pos: [W] int64 absolute positions; row i sees the columns whose position is at most ``q_pos[i]``.
        attended: Half-open column ranges that these rows see; None for all columns.
        scored: Half-open column range that these rows score; None for all candidates.
    """

    q: Tensor
    q_pos: Tensor
    attended: tuple[tuple[int, int], ...] | None = None
    scored: tuple[int, int] | None = None

    def rows(self, start: int, stop: int) -> "Window":
        """Give the same window with the query rows ``[start, stop)`` alone."""
        return replace(self, q=self.q[:, start:stop], q_pos=self.q_pos[start:stop])

    def scoring(self, start: int, stop: int) -> "Window":
        """Give the same window, scoring the columns ``[start, stop)`` alone."""
        return replace(self, scored=(start, stop))


@dataclass(frozen=True, slots=True, eq=False)
class LayerObservation:
    """One layer's keys with the windows that observe them.

    Attributes:
        layer: Index of the layer.
        k: [Hkv, N, D] keys as cached; float32, float16, bfloat16 or float64. Query head h reads KV head
            ``h // (Hq / Hkv)``.
        windows: At least one window, none for policies that read no attention.
        v: [Hkv, N, D] values, for policies that need them.
        w_o: [Hq, D, hidden] output projection, for policies that need it.
        k_pos: [N] int64 absolute positions of the columns; default 0..N-1.
        compressed: Half-open range of the columns that are compressed; default all.
        scale: Factor on query-key products; default ``1 / sqrt(D)``.
        softcap: Soft cap of the logits, as in Gemma 2; default none.

    Raises:
        PolicyError: Shapes, dtypes, devices or ranges do not fit, or a tensor holds NaN or infinity.
    """

    layer: int
    k: Tensor
    windows: tuple[Window, ...] = ()
    v: Tensor | None = None
    w_o: Tensor | None = None
    k_pos: Tensor | None = None
    compressed: tuple[int, int] | None = None
    scale: float | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        """Check everything that a kernel later assumes."""
        check_int("layer", self.layer, 0)
        if self.k.dim() != 3 or 0 in self.k.shape:
            raise PolicyError(f"k has shape {list(self.k.shape)}, expected [Hkv, N, D] with sizes of at least 1")
        _check_tensor("k", self.k, self.k)
        for name, value in (("scale", self.scale), ("softcap", self.softcap)):
            if value is not None:
                check_number(name, value, 0, above=True)
        self._check_companions()
        _check_columns("compressed", self.range, self.num_columns)
        for index, window in enumerate(self.windows):
            self._check_window(f"windows[{index}]", window)

    @property
    def num_kv_heads(self) -> int:
        """Hkv."""
        return self.k.shape[0]

    @property
    def num_columns(self) -> int:
        """N, compressed or not."""
        return self.k.shape[1]

    @property
    def num_query_heads(self) -> int:
        """Hq, from the windows or the output projection; Hkv where neither is given."""
        if self.windows:
            return self.windows[0].q.shape[0]
        return self.num_kv_heads if self.w_o is None else self.w_o.shape[0]

    @property
    def range(self) -> tuple[int, int]:
        """Half-open range of the compressed columns."""
        return self.compressed or (0, self.num_columns)

    @property
    def num_compressed(self) -> int:
        """Number of compressed columns."""
        return self.range[1] - self.range[0]

    @property
    def positions(self) -> Tensor:
        """[N] int64 absolute positions of the columns."""
        return torch.arange(self.num_columns, device=self.k.device) if self.k_pos is None else self.k_pos

    @property
    def softmax_scale(self) -> float:
        """Factor on query-key products."""
        return 1.0 / math.sqrt(self.k.shape[2]) if self.scale is None else self.scale

    def statistics(
        self, window: Window, candidates: tuple[int, int], stats: frozenset[str], pool_kernel: int = 5
    ) -> WindowStats:
        """Give the window's statistics of the columns ``window.scored``, by default of the candidates."""
        low, high = window.scored or candidates
        k, k_pos = self.k, self.positions
        if window.attended is not None:
            seen = sum(stop - start for start, stop in window.attended)
            if 2 * seen > self.num_columns:
                hidden = torch.full_like(k_pos, UNSEEN)
                for start, stop in window.attended:
                    hidden[start:stop] = k_pos[start:stop]
                k_pos = hidden
            else:
                ranges = sorted(window.attended)
                k = torch.cat([k[:, start:stop] for start, stop in ranges], dim=1)
                k_pos = torch.cat([k_pos[start:stop] for start, stop in ranges])
                before = sum(min(stop, low) - start for start, stop in ranges if start < low)
                low, high = before, before + high - low
        return window_stats(
            window.q,
            k,
            window.q_pos,
            k_pos,
            scored=(low, high),
            scale=self.softmax_scale,
            softcap=self.softcap,
            stats=stats,
            pool_kernel=pool_kernel,
        )

    def _check_companions(self) -> None:
        if self.v is not None:
            if self.v.shape[:2] != self.k.shape[:2] or self.v.dim() != 3:
                raise PolicyError(f"v has shape {list(self.v.shape)}, expected {list(self.k.shape[:2])} and D")
            _check_tensor("v", self.v, self.k)
        if self.k_pos is not None:
            _check_positions("k_pos", self.k_pos, self.num_columns, self.k)
        if self.w_o is not None:
            value_dim = (self.k if self.v is None else self.v).shape[2]
            heads = self.num_query_heads
            if self.w_o.dim() != 3 or self.w_o.shape[:2] != (heads, value_dim):
                raise PolicyError(
                    f"w_o has shape {list(self.w_o.shape)}, expected [Hq, D, hidden] = [{heads}, {value_dim}, hidden]"
                )
            if heads == 0 or heads % self.num_kv_heads:
                raise PolicyError(f"w_o has {heads} heads, expected a multiple of the {self.num_kv_heads} KV heads")
            _check_tensor("w_o", self.w_o, self.k)

    def _check_window(self, name: str, window: Window) -> None:
        q = window.q
        if q.dim() != 3 or q.shape[2] != self.k.shape[2] or q.shape[1] < 1:
            raise PolicyError(f"{name}.q has shape {list(q.shape)}, expected [Hq, W, D] with D = {self.k.shape[2]}")
        if q.shape[0] == 0 or q.shape[0] % self.num_kv_heads:
            raise PolicyError(
                f"{name}.q has {q.shape[0]} query heads, expected a multiple of the {self.num_kv_heads} KV heads"
            )
        if q.shape[0] != self.num_query_heads:
            raise PolicyError(f"{name}.q has {q.shape[0]} query heads, windows[0].q has {self.num_query_heads}")
        _check_tensor(f"{name}.q", q, self.k)
        _check_positions(f"{name}.q_pos", window.q_pos, q.shape[1], self.k)
        end = 0
        for columns in window.attended or ():
            _check_columns(f"{name}.attended", columns, self.num_columns)
            if columns[0] < end:
                raise PolicyError(f"{name}.attended is {window.attended}, expected ranges in order, without overlap")
            end = columns[1]
        scored = window.scored or self.range
        _check_columns(f"{name}.scored", scored, self.num_columns)
        covered = [low <= scored[0] and scored[1] <= high for low, high in window.attended or ()]
        if window.attended is not None and not any(covered):
            raise PolicyError(f"{name}.scored is {scored}, expected a part of one of {window.attended}")


def _check_tensor(name: str, tensor: Tensor, keys: Tensor) -> None:
    if tensor.dtype not in FLOATS:
        raise PolicyError(f"{name} is {tensor.dtype}, expected one of {', '.join(map(str, FLOATS))}")
    if tensor.dtype != keys.dtype:
        raise PolicyError(f"mixed dtypes: {name} is {tensor.dtype}, k is {keys.dtype}; they must be equal")
    if tensor.device != keys.device:
        raise PolicyError(f"mixed devices: {name} is on {tensor.device}, k is on {keys.device}; they must be one")
    if tensor.device.type == "meta":
        raise PolicyError(f"{name} is on {tensor.device}, which holds no values; expected a device that does")
    # A sum is finite only if all terms are, short of overflow, which float32 sums of activations do not reach.
    if not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        raise PolicyError(f"{name} holds NaN or infinity; every value must be finite")


def _check_positions(name: str, positions: Tensor, length: int, keys: Tensor) -> None:
    if positions.dtype != torch.int64 or list(positions.shape) != [length]:
        raise PolicyError(f"{name} is {positions.dtype} {list(positions.shape)}, expected torch.int64 [{length}]")
    if positions.device != keys.device:
        raise PolicyError(f"mixed devices: {name} is on {positions.device}, k is on {keys.device}; they must be one")


def _check_columns(name: str, columns: tuple[int, int], num_columns: int) -> None:
    if len(columns) != 2 or not all(isinstance(column, int) for column in columns):
        raise PolicyError(f"{name} is {columns}, expected two integers")
    start, stop = columns
    if not 0 <= start < stop <= num_columns:
        raise PolicyError(f"{name} is {columns}, expected 0 <= start < stop <= {num_columns}")
