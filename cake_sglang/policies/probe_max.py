"""Several neutral probes, worst case over probes and rows, value-output norm, one top-k over layers and heads."""

from dataclasses import dataclass
from typing import ClassVar

from cake_sglang.policies.layer_defensive import LayerDefensive


@dataclass(frozen=True, kw_only=True)
class ProbeMax(LayerDefensive):
    """The best cheap choice measured so far for documents that are compressed before any question is known.

    Layer-DefensiveKV without the forced tokens, observed from probes instead of the document's last rows.

    Source: the project's own measurements; score of arXiv 2510.13334.
    """

    name: ClassVar[str] = "probe_max"
    window_source: str = "probes"
    forced_mass: float = 0.0
