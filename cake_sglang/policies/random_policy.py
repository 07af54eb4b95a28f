"""The control: sinks, the most recent tokens, and others at random. A policy that does not beat it does nothing."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from cake_sglang.fields import check_int
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import Candidates, KVPolicy, LayerScore


@dataclass(frozen=True, kw_only=True)
class RandomPolicy(KVPolicy):
    """Random eviction, different in every layer and head, the same for the same seed.

    Attributes:
        n_sink: First tokens that stay, >= 0.
        window: Last tokens that stay, >= 2.
        seed: Seed of the choice, >= 0.

    Source: none; the control of the project's evaluation.
    """

    name: ClassVar[str] = "random"
    n_sink: int = 4
    window: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_int("n_sink", self.n_sink, 0)
        check_int("window", self.window, 2)
        check_int("seed", self.seed, 0, 2**31)

    def protected(self, layer: LayerObservation, budget: int) -> int:
        """Give the last tokens that stay."""
        return min(self.window, layer.num_compressed)

    def smallest_budget(self) -> int:
        """Give the window and the sinks."""
        return self.window + self.n_sink

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Draw uniform scores on the CPU, so that every device keeps the same tokens."""
        generator = torch.Generator().manual_seed(self.seed * 4096 + layer.layer)
        score = torch.rand(layer.num_kv_heads, candidates.size, generator=generator)
        score[:, : self.n_sink] = 2.0
        return LayerScore(score.to(layer.k.device))
