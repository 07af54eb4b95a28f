"""TOVA: the last row's attention, averaged over all heads of a layer, decides for all heads alike."""

from dataclasses import dataclass
from typing import ClassVar

from cake_sglang.decode_eviction import row_attention
from cake_sglang.errors import PolicyError
from cake_sglang.observation import LayerObservation
from cake_sglang.policies.base import Candidates, KVPolicy, LayerScore


@dataclass(frozen=True, kw_only=True)
class TOVA(KVPolicy):
    """TOVA, cut once at the end of the prompt. No token is protected, not even the last.

    Source: arXiv 2401.06104, section 3.2; schwartz-lab-NLP/TOVA 9c7d09b.
    """

    name: ClassVar[str] = "tova"
    needs: ClassVar[frozenset[str]] = frozenset({"last_row"})

    def require(self, layer: LayerObservation) -> None:
        """Refuse an observation without the last row."""
        super().require(layer)
        if not layer.windows:
            raise PolicyError("tova needs one window with the last row, got none")
        found, last = int(layer.windows[-1].q_pos[-1]), int(layer.positions[layer.range[1] - 1])
        if found != last:
            raise PolicyError(f"tova's last query row is at position {found}, expected {last}, the end of the range")

    def observe(self, layer: LayerObservation, candidates: Candidates) -> LayerScore:
        """Give the last row's mean attention, the same for every KV head."""
        query = layer.windows[-1].q[:, -1]
        attention = row_attention(query, layer.k[:, : layer.range[1]], layer.softmax_scale, layer.softcap)
        mean = attention[:, candidates.start : candidates.stop].mean(dim=0)
        return LayerScore(mean.expand(layer.num_kv_heads, -1))
