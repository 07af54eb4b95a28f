"""The file recorded from KVCache-Factory: SnapKV, PyramidKV, H2O, StreamingLLM and Ada-KV."""

from collections.abc import Callable

import torch

from cake_eval.golden.comparison import Comparison, GoldenError, Recorded, pieces
from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.adakv import AdaKV
from cake_sglang.policies.base import KVPolicy, LayerScore
from cake_sglang.policies.compress import split_range
from cake_sglang.policies.h2o import H2O
from cake_sglang.policies.pyramidkv import PyramidKV
from cake_sglang.policies.snapkv import SnapKV
from cake_sglang.policies.streaming_llm import StreamingLLM

# The recorded code reduces the group before pooling, and takes 4 sinks.
METHODS: dict[str, Callable[[int, int], KVPolicy]] = {
    "snapkv_avg5_mean": lambda window, beta: SnapKV(window=window, kernel=5, group_first=True),
    "snapkv_max7_mean": lambda window, beta: SnapKV(window=window, kernel=7, pooling="max", group_first=True),
    "pyramidkv_max7": lambda window, beta: PyramidKV(
        window=window, kernel=7, group_first=True, beta=beta, allocator="reference"
    ),
    "h2o": lambda window, beta: H2O(recent=window),
    "streamingllm": lambda window, beta: StreamingLLM(n_sink=4),
    "adakv_floor02": lambda window, beta: AdaKV(
        window=window, group_first=True, floor_alpha=0.2, allocator="reference"
    ),
    "adakv_floor02_norm": lambda window, beta: AdaKV(
        window=window, group_first=True, floor_alpha=0.2, normalize=True, allocator="reference"
    ),
}
# Relative difference below which two scores count as tied: maximum pooling makes plateaus of equal values.
TIE = 1e-6


def compare(recorded: Recorded) -> Comparison:
    """Compare, for every method that the file holds, counts per layer or head and kept positions."""
    comparison = Comparison()
    if recorded.setting("gqa") != "mean":
        raise GoldenError(f"config.gqa is {recorded.setting('gqa')!r}, known: mean")
    recorded.require_sizes("q", "L", "Hq", "S", "d")
    recorded.require_sizes("k", "L", "Hkv", "S", "d")
    for method in sorted(name.removesuffix("_kept") for name in recorded.names if name.endswith("_kept")):
        if method not in METHODS:
            raise GoldenError(f"method {method!r} is unknown; known: {', '.join(METHODS)}")
        policy = METHODS[method](recorded.setting("W"), recorded.config.get("beta", 20))
        _compare_method(comparison, recorded, method, policy)
    return comparison


def _compare_method(comparison: Comparison, recorded: Recorded, method: str, policy: KVPolicy) -> None:
    q, k = recorded["q"], recorded["k"]
    num_tokens, window = recorded.setting("S"), recorded.setting("W")
    first = 0 if isinstance(policy, H2O) else num_tokens - window
    q_pos = torch.arange(first, num_tokens)
    layers = [
        LayerObservation(layer, keys, (Window(rows[:, first:], q_pos),))
        for layer, (keys, rows) in enumerate(zip(k, q, strict=True))
    ]
    candidates, shape = split_range(policy, layers[0], len(layers), recorded.setting("capacity"))
    scores: list[LayerScore] = [policy.observe(layer, candidates) for layer in layers]
    counts = policy.budgets(scores, shape)
    lengths = [[count + shape.protected for count in row] for row in counts]
    if f"{method}_headlen" in recorded.names:
        comparison.equal(f"{method}_headlen", lengths, recorded[f"{method}_headlen"])
    else:
        comparison.equal(f"{method}_count", [row[0] for row in lengths], recorded[f"{method}_count"])
    kept = recorded[f"{method}_kept"]
    if sum(map(sum, lengths)) != kept.numel():
        comparison.differences.append(f"{method}_kept has {kept.numel()} entries, ours {sum(map(sum, lengths))}")
        return
    for layer, heads in enumerate(pieces(kept, lengths)):
        for head, positions in enumerate(heads):
            count, place = counts[layer][head], f"{method}_kept[{layer}][{head}]"
            tail = torch.arange(candidates.stop, candidates.stop + shape.protected)
            comparison.best(place, scores[layer].score[head], positions[:count], margin=TIE)
            comparison.equal(f"{place} end", positions[count:], tail)
            comparison.ascending(place, positions)
