"""CAKE's cascading cache management: as layer l arrives, layers 0..l are cut again within the running total.

A token that was cut cannot come back. So, for one fixed order of a layer's tokens, cutting to b_1, then to b_2 and so
on keeps the first ``min(b_i)``: the cascade ends at each layer's running minimum, whatever happens in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cake_sglang import budget_reference
from cake_sglang.budget import waterfill


@dataclass(frozen=True, slots=True)
class CascadeTrace:
    """Tokens per KV head held while a prompt is prefilled layer by layer, the window included.

    Attributes:
        stages: [L][m+1] tokens that layers 0..m hold after stage m, window excluded.
        held: [L] tokens over all layers after stage m.
        peak: Largest number held at any time; just before the cut of a stage its layer still has all its tokens.
    """

    stages: tuple[tuple[int, ...], ...]
    held: tuple[int, ...]
    peak: int

    @property
    def final(self) -> list[int]:
        """[L] tokens kept per layer at the end, window excluded."""
        return list(self.stages[-1])


def waterfill_stages(weights: Sequence[float], total: int, capacity: int, minimum: int = 0) -> list[list[int]]:
    """Give the budgets after each layer. None ever rises, so no layer needs a token back."""
    return [waterfill(weights[: stage + 1], total, capacity, minimum) for stage in range(len(weights))]


def reference_stages(weights: Sequence[float], total: int, capacity: int) -> list[list[int]]:
    """Give the published code's budgets after each layer; it knows no minimum."""
    return budget_reference.stages(weights, total, capacity)


def running_minimum(stages: Sequence[Sequence[int]]) -> list[list[int]]:
    """Give what each layer still holds after each stage, if it is cut to every budget in turn."""
    held: list[list[int]] = []
    for stage in stages:
        before = held[-1] if held else []
        held.append([*(min(old, new) for old, new in zip(before, stage, strict=False)), *stage[len(before) :]])
    return held


def trace(stages: Sequence[Sequence[int]], num_tokens: int, window: int) -> CascadeTrace:
    """Give the tokens held over time by a cascade with these budgets.

    Args:
        stages: [L][m+1] budgets after each stage, window excluded.
        num_tokens: Tokens of the prompt.
        window: Tokens that every layer keeps besides its budget.
    """
    cut = running_minimum(stages)
    held = [sum(stage) + window * len(stage) for stage in cut]
    peak = max(before + num_tokens for before in [0, *held[:-1]])
    return CascadeTrace(tuple(map(tuple, cut)), tuple(held), peak)


def one_shot_peak(num_layers: int, num_tokens: int) -> int:
    """Tokens held before a one-shot cut: all layers still have the whole prompt."""
    return num_layers * num_tokens
