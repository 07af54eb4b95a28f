"""SnapKV: tokens by the pooled mean attention of the observation window, equal budgets."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cake_sglang.fields import check_bool
from cake_sglang.indicator import per_kv_head, pool
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import Candidates, LayerScore
from cake_sglang.policies.window_policy import WindowPolicy


@dataclass(frozen=True, kw_only=True)
class SnapKV(WindowPolicy):
    """SnapKV.

    Attributes:
        group_first: Reduce the group before pooling. Makes a difference for maximum pooling alone.

    Source: arXiv 2404.14469, section 4; FasterDecoding/SnapKV e216ddc (window 32, average pooling 5).
    """

    name: ClassVar[str] = "snapkv"
    group_first: bool = False

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_bool("group_first", self.group_first)

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the pooled mean attention per KV head."""
        mean = self.per_window(layer, candidates, frozenset({"mean"}), lambda stats: stats.mean)  # type: ignore[arg-type]
        return LayerScore(self.smooth(mean, layer.num_kv_heads))

    def smooth(self, mean: Tensor, num_kv_heads: int) -> Tensor:
        """Pool along the tokens and reduce over the group: [Hq, n] to [Hkv, n]."""
        if self.group_first:
            return pool(per_kv_head(mean, num_kv_heads, self.group), self.kernel, self.pooling)
        return per_kv_head(pool(mean, self.kernel, self.pooling), num_kv_heads, self.group)
