"""StreamingLLM: the first tokens, which act as attention sinks, and the most recent ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from cake_sglang.fields import check_int
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import Candidates, KVPolicy, LayerScore


@dataclass(frozen=True, kw_only=True)
class StreamingLLM(KVPolicy):
    """StreamingLLM by positions; keys keep the rotation of their true positions.

    Attributes:
        n_sink: First tokens that stay, >= 0.

    Source: arXiv 2309.17453, section 3.2; mit-han-lab/streaming-llm 2e50426. The original rotates keys by their index
    in the cache; a segment that is shared keeps them as prefilled.
    """

    name: ClassVar[str] = "streaming_llm"
    n_sink: int = 4

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_int("n_sink", self.n_sink, 0)

    def smallest_budget(self) -> int:
        """Give the sinks and one recent token."""
        return self.n_sink + 1

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Score by position, the sinks above all others."""
        num = candidates.size
        score = torch.arange(num, dtype=torch.float32, device=layer.k.device)
        score[: self.n_sink] += num
        return LayerScore(score.expand(layer.num_kv_heads, -1))
