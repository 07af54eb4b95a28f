"""What a policy keeps of one text: each layer's preference, budget and kept positions, as records and as lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cake_eval.observe import observe_document
from cake_eval.reference_model import ReferenceModel
from cake_sglang.policies.base import KVPolicy
from cake_sglang.policies.compress import Compressor

SHOWN_RANGES = 6


@dataclass(frozen=True, slots=True)
class LayerInspection:
    """One layer.

    Attributes:
        layer: Its index.
        preference: Weight that the policy gave it; None where nothing is evicted.
        kept: [Hkv] kept positions of each KV head, ascending.
    """

    layer: int
    preference: float | None
    kept: tuple[tuple[int, ...], ...]

    @property
    def budget(self) -> float:
        """Mean tokens kept per KV head."""
        return sum(map(len, self.kept)) / len(self.kept)


@dataclass(frozen=True, slots=True)
class Inspection:
    """A policy's choice on one text.

    Attributes:
        policy: Its name.
        budget: The stated budget: mean tokens per layer and KV head.
        num_tokens: N, length of the text.
        protected: Last tokens that every head keeps.
        whole: Nothing was evicted.
        layers: All layers in order.
    """

    policy: str
    budget: int
    num_tokens: int
    protected: int
    whole: bool
    layers: tuple[LayerInspection, ...]

    @property
    def mean_kept(self) -> float:
        """Mean tokens kept per layer and KV head."""
        counts = [len(kept) for layer in self.layers for kept in layer.kept]
        return sum(counts) / len(counts)

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON values."""
        return {
            "policy": self.policy,
            "budget": self.budget,
            "num_tokens": self.num_tokens,
            "mean_kept": self.mean_kept,
            "protected": self.protected,
            "whole": self.whole,
            "layers": [
                {"layer": layer.layer, "preference": layer.preference, "budget": layer.budget, "kept": layer.kept}
                for layer in self.layers
            ],
        }


def inspect_document(model: ReferenceModel, token_ids: Sequence[int], policy: KVPolicy, budget: int) -> Inspection:
    """Run a policy over a text; errors as for ``observe_document`` and ``compress``."""
    compressor = Compressor(policy, budget)
    layers = []
    for layer in observe_document(model, token_ids, policy):
        layers.append(layer.layer)
        compressor.add(layer)
    selection = compressor.finish()
    weights = compressor.weights or [None] * len(layers)
    kept = [tuple(tuple(columns.tolist()) for columns in layer) for layer in selection.kept]
    return Inspection(
        policy.name,
        budget,
        len(token_ids),
        selection.protected,
        selection.whole,
        tuple(LayerInspection(*row) for row in zip(layers, weights, kept, strict=True)),
    )


def lines(inspection: Inspection) -> Iterator[str]:
    """Give the table for a terminal: a line for each layer, positions as ranges of those that any KV head keeps."""
    ratio = inspection.num_tokens / inspection.mean_kept
    always = f", the last {inspection.protected} always" if inspection.protected else ""
    yield (
        f"policy {inspection.policy}: {inspection.num_tokens} tokens, {inspection.mean_kept:.1f} kept per layer and "
        f"KV head ({ratio:.1f}x smaller){always}"
    )
    if inspection.whole:
        fits = inspection.num_tokens <= inspection.budget
        yield "nothing is evicted" + (": the text fits the budget" if fits else "")
    yield "layer  preference    kept  by KV head           positions"
    for layer in inspection.layers:
        counts = [len(kept) for kept in layer.kept]
        spread = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else "all alike"
        preference = "-" if layer.preference is None else f"{layer.preference:.4g}"
        yield f"{layer.layer:5}  {preference:>10}  {layer.budget:6.1f}  {spread:<18}  {_ranges(layer.kept)}"


def _ranges(kept: tuple[tuple[int, ...], ...]) -> str:
    positions = sorted(set().union(*kept))
    ranges: list[list[int]] = []
    for position in positions:
        if ranges and position == ranges[-1][1] + 1:
            ranges[-1][1] = position
        else:
            ranges.append([position, position])
    texts = [f"{low}-{high}" if low != high else str(low) for low, high in ranges]
    if len(texts) <= SHOWN_RANGES:
        return ", ".join(texts) or "none"
    shown = SHOWN_RANGES // 2
    hidden = len(texts) - 2 * shown
    return f"{', '.join(texts[:shown])}, … {hidden} more ranges …, {', '.join(texts[-shown:])}"
