"""CAKE: layer budgets from how attention spreads and shifts, tokens by mean and variance of their attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cake_kernels.window_stats.result import WindowStats
from cake_sglang import cascade
from cake_sglang.fields import check_bool, check_number
from cake_sglang.indicator import mean_variance, per_kv_head, pool
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import BudgetShape, Candidates, LayerScore
from cake_sglang.policies.window_policy import WindowPolicy
from cake_sglang.preference import cake_preference

STATS = frozenset({"mean", "variance", "entropy"})


@dataclass(frozen=True, kw_only=True)
class Cake(WindowPolicy):
    """CAKE.

    Attributes:
        gamma: Weight of the variance in the eviction indicator, >= 0.
        tau1: Temperature of the attention's dispersion, > 0; tuned per model by the authors.
        tau2: Temperature of the attention's shift, > 0; tuned per model by the authors.
        cascade: With the ``reference`` allocator, keep the running minimum of the budgets after each layer, as the
            published code's cascade does; False keeps the last budgets. ``waterfill`` gives the same for both.

    Source: arXiv 2503.12491, equations of sections 4.1 (preference), 4.2 (budgets) and 4.3 (indicator);
    antgroup/cakekv c4675ce. All published results hold the question inside the window.
    """

    name: ClassVar[str] = "cake"
    gamma: float = 200.0
    tau1: float = 1.0
    tau2: float = 1.0
    cascade: bool = True

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_number("gamma", self.gamma, 0)
        check_number("tau1", self.tau1, 0, above=True)
        check_number("tau2", self.tau2, 0, above=True)
        check_bool("cascade", self.cascade)

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the eviction indicator and the layer's preference; several windows add up their dispersions."""
        entropy, variance = 0.0, 0.0
        score: Tensor | None = None
        for window in layer.windows:
            stats = layer.statistics(window, candidates[:2], STATS)
            assert stats.entropy is not None and stats.variance is not None
            entropy += float(stats.entropy.sum(dtype=torch.float64))
            variance += float(stats.variance.sum(dtype=torch.float64))
            indicator = self._indicator(stats, layer.num_kv_heads)
            score = indicator if score is None else torch.maximum(score, indicator)
        assert score is not None
        return LayerScore(score, cake_preference(entropy, variance, self.tau1, self.tau2))

    def layer_budgets(self, weights: Sequence[float], shape: BudgetShape) -> list[int]:
        """Split the total by preference, with the chosen allocator."""
        if self.allocator == "waterfill":
            return super().layer_budgets(weights, shape)
        stages = cascade.reference_stages(weights, shape.total, shape.candidates)
        return cascade.running_minimum(stages)[-1] if self.cascade else stages[-1]

    def _indicator(self, stats: WindowStats, num_kv_heads: int) -> Tensor:
        return per_kv_head(pool(mean_variance(stats, self.gamma), self.kernel, self.pooling), num_kv_heads, self.group)
