"""Files recorded from LAVa's published code."""

import torch

from cake_eval.golden.cake_file import observations
from cake_eval.golden.comparison import Comparison, GoldenError, Recorded, pieces
from cake_sglang.policies.compress import split_range
from cake_sglang.policies.lava import LAVa

SCORE_RTOL = 1e-3
ENTROPY_RTOL = 1e-4
POOLINGS = {"maxpool": "max", "avgpool": "avg"}


def compare(recorded: Recorded) -> Comparison:
    """Compare scores, entropies, budgets of layers and heads, and kept positions: tied ones any way."""
    comparison = Comparison()
    pooling = recorded.setting("pooling")
    if pooling not in POOLINGS:
        raise GoldenError(f"config.pooling is {pooling!r}, known: {', '.join(POOLINGS)}")
    for name, value in (("normalize", False), ("skip", 0), ("gqa_support", True)):
        if recorded.setting(name) != value:
            raise GoldenError(f"config.{name} is {recorded.setting(name)!r}, the policy has {value!r} alone")
    policy = LAVa(
        window=recorded.setting("W"),
        kernel=recorded.setting("kernel"),
        pooling=POOLINGS[pooling],  # type: ignore[arg-type]
        floor_alpha=recorded.setting("floor_alpha"),
        allocator="reference",
        strict_budget=False,
    )
    layers = observations(recorded)
    candidates, shape = split_range(policy, layers[0], len(layers), recorded.setting("cache"))
    scores = [policy.observe(layer, candidates) for layer in layers]
    weights = [score.weight for score in scores]
    comparison.close("score", torch.stack([score.score for score in scores]), recorded["score"], SCORE_RTOL)
    comparison.close("entropy", torch.tensor(weights, dtype=torch.float64), recorded["entropy"], ENTROPY_RTOL)
    comparison.equal("layer_budget", policy.layer_budgets(weights, shape), recorded["layer_budget"])
    counts = policy.budgets(scores, shape)
    lengths = [[count + shape.protected for count in row] for row in counts]
    comparison.equal("head_len", lengths, recorded["head_len"])
    if comparison.differences:
        return comparison
    margin = 1e-6 if pooling == "maxpool" else 0.0
    tail = torch.arange(candidates.stop, candidates.stop + shape.protected)
    for name in ("kept_sorted", "kept_order"):
        for layer, heads in enumerate(pieces(recorded[name], lengths)):
            for head, kept in enumerate(heads):
                place = f"{name}[{layer}][{head}]"
                best, recent = kept[: counts[layer][head]], kept[counts[layer][head] :]
                comparison.best(place, scores[layer].score[head], best, margin=margin)
                comparison.equal(f"{place} window", recent, tail)
                if name == "kept_order":
                    comparison.falling(place, scores[layer].score[head], best, SCORE_RTOL)
                else:
                    comparison.ascending(place, kept)
    return comparison
