"""The rung below ``KVPolicy`` for methods that read the attention of an observation window."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cake_kernels.window_stats.result import WindowStats
from cake_sglang.errors import PolicyError
from cake_sglang.fields import check_choice, check_int
from cake_sglang.indicator import GROUPS, POOLINGS, Group, Pooling
from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import Candidates, KVPolicy

# last: the prompt's last rows (the papers). probe: one neutral probe after the document, used for scoring only, so that
# one compression serves questions that are not known yet. probes: several of them.
WIDEST = 1023
WINDOW_SOURCES = ("last", "probe", "probes")


@dataclass(frozen=True, kw_only=True)
class WindowPolicy(KVPolicy):
    """A policy over window attention.

    Attributes:
        window: W, last tokens of the compressed range that always stay; with the source ``last`` also the rows that
            observe. At least 2. A prompt with fewer query rows at hand observes and protects those.
        window_source: Where the observing rows come from: ``last``, ``probe`` or ``probes``.
        kernel: Odd width of the pooling along the tokens, up to 1,023; 1 for none.
        pooling: ``avg`` or ``max``.
        group: How query heads of one KV head are reduced, ``mean`` or ``max``.
    """

    window: int = 32
    window_source: str = "last"
    kernel: int = 5
    pooling: Pooling = "avg"
    group: Group = "mean"

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_int("window", self.window, 2)
        check_choice("window_source", self.window_source, WINDOW_SOURCES)
        check_int("kernel", self.kernel, 1, WIDEST)
        if self.kernel % 2 == 0:
            raise PolicyError(f"kernel is {self.kernel}, expected an odd integer from 1 to {WIDEST}")
        check_choice("pooling", self.pooling, POOLINGS)
        check_choice("group", self.group, GROUPS)

    def protected(self, layer: LayerObservation, budget: int) -> int:
        """Give W, or the number of observing rows if the prompt has fewer."""
        if self.window_source == "last" and layer.windows:
            return min(self.window, layer.windows[0].q.shape[1])
        return min(self.window, layer.num_compressed)

    def smallest_budget(self) -> int:
        """Give W: the window always stays."""
        return self.window

    def require(self, layer: LayerObservation) -> None:
        """Refuse windows that are not those of the source."""
        super().require(layer)
        count = len(layer.windows)
        if count == 0 or (count > 1 and self.window_source != "probes"):
            wanted = "at least one window" if self.window_source == "probes" else "exactly one window"
            raise PolicyError(f"{self.name} with window_source {self.window_source!r} needs {wanted}, got {count}")
        end = int(layer.positions[layer.range[1] - 1])
        for index, window in enumerate(layer.windows):
            self._check_rows(index, window, end)

    def per_window(
        self,
        layer: LayerObservation,
        candidates: Candidates,
        stats: frozenset[str],
        reduce: Callable[[WindowStats], Tensor],
    ) -> Tensor:
        """Reduce every window's statistics to scores; the largest over the windows counts: [H, n]."""
        result: Tensor | None = None
        for window in layer.windows:
            score = reduce(layer.statistics(window, candidates[:2], stats, self.kernel))
            result = score if result is None else torch.maximum(result, score)
        assert result is not None
        return result

    def _check_rows(self, index: int, window: Window, end: int) -> None:
        rows = window.q.shape[1]
        if rows < 2:
            raise PolicyError(f"windows[{index}] has {rows} rows, expected at least 2")
        first, last = int(window.q_pos.min()), int(window.q_pos.max())
        if self.window_source == "last":
            if rows > self.window:
                raise PolicyError(f"windows[{index}] has {rows} rows, expected 2 to {self.window} (window)")
            if last != end or first != end - rows + 1:
                raise PolicyError(
                    f"windows[{index}] covers positions {first} to {last}, "
                    f"expected the last {rows} of the range, {end - rows + 1} to {end}"
                )
        elif first <= end:
            raise PolicyError(f"windows[{index}] starts at position {first}, a probe starts above {end}")
