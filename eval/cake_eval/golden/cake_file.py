"""Files recorded from CAKE's published code."""

import torch
from torch import Tensor

from cake_eval.golden.comparison import Comparison, Recorded, pieces
from cake_sglang import budget_reference, cascade
from cake_sglang.decode_eviction import evict_step
from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import LayerScore
from cake_sglang.policies.cake import Cake
from cake_sglang.policies.compress import split_range, stays_whole
from cake_sglang.selection import descending, select

PREFERENCE_RTOL = 2e-4
INDICATOR_RTOL = 1e-3


def compare(recorded: Recorded) -> Comparison:
    """Compare preferences, indicators, budgets of every stage, kept positions and decoding steps."""
    comparison = Comparison()
    policy = Cake(
        window=recorded.setting("W"),
        gamma=recorded.setting("gamma"),
        tau1=recorded.setting("tau1"),
        tau2=recorded.setting("tau2"),
        cascade=recorded.config.get("cascading", True),
        allocator="reference",
        strict_budget=False,
    )
    layers = observations(recorded)
    budget, num_tokens = recorded.setting("cache"), recorded.setting("S")
    candidates, shape = split_range(policy, layers[0], len(layers), budget)
    scores = [policy.observe(layer, candidates) for layer in layers]
    weights = [score.weight for score in scores]
    comparison.close("pref", torch.tensor(weights, dtype=torch.float64), recorded["pref"], PREFERENCE_RTOL)
    comparison.close("indicator", torch.stack([score.score for score in scores]), recorded["indicator"], INDICATOR_RTOL)
    if stays_whole(policy, layers[0], budget):
        _compare_whole(comparison, recorded, num_tokens, shape.per_layer)
        budgets = [shape.per_layer] * len(layers)
    else:
        stages = cascade.reference_stages(weights, shape.total, shape.candidates)
        _compare_stages(comparison, recorded, weights, shape.total, shape.candidates)
        held = cascade.running_minimum(stages) if policy.cascade else _uncut_until_last(stages, shape.candidates)
        sizes = _triangle([[size + shape.protected for size in row] for row in held])
        comparison.equal("stage_sizes", sizes, recorded["stage_sizes"])
        budgets = stages[-1]
        counts = policy.budgets(scores, shape)
        comparison.equal("layer_budget", budgets, recorded["layer_budget"])
        _compare_kept(comparison, recorded, scores, counts, candidates[:2], shape.protected)
    if "q_dec" in recorded.names:
        _compare_decoding(comparison, recorded, budgets, shape.protected)
    return comparison


def observations(recorded: Recorded) -> list[LayerObservation]:
    """Give the recorded keys and window queries, and values where there are some."""
    recorded.require_sizes("q_win", "L", "Hq", "W", "d")
    recorded.require_sizes("k", "L", "Hkv", "S", "d")
    q, k = recorded["q_win"], recorded["k"]
    num_tokens, window = recorded.setting("S"), recorded.setting("W")
    q_pos = torch.arange(num_tokens - window, num_tokens)
    values = recorded["v"] if "v" in recorded.names else [None] * len(k)
    return [
        LayerObservation(layer, keys, (Window(rows, q_pos),), v=value)
        for layer, (keys, rows, value) in enumerate(zip(k, q, values, strict=True))
    ]


def _compare_whole(comparison: Comparison, recorded: Recorded, num_tokens: int, per_layer: int) -> None:
    num_layers, num_heads = recorded["k"].shape[:2]
    everything = torch.arange(num_tokens).repeat(num_layers * num_heads)
    comparison.equal("layer_budget", [per_layer] * num_layers, recorded["layer_budget"])
    comparison.equal("kept_count", [num_tokens] * num_layers, recorded["kept_count"])
    comparison.equal("kept_sorted", everything, recorded["kept_sorted"])
    comparison.equal("kept_order", everything, recorded["kept_order"])
    sizes = _triangle([[num_tokens] * (layer + 1) for layer in range(num_layers)])
    comparison.equal("stage_sizes", sizes, recorded["stage_sizes"])


def _compare_stages(
    comparison: Comparison, recorded: Recorded, weights: list[float], total: int, capacity: int
) -> None:
    raw = [budget_reference.proportional_shares(weights[: last + 1], total) for last in range(len(weights))]
    budgets = [budget_reference.allocate(weights[: last + 1], total, capacity) for last in range(len(weights))]
    seen = recorded["stage_raw"]
    comparison.equal("stage_raw_missing", _triangle(raw, float("nan")).isnan(), seen.isnan())
    comparison.close("stage_raw", _triangle(raw, 1.0), seen.nan_to_num(nan=1.0), PREFERENCE_RTOL)
    comparison.equal("stage_budget", _triangle(budgets), recorded["stage_budget"])


def _compare_kept(
    comparison: Comparison,
    recorded: Recorded,
    scores: list[LayerScore],
    counts: list[list[int]],
    columns: tuple[int, int],
    protected: int,
) -> None:
    selection = select([score.score for score in scores], counts, columns, protected)
    comparison.equal("kept_count", [row[0] for row in selection.counts], recorded["kept_count"])
    ours = torch.cat([head for layer in selection.kept for head in layer])
    comparison.equal("kept_sorted", ours, recorded["kept_sorted"])
    tail = torch.arange(columns[1], columns[1] + protected)
    order = pieces(recorded["kept_order"], selection.counts)
    for layer, (score, heads, row) in enumerate(zip(scores, order, counts, strict=True)):
        for head, kept in enumerate(heads):
            name = f"kept_order[{layer}][{head}]"
            best, recent = kept[: row[head]], kept[row[head] :]
            comparison.equal(name, best.sort().values, descending(score.score[head], row[head]).sort().values)
            comparison.equal(f"{name} window", recent, tail)
            comparison.falling(name, score.score[head], best, INDICATOR_RTOL)


def _compare_decoding(comparison: Comparison, recorded: Recorded, budgets: list[int], window: int) -> None:
    recorded.require_sizes("q_dec", "T", "L", "Hq", "d")
    recorded.require_sizes("k_dec", "T", "L", "Hkv", "d")
    keys, num_tokens = recorded["k"], recorded.setting("S")
    num_layers, num_heads = keys.shape[:2]
    held = pieces(recorded["kept_order"], [[int(count)] * num_heads for count in recorded["kept_count"]])
    queries, new_keys, counts = recorded["q_dec"], recorded["k_dec"], recorded["dec_count"]
    expected = iter(pieces(recorded["dec_kept_order"], [[int(c)] * num_heads for row in counts for c in row]))
    for step in range(len(queries)):
        for layer in range(num_layers):
            order = torch.stack([torch.cat([head, torch.tensor([num_tokens + step])]) for head in held[layer]])
            known = torch.cat([keys[layer], new_keys[: step + 1, layer].transpose(0, 1)], dim=1)
            stored = torch.stack([rows[slots] for rows, slots in zip(known, order, strict=True)])
            kept = evict_step(queries[step, layer], stored, budgets[layer], window)
            held[layer] = list(order.gather(1, kept))
            comparison.equal(f"dec_count[{step}][{layer}]", kept.shape[1], int(counts[step, layer]))
            for head, (ours, theirs) in enumerate(zip(held[layer], next(expected), strict=True)):
                comparison.equal(f"dec_kept_order[{step}][{layer}][{head}]", ours, theirs)


def _uncut_until_last(stages: list[list[int]], capacity: int) -> list[list[int]]:
    return [[capacity] * len(stage) for stage in stages[:-1]] + [stages[-1]]


def _triangle(rows: list[list[int]] | list[list[float]], fill: float = -1) -> Tensor:
    """[L, L] of rows that grow by one, padded."""
    return torch.tensor([[*row, *[fill] * (len(rows) - len(row))] for row in rows])
