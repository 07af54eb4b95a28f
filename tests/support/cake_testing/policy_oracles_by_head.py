"""The oracles of policies whose heads keep different numbers of tokens; see ``policy_oracles``."""

import math
from collections.abc import Sequence

import numpy as np

from cake_testing.policy_oracle_parts import (
    Kept,
    Prompt,
    Score,
    best,
    best_cells,
    counts_of,
    grouped,
    keep,
    largest_of,
    mean_rows,
    pass_rows,
    pooled,
    snapkv_scores,
    water,
    windows,
)


def adaptive_heads(score: Score, layer_budget: int, alpha: float, floor: int, allocator: str) -> list[int]:
    """Heads compete for ``Hkv * layer_budget`` entries; Ada-KV, arXiv 2407.11550, algorithm 1.

    ``reference``: counts of the flattened best, shrunk by ``1 - alpha``, plus a floor, rounded half to even, as
    FFY0/AdaKV efe4e2e does. ``waterfill``: each head's first ``alpha * layer_budget`` are safe, the rest compete.
    """
    heads, n = len(score), len(score[0])
    if allocator == "reference":
        if layer_budget >= n:
            return [n] * heads
        counts = counts_of(best_cells([score], heads * layer_budget), 1, heads)[0]
        return [min(round(float(np.float32(count) * np.float32(1 - alpha)) + floor), n) for count in counts]
    safe = int(alpha * layer_budget)
    held = {(0, m, j) for m, row in enumerate(score) for j in best(row, safe)}
    order = best_cells([score], heads * n)
    rest = sorted(order - held, key=lambda c: (-score[c[1]][c[2]], c[2], c[1]))
    return counts_of([*held, *rest[: heads * layer_budget - len(held)]], 1, heads)[0]


def adakv(
    prompt: Prompt,
    budget: int,
    window: int = 32,
    kernel: int = 7,
    pooling: str = "max",
    group: str = "mean",
    floor_alpha: float = 0.2,
    normalize: bool = False,
    allocator: str = "waterfill",
) -> Kept:
    scores = snapkv_scores(prompt, window, "last", kernel, pooling, group, False)
    mean, counts = budget - window, []
    for score in scores:
        weighted = score
        if normalize:
            shares = [sum(sorted(row)[-mean:]) / sum(row) for row in score]
            weighted = [[share * value for value in row] for share, row in zip(shares, score, strict=True)]
        counts.append(adaptive_heads(weighted, mean, floor_alpha, int(floor_alpha * mean), allocator))
    return keep(prompt, scores, counts, window)


def lava(
    prompt: Prompt,
    budget: int,
    window: int = 32,
    kernel: int = 7,
    pooling: str = "max",
    floor_alpha: float = 0.2,
    allocator: str = "waterfill",
) -> Kept:
    """Pooled attention times the largest L1 norm of the head's values; arXiv 2509.09754, Lava 71d3cc8."""
    scores, entropies = [], []
    for layer in prompt.layers:
        attention = windows(prompt, layer, window, "last")[0]
        pools = grouped(prompt, [pooled(mean_rows(rows), kernel, pooling) for rows in attention], "max")
        values = [prompt.v[layer, m, prompt.start : prompt.length - window] for m in prompt.kv_heads]
        norms = [max(sum(abs(float(x)) for x in value) for value in rows) for rows in values]
        scores.append([[norm * value for value in row] for norm, row in zip(norms, pools, strict=True)])
        flat = [value for row in scores[-1] for value in row]
        shares = [value / (sum(flat) + 1e-16) for value in flat]
        entropies.append(-sum(p * math.log(p + 1e-16) for p in shares) / math.log(len(flat)))
    n, total = len(scores[0][0]), (budget - window) * len(scores)
    if allocator == "reference":
        budgets = [min(int(e / sum(entropies) * total), n) for e in entropies]
    else:
        budgets = water(entropies, total, n)
    # The published floor is a share of the whole budget, window included (policies.md 2.4 #2).
    floor = int(floor_alpha * budget)
    counts = [
        adaptive_heads(score, count, floor_alpha, floor, allocator)
        for score, count in zip(scores, budgets, strict=True)
    ]
    return keep(prompt, scores, counts, window)


def output_norms(prompt: Prompt, layer: int, columns: range) -> Score:
    """[Hkv][n]: mean over the group of the L1 norm of ``v W_O``, each column divided by its sum over KV heads."""
    norms = []
    for m in prompt.kv_heads:
        heads = prompt.group(m)
        norms.append(
            [
                sum(sum(abs(float(x)) for x in prompt.v[layer, m, j] @ prompt.w_o[layer, h]) for h in heads)
                / len(heads)
                for j in columns
            ]
        )
    return [[value / sum(column) for value, column in zip(row, zip(*norms, strict=True), strict=True)] for row in norms]


def defensive_scores(
    prompt: Prompt, window: int, source: str, kernel: int, forced_mass: float, limit: int
) -> tuple[list[Score], list[set[tuple[int, int]]]]:
    """Worst case over rows and group, times output norm, and the forced (m, j); arXiv 2510.13334, 9251b95."""
    scores, forced = [], []
    for layer in prompt.layers:
        seen = windows(prompt, layer, window, source)
        peaks = []
        for heads in seen:
            for rows in heads:
                smooth = [(row, pooled(row, kernel, "avg")) for row in rows]
                peaks.append([[a * sum(row) / sum(after) for a in after] for row, after in smooth])
        by_head = [[max(cells) for cells in zip(*rows, strict=True)] for rows in peaks]
        num = len(prompt.heads)
        peak = grouped(prompt, largest_of([by_head[i : i + num] for i in range(0, len(by_head), num)]), "max")
        norms = output_norms(prompt, layer, range(prompt.start, prompt.length - window))
        scores.append(
            [
                [max(value, sum(row) / len(row)) * norm for value, norm in zip(row, line, strict=True)]
                for row, line in zip(peak, norms, strict=True)
            ]
        )
        means = [grouped(prompt, [mean_rows(rows) for rows in heads], "mean") for heads in seen]
        mean = [[sum(cells) / len(means) for cells in zip(*part, strict=True)] for part in zip(*means, strict=True)]
        forced.append(forced_cells(mean, window, forced_mass, limit))
    return scores, forced


def forced_cells(mean: Score, window: int, forced_mass: float, limit: int) -> set[tuple[int, int]]:
    """As published: stop before the token that reaches ``forced_mass - bias`` of the head's mean attention.

    ``bias``, one number per layer, is the attention of the last W candidates, mean over heads and rows.
    """
    if forced_mass == 0:
        return set()
    bias = sum(sum(row[-window:]) for row in mean) / len(mean)
    result = set()
    for m, row in enumerate(mean):
        held = 0.0
        for j in best(row, len(row))[:limit]:
            held += row[j] / sum(row)
            if held >= forced_mass - bias:
                break
            result.add((m, j))
    return result


def lift(score: Score, cells: set[tuple[int, int]], ordered: bool = False) -> Score:
    """Forced cells get the largest score, or with ``ordered`` that much more, which keeps their order."""
    top = max(map(max, score))
    return [
        [(top + value if ordered else top) if (m, j) in cells else value for j, value in enumerate(row)]
        for m, row in enumerate(score)
    ]


def defensive(
    prompt: Prompt,
    budget: int,
    window: int = 32,
    window_source: str = "last",
    kernel: int = 5,
    forced_mass: float = 0.9,
    layer_budgets: Sequence[int] | None = None,
) -> Kept:
    """The heads of a layer compete for its rows."""
    mean = budget - window
    scores, forced = defensive_scores(prompt, window, window_source, kernel, forced_mass, mean)
    counts, lifted = [], []
    for score, cells, rows in zip(scores, forced, layer_budgets or [mean] * len(scores), strict=True):
        lifted.append(lift(score, cells, ordered=layer_budgets is not None))
        counts += counts_of(best_cells([lifted[-1]], rows * len(score)), 1, len(score))
    return keep(prompt, lifted, counts, window)


def layer_defensive(
    prompt: Prompt,
    budget: int,
    window: int = 32,
    window_source: str = "last",
    kernel: int = 5,
    forced_mass: float = 0.9,
) -> Kept:
    """One competition over all layers and heads; a forced cell has the largest score of its layer."""
    mean = budget - window
    scores, forced = defensive_scores(prompt, window, window_source, kernel, forced_mass, mean)
    lifted = [lift(score, cells) for score, cells in zip(scores, forced, strict=True)]
    heads = len(prompt.kv_heads)
    counts = counts_of(best_cells(lifted, mean * heads * len(scores)), len(scores), heads)
    return keep(prompt, lifted, counts, window)


def probe_max(prompt: Prompt, budget: int, window: int = 32, kernel: int = 5) -> Kept:
    """Several probes, worst case over probes and rows, no forced tokens, one competition."""
    return layer_defensive(prompt, budget, window, "probes", kernel, 0.0)


def kvzip(prompt: Prompt, budget: int, recent: int = 0, value_weight: bool = False) -> Kept:
    """Largest attention over group and rows of the repetition; one competition; arXiv 2505.23416."""
    columns = range(prompt.start, prompt.length - recent)
    scores: list[Score] = []
    for layer in prompt.layers:
        peak = [[0.0] * len(columns) for _ in prompt.heads]
        for index, ran in enumerate(prompt.passes):
            for h in prompt.heads:
                for row in pass_rows(prompt, index, layer, h, columns):
                    peak[h] = [
                        max(before, a) if ran.scored[0] <= j < ran.scored[1] else before
                        for before, a, j in zip(peak[h], row, columns, strict=True)
                    ]
        score = grouped(prompt, peak, "max")
        if value_weight:
            norms = output_norms(prompt, layer, columns)
            score = [[x * y for x, y in zip(*pair, strict=True)] for pair in zip(score, norms, strict=True)]
        scores.append(score)
    heads = len(prompt.kv_heads)
    counts = counts_of(best_cells(scores, (budget - recent) * heads * len(scores)), len(scores), heads)
    return keep(prompt, scores, counts, recent)
