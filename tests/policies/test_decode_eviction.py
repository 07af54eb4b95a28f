"""Eviction while decoding, against the rule in plain steps; a recorded run of the published code is in tests/golden."""

import math

import numpy as np
import pytest
import torch

from cake_sglang.decode_eviction import evict_step, row_attention
from cake_sglang.errors import PolicyError


def softmax_row(q: np.ndarray, k: np.ndarray, scale: float, softcap: float | None = None) -> np.ndarray:
    group = q.shape[0] // k.shape[0]
    rows = []
    for head in range(q.shape[0]):
        logits = [float(q[head] @ key) * scale for key in k[head // group]]
        if softcap is not None:
            logits = [softcap * math.tanh(logit / softcap) for logit in logits]
        exponentials = [math.exp(logit - max(logits)) for logit in logits]
        rows.append([value / sum(exponentials) for value in exponentials])
    return np.array(rows)


def oracle(q: np.ndarray, k: np.ndarray, budget: int, window: int, kernel: int) -> list[list[int]]:
    """Rows kept by each KV head: the best by pooled, group-averaged attention first, then the window."""
    weights = softmax_row(q, k, q.shape[1] ** -0.5)
    group, count = q.shape[0] // k.shape[0], k.shape[1] - window
    kept = []
    for head in range(k.shape[0]):
        score = np.zeros(count)
        for row in weights[head * group : (head + 1) * group]:
            padded = np.concatenate([np.zeros(kernel // 2), row[:count], np.zeros(kernel // 2)])
            score += np.array([padded[i : i + kernel].sum() / kernel for i in range(count)]) / group
        best = sorted(range(count), key=lambda column: (-score[column], column))[:budget]
        kept.append(best + list(range(count, k.shape[1])))
    return kept


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (7, 1)])
@pytest.mark.parametrize("budget, window, kernel", [(10, 4, 5), (0, 3, 5), (5, 1, 1), (25, 4, 7)])
def test_the_best_by_pooled_attention_stay_and_then_the_window(
    heads: int, kv_heads: int, budget: int, window: int, kernel: int
) -> None:
    generator = np.random.default_rng(budget)
    q, k = generator.normal(size=(heads, 8)), generator.normal(size=(kv_heads, 30, 8))
    found = evict_step(torch.from_numpy(q), torch.from_numpy(k), budget, window, kernel=kernel)
    assert found.dtype == torch.int64
    assert found.tolist() == oracle(q, k, budget, window, kernel)


@pytest.mark.parametrize("num_rows", [1, 13, 14])
def test_nothing_is_evicted_up_to_budget_and_window(num_rows: int) -> None:
    found = evict_step(torch.randn(4, 8), torch.randn(2, num_rows, 8), 10, 4)
    assert found.tolist() == [list(range(num_rows))] * 2


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_row_attention_is_the_softmax_over_all_keys(softcap: float | None) -> None:
    generator = np.random.default_rng(3)
    q, k = generator.normal(size=(6, 8)), generator.normal(size=(2, 20, 8))
    found = row_attention(torch.from_numpy(q), torch.from_numpy(k), 0.7, softcap)
    np.testing.assert_allclose(found.numpy(), softmax_row(q, k, 0.7, softcap), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": -1}, "budget is -1, expected an integer of at least 0"),
        ({"budget": 2.0}, "budget is 2.0, expected an integer"),
        ({"window": 0}, "window is 0, expected an integer of at least 1"),
        ({"kernel": 4}, "kernel is 4, expected an odd integer"),
        ({"kernel": 0}, "kernel is 0, expected an integer of at least 1"),
        ({"q": torch.full((4, 8), float("nan"))}, "q holds NaN or infinity"),
        ({"k": torch.full((2, 30, 8), float("inf"))}, "k holds NaN or infinity"),
        ({"q": torch.randn(4, 8).half()}, "q is torch.float16 on cpu, k is torch.float32 on cpu"),
        ({"q": torch.randn(4, 8, device="meta")}, "q is torch.float32 on meta"),
        ({"q": torch.randn(4, 7)}, r"q is \[4, 7\] and k \[2, 30, 8\]"),
        ({"q": torch.randn(5, 8)}, "q has 5 query heads, expected a multiple of the 2 KV heads"),
    ],
)
def test_values_out_of_range_are_refused(arguments: dict, message: str) -> None:
    values = {"q": torch.randn(4, 8), "k": torch.randn(2, 30, 8), "budget": 5, "window": 4, **arguments}
    with pytest.raises(PolicyError, match=message):
        evict_step(**values)
