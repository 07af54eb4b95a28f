"""PyramidKV: SnapKV's scores, budgets that fall linearly from the lowest layer to the highest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cake_sglang.fields import check_int
from cake_sglang.indicator import Pooling
from cake_sglang.policies.base import BudgetShape
from cake_sglang.policies.snapkv import SnapKV


@dataclass(frozen=True, kw_only=True)
class PyramidKV(SnapKV):
    """PyramidKV.

    Attributes:
        beta: The highest layer gets ``mean / beta`` candidates, the lowest the mirror image; at least 1.

    Source: arXiv 2406.02069, section 3.2; Zefan-Cai/KVCache-Factory c97f9d7 (beta 20, maximum pooling 7, window 8).
    """

    name: ClassVar[str] = "pyramidkv"
    window: int = 8
    kernel: int = 7
    pooling: Pooling = "max"
    beta: int = 20

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_int("beta", self.beta, 1)

    def layer_budgets(self, weights: Sequence[float], shape: BudgetShape) -> list[int]:
        """Give the arithmetic decay; the layers' weights play no part."""
        mean, num_layers = shape.per_layer, shape.num_layers
        low = mean // self.beta
        high = 2 * mean - low
        if high >= shape.candidates:
            high = shape.candidates
            low = 2 * mean - high
        if self.allocator == "waterfill":
            steps = max(num_layers - 1, 1)
            decay = [(high * (steps - layer) + low * layer) / steps for layer in range(num_layers)]
            return super().layer_budgets(decay, shape)
        # The published code leaves prompts below twice the mean at equal budgets, and truncates the step.
        if shape.candidates + shape.protected < 2 * mean or num_layers == 1:
            return [mean] * num_layers
        step = (high - low) // (num_layers - 1)
        return [high - layer * step for layer in range(num_layers)]
