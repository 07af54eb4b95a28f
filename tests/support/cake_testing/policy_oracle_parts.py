"""What the policies' oracles share: a prompt, attention, pooling, groups, the best entries, and the filling of layers.

Nothing here comes from the package. Indices: h query head, m KV head, i query row, j column.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy import ndarray

Kept = list[list[list[int]]]
Rows = list[list[int]]
Score = list[list[float]]


@dataclass(frozen=True)
class Pass:
    """Tokens that ran after the prompt for scoring only: a probe, or one chunk of a repetition.

    They see the prompt's columns ``seen`` and each other causally, and score the columns ``scored``.
    """

    q: ndarray  # [L, Hq, R, D]
    k: ndarray  # [L, Hkv, R, D]
    seen: tuple[tuple[int, int], ...]
    scored: tuple[int, int]


@dataclass(frozen=True)
class Prompt:
    """A prompt's attention inputs; the columns from ``start`` on are compressed, those before are only attended."""

    q: ndarray  # [L, Hq, S, D]
    k: ndarray  # [L, Hkv, S, D]
    v: ndarray  # [L, Hkv, S, D]
    w_o: ndarray  # [L, Hq, D, hidden]
    start: int = 0
    passes: tuple[Pass, ...] = ()

    @property
    def layers(self) -> range:
        return range(len(self.q))

    @property
    def heads(self) -> range:
        return range(self.q.shape[1])

    @property
    def kv_heads(self) -> range:
        return range(self.k.shape[1])

    @property
    def length(self) -> int:
        return self.k.shape[2]

    def group(self, m: int) -> list[int]:
        size = len(self.heads) // len(self.kv_heads)
        return [m * size + member for member in range(size)]


def random_prompt(
    seed: int,
    *,
    layers: int = 3,
    heads: int = 6,
    kv_heads: int = 2,
    length: int = 72,
    start: int = 5,
    probe_rows: Sequence[int] = (3, 5),
    repeat_chunk: int = 0,
    dim: int = 8,
) -> Prompt:
    """Layers differ in how peaked their attention is, so that budgets differ."""
    draw = np.random.default_rng(seed)
    sharp = draw.uniform(0.5, 2.5, size=(layers, 1, 1, 1))

    def queries(rows: int) -> ndarray:
        return draw.normal(size=(layers, heads, rows, dim)) * sharp

    def keys(rows: int) -> ndarray:
        return draw.normal(size=(layers, kv_heads, rows, dim))

    whole = ((0, length),)
    passes = [Pass(queries(rows), keys(rows), whole, (start, length)) for rows in probe_rows]
    if repeat_chunk:
        chunks = [(low, min(low + repeat_chunk, length)) for low in range(start, length, repeat_chunk)]
        passes = [Pass(queries(3), keys(3), ((0, start), chunk) if start else (chunk,), chunk) for chunk in chunks]
    w_o = draw.normal(size=(layers, heads, dim, 12))
    return Prompt(queries(length), keys(length), keys(length), w_o, start, tuple(passes))


# What the methods share: attention, pooling, groups, best entries.


def softmax_row(q: ndarray, keys: ndarray) -> list[float]:
    logits = [float(np.dot(key, q)) / math.sqrt(len(q)) for key in keys]
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def own_rows(prompt: Prompt, layer: int, h: int, first: int, columns: range) -> Score:
    """[S - first][columns]: rows from ``first`` to the end over all columns up to their own."""
    keys = prompt.k[layer, h // (len(prompt.heads) // len(prompt.kv_heads))]
    rows = [
        softmax_row(prompt.q[layer, h, i], keys[: i + 1]) + [0.0] * prompt.length for i in range(first, prompt.length)
    ]
    return [[row[j] for j in columns] for row in rows]


def pass_rows(prompt: Prompt, index: int, layer: int, h: int, columns: range) -> list[list[float]]:
    """[R][columns]: what the rows of one pass pay to ``columns``, 0 for what they do not see."""
    ran, m = prompt.passes[index], h // (len(prompt.heads) // len(prompt.kv_heads))
    seen = [j for low, high in ran.seen for j in range(low, high)]
    result = []
    for i in range(ran.q.shape[2]):
        keys = [prompt.k[layer, m, j] for j in seen] + [ran.k[layer, m, r] for r in range(i + 1)]
        weights = dict(zip(seen, softmax_row(ran.q[layer, h, i], np.array(keys)), strict=False))
        result.append([weights.get(j, 0.0) for j in columns])
    return result


def windows(prompt: Prompt, layer: int, window: int, source: str) -> list[list[list[list[float]]]]:
    """[windows][Hq][rows][n] attention to the candidates."""
    columns = range(prompt.start, prompt.length - window)
    if source == "last":
        return [[own_rows(prompt, layer, h, prompt.length - window, columns) for h in prompt.heads]]
    chosen = range(1) if source == "probe" else range(len(prompt.passes))
    return [[pass_rows(prompt, index, layer, h, columns) for h in prompt.heads] for index in chosen]


def mean_rows(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def variance_rows(rows: Sequence[Sequence[float]]) -> list[float]:
    means = mean_rows(rows)
    return [
        sum((a - mean) ** 2 for a in column) / (len(rows) - 1)
        for column, mean in zip(zip(*rows, strict=True), means, strict=True)
    ]


def pooled(values: Sequence[float], kernel: int, pooling: str) -> list[float]:
    half = kernel // 2
    near = [values[max(j - half, 0) : j + half + 1] for j in range(len(values))]
    return [max(part) if pooling == "max" else sum(part) / kernel for part in near]


def grouped(prompt: Prompt, score: Score, how: str) -> Score:
    """[Hq][n] to [Hkv][n]."""
    result = []
    for m in prompt.kv_heads:
        columns = zip(*(score[h] for h in prompt.group(m)), strict=True)
        result.append([max(c) if how == "max" else sum(c) / len(c) for c in columns])
    return result


def largest_of(scores: Iterable[Score]) -> Score:
    """Entrywise maximum."""
    return [[max(cells) for cells in zip(*heads, strict=True)] for heads in zip(*scores, strict=True)]


def best(score: Sequence[float], count: int) -> list[int]:
    return sorted(range(len(score)), key=lambda j: (-score[j], j))[:count]


def best_cells(scores: Sequence[Score], count: int) -> set[tuple[int, int, int]]:
    """(layer, m, j) of the best entries over layers and heads."""
    cells = [
        (layer, m, j) for layer, heads in enumerate(scores) for m, row in enumerate(heads) for j in range(len(row))
    ]
    return set(sorted(cells, key=lambda c: (-scores[c[0]][c[1]][c[2]], c[2], c[0], c[1]))[:count])


def counts_of(cells: Iterable[tuple[int, int, int]], layers: int, heads: int) -> Rows:
    counts = [[0] * heads for _ in range(layers)]
    for layer, m, _ in cells:
        counts[layer][m] += 1
    return counts


def keep(prompt: Prompt, scores: Sequence[Score], counts: Rows, tail: int) -> Kept:
    """The best of each head and the last ``tail`` columns."""
    end = list(range(prompt.length - tail, prompt.length))
    return [
        [sorted(prompt.start + j for j in best(row, count)) + end for row, count in zip(heads, layer, strict=True)]
        for heads, layer in zip(scores, counts, strict=True)
    ]


def equal_heads(prompt: Prompt, layer_budgets: Sequence[int]) -> Rows:
    return [[budget] * len(prompt.kv_heads) for budget in layer_budgets]


def water(weights: Sequence[float], total: int, capacity: int, minimum: int = 0) -> list[int]:
    """Token after token goes to the layer whose next half step lies lowest, ``(budget + 1/2) / weight``.

    The highest-averages form of Webster's method; ties go to the larger weight, then to the lower layer. Without a
    minimum, layers of weight zero share equally what the others have no room for.
    """
    exact = [Fraction(weight) for weight in weights]
    if 0 in exact:
        first = min(total, capacity * sum(weight > 0 for weight in exact))
        some = iter(water([weight for weight in weights if weight > 0], first, capacity) if any(exact) else [])
        rest = iter(water([1.0] * exact.count(Fraction(0)), total - first, capacity))
        return [next(some if weight > 0 else rest) for weight in exact]
    budgets = [minimum] * len(exact)
    waiting = [
        ((minimum + Fraction(1, 2)) / weight, -weight, i) for i, weight in enumerate(exact) if minimum < capacity
    ]
    heapq.heapify(waiting)
    for _ in range(min(total, capacity * len(exact)) - sum(budgets)):
        _, _, i = heapq.heappop(waiting)
        budgets[i] += 1
        if budgets[i] < capacity:
            heapq.heappush(waiting, ((budgets[i] + Fraction(1, 2)) / exact[i], -exact[i], i))
    return budgets


def snapkv_scores(
    prompt: Prompt, window: int, source: str, kernel: int, pooling: str, group: str, group_first: bool
) -> list[Score]:
    """Mean over the window's rows, pooled, reduced over the group; arXiv 2404.14469."""
    scores = []
    for layer in prompt.layers:
        seen = windows(prompt, layer, window, source)
        mean = largest_of([[mean_rows(rows) for rows in heads] for heads in seen])
        if group_first:
            scores.append([pooled(row, kernel, pooling) for row in grouped(prompt, mean, group)])
        else:
            scores.append(grouped(prompt, [pooled(row, kernel, pooling) for row in mean], group))
    return scores
