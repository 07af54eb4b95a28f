"""Every eviction policy written out from its formulas, in float64 and plain loops: the oracle of the policies' tests.

One function per method: the prompt, the budget (mean tokens per layer and KV head, window included), and the paper's
hyper-parameters as keywords. Nothing here comes from the package. Equal scores go to the lower column, then layer, then
head. Methods whose heads keep different numbers are in ``policy_oracles_by_head``.

Source: the papers and repositories that each function names.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from cake_testing.policy_oracle_parts import (
    Kept,
    Prompt,
    Score,
    equal_heads,
    grouped,
    keep,
    largest_of,
    mean_rows,
    own_rows,
    pooled,
    snapkv_scores,
    variance_rows,
    water,
    windows,
)
from cake_testing.policy_oracles_by_head import adakv, defensive, kvzip, lava, layer_defensive, probe_max


def full(prompt: Prompt, budget: int) -> Kept:
    return [[list(range(prompt.start, prompt.length)) for _ in prompt.kv_heads] for _ in prompt.layers]


def streaming_llm(prompt: Prompt, budget: int, n_sink: int = 4) -> Kept:
    """The first ``n_sink`` and the last ``budget - n_sink`` columns; arXiv 2309.17453."""
    sinks = list(range(prompt.start, prompt.start + n_sink))
    recent = list(range(prompt.length - budget + n_sink, prompt.length))
    return [[sinks + recent for _ in prompt.kv_heads] for _ in prompt.layers]


def tova(prompt: Prompt, budget: int) -> Kept:
    """The last row's attention, mean over all heads of the layer, nothing protected; arXiv 2401.06104."""
    columns = range(prompt.start, prompt.length)
    scores = []
    for layer in prompt.layers:
        rows = [own_rows(prompt, layer, h, prompt.length - 1, columns)[0] for h in prompt.heads]
        scores.append([mean_rows(rows) for _ in prompt.kv_heads])
    return keep(prompt, scores, equal_heads(prompt, [budget] * len(scores)), 0)


def h2o(prompt: Prompt, budget: int, recent: int | None = None, group: str = "mean") -> Kept:
    """Attention summed over all rows of the prompt; half the budget is recent; arXiv 2306.14048."""
    tail = budget // 2 if recent is None else recent
    columns = range(prompt.start, prompt.length - tail)
    scores = []
    for layer in prompt.layers:
        rows = [own_rows(prompt, layer, h, prompt.start, columns) for h in prompt.heads]
        scores.append(grouped(prompt, [[sum(c) for c in zip(*head, strict=True)] for head in rows], group))
    return keep(prompt, scores, equal_heads(prompt, [budget - tail] * len(scores)), tail)


def snapkv(
    prompt: Prompt,
    budget: int,
    window: int = 32,
    window_source: str = "last",
    kernel: int = 5,
    pooling: str = "avg",
    group: str = "mean",
    group_first: bool = False,
) -> Kept:
    scores = snapkv_scores(prompt, window, window_source, kernel, pooling, group, group_first)
    return keep(prompt, scores, equal_heads(prompt, [budget - window] * len(scores)), window)


def pyramidkv(
    prompt: Prompt,
    budget: int,
    window: int = 8,
    kernel: int = 7,
    pooling: str = "max",
    beta: int = 20,
    allocator: str = "waterfill",
) -> Kept:
    """Budgets that fall from the lowest layer to the highest; arXiv 2406.02069, KVCache-Factory c97f9d7."""
    scores = snapkv_scores(prompt, window, "last", kernel, pooling, "mean", False)
    mean, num, n = budget - window, len(scores), len(scores[0][0])
    low = mean // beta
    high = 2 * mean - low
    if high >= n:
        high, low = n, 2 * mean - n
    if allocator == "waterfill":
        decay = [Fraction(high * (num - 1 - layer) + low * layer, num - 1) for layer in range(num)]
        budgets = water([float(weight) for weight in decay], mean * num, n)
    elif n + window < 2 * mean:
        budgets = [mean] * num
    else:
        budgets = [high - layer * ((high - low) // (num - 1)) for layer in range(num)]
    return keep(prompt, scores, equal_heads(prompt, budgets), window)


def cake_layers(
    prompt: Prompt, window: int, source: str, kernel: int, gamma: float, tau1: float, tau2: float
) -> tuple[list[Score], list[float]]:
    """Indicator ``mean + gamma * variance`` and preference ``H^(1/tau1) V^(1/tau2)``; arXiv 2503.12491."""
    scores, preferences = [], []
    for layer in prompt.layers:
        entropy = shift = 0.0
        parts = []
        for heads in windows(prompt, layer, window, source):
            indicator = []
            for rows in heads:
                entropy -= sum(a * math.log(a + 1e-10) for row in rows for a in row)
                variances = variance_rows(rows)
                shift += sum(variances)
                values = [mean + gamma * var for mean, var in zip(mean_rows(rows), variances, strict=True)]
                indicator.append(pooled(values, kernel, "avg"))
            parts.append(grouped(prompt, indicator, "mean"))
        scores.append(largest_of(parts))
        preferences.append(entropy ** (1 / tau1) * shift ** (1 / tau2))
    return scores, preferences


def adjust_budgets(preferences: Sequence[float], total: int, capacity: int) -> list[int]:
    """The published allocation, as policies.md 1.2 words it; float32, integers exact."""
    running = np.float32(0)
    for preference in preferences:
        running = np.float32(running + np.float32(preference))
    shares = [np.float32(np.float32(p) / running) * np.float32(total) for p in preferences]
    budgets = [int(share) for share in shares]
    excess = sum(b - capacity for b in budgets if b > capacity)
    budgets = [min(b, capacity) for b in budgets]
    for missing in (excess, None):
        amount = total - sum(budgets) if missing is None else missing
        chosen = [i for i, b in enumerate(budgets) if (b < capacity if amount > 0 else b > 1)]
        for order, i in enumerate(chosen):
            step = abs(amount) // len(chosen) + (order < abs(amount) % len(chosen))
            budgets[i] += step if amount > 0 else -step
    return budgets


def cake_rows(preferences: Sequence[float], total: int, n: int, allocator: str, cascade: bool) -> list[int]:
    """Rows per layer. The cascade cuts the layers seen so far after every layer, and nothing comes back."""
    if allocator == "waterfill":
        return water(preferences, total, n)
    held: list[int] = []
    for m in range(len(preferences)) if cascade else [len(preferences) - 1]:
        budgets = adjust_budgets(preferences[: m + 1], total, n)
        held += [n] * (m + 1 - len(held))
        held = [min(have, budget) for have, budget in zip(held, budgets, strict=True)]
    return held


def cake(
    prompt: Prompt,
    budget: int,
    window: int = 32,
    window_source: str = "last",
    kernel: int = 5,
    gamma: float = 200.0,
    tau1: float = 1.0,
    tau2: float = 1.0,
    allocator: str = "waterfill",
    cascade: bool = True,
) -> Kept:
    scores, preferences = cake_layers(prompt, window, window_source, kernel, gamma, tau1, tau2)
    total = (budget - window) * len(scores)
    budgets = cake_rows(preferences, total, len(scores[0][0]), allocator, cascade)
    return keep(prompt, scores, equal_heads(prompt, budgets), window)


def cake_defensive(
    prompt: Prompt,
    budget: int,
    window: int = 32,
    gamma: float = 200.0,
    tau1: float = 1.0,
    tau2: float = 1.0,
    allocator: str = "waterfill",
) -> Kept:
    """CAKE's rows per layer, the defensive score inside a layer."""
    _, preferences = cake_layers(prompt, window, "last", 5, gamma, tau1, tau2)
    n, total = prompt.length - prompt.start - window, (budget - window) * len(preferences)
    return defensive(prompt, budget, window, layer_budgets=cake_rows(preferences, total, n, allocator, True))


ORACLES: dict[str, Callable[..., Kept]] = {
    "cake": cake,
    "cake_defensive": cake_defensive,
    "snapkv": snapkv,
    "pyramidkv": pyramidkv,
    "h2o": h2o,
    "tova": tova,
    "streaming_llm": streaming_llm,
    "adakv": adakv,
    "lava": lava,
    "defensive": defensive,
    "layer_defensive": layer_defensive,
    "kvzip": kvzip,
    "probe_max": probe_max,
    "full": full,
}
