"""Draw an inspection: preference and budget per layer, and where in the text the kept tokens lie."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cake_eval.inspection import Inspection

BINS = 256
# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE = "#0072B2", "#D55E00"


def draw(inspection: Inspection, path: Path) -> None:
    """Write a PNG with three panels over the same layers, top to bottom: layer 0 first."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3, sharey=True, width_ratios=(1, 1, 3))
    layers = [layer.layer for layer in inspection.layers]

    left.barh(layers, [layer.preference or 0.0 for layer in inspection.layers], color=BLUE)
    left.set(xlabel="preference", ylabel="layer", title="Preference")

    budgets = [layer.budget for layer in inspection.layers]
    counts = [[len(kept) for kept in layer.kept] for layer in inspection.layers]
    middle.barh(layers, budgets, color=ORANGE)
    if any(min(row) != max(row) for row in counts):
        lows, highs = [min(row) for row in counts], [max(row) for row in counts]
        middle.hlines(layers, lows, highs, color="black", label="fewest to most of a head")
    middle.axvline(inspection.mean_kept, color="black", linestyle="--", linewidth=1, label="mean")
    middle.set(xlabel="tokens kept per KV head", title="Budget")
    middle.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), fontsize=8)

    share = kept_share(inspection)
    image = right.imshow(
        share,
        aspect="auto",
        interpolation="nearest",
        cmap="viridis",
        vmin=0,
        vmax=1,
        extent=(0, inspection.num_tokens, len(layers) - 0.5, -0.5),
    )
    right.set(xlabel="position in the text, tokens", title="Share of tokens kept, over all KV heads")
    figure.colorbar(image, ax=right)
    figure.suptitle(
        f"{inspection.policy}: {inspection.num_tokens} tokens, {inspection.mean_kept:.0f} kept per layer and KV head"
    )
    figure.savefig(path, dpi=120, format="png")


def kept_share(inspection: Inspection) -> np.ndarray:
    """Give [L, bins] the share of (token, KV head) pairs kept, in equal stretches of the text."""
    bins = min(BINS, inspection.num_tokens)
    edges = np.linspace(0, inspection.num_tokens, bins + 1).round().astype(int)
    rows = []
    for layer in inspection.layers:
        kept = np.concatenate([np.array(head, dtype=int) for head in layer.kept])
        rows.append(np.histogram(kept, edges)[0] / (np.diff(edges) * len(layer.kept)))
    return np.array(rows)
