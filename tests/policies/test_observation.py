"""What a window sees and scores, and observations that cannot be; shapes and dtypes are in ``test_policy_fields``."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from cake_sglang.errors import PolicyError
from cake_sglang.observation import LayerObservation, Window

TOKENS = 60


def keys(heads: int = 2, **options: Any) -> torch.Tensor:
    return torch.randn(heads, TOKENS, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64, **options)


def window(**changes: Any) -> Window:
    q = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return replace(Window(q, torch.arange(TOKENS - 3, TOKENS)), **changes)


def mean_attention(observed: Window, columns: list[int], low: int, high: int, k: torch.Tensor) -> list[list[float]]:
    """[Hq][high - low] with a softmax over ``columns`` alone, row by row."""
    result = []
    for h in range(4):
        totals = [0.0] * (high - low)
        for row, position in zip(observed.q[h], observed.q_pos.tolist(), strict=True):
            seen = [j for j in columns if j <= position]
            weights = {j: math.exp(float(row @ k[h // 2, j]) / math.sqrt(8)) for j in seen}
            for j in range(low, high):
                totals[j - low] += weights.get(j, 0.0) / sum(weights.values()) / 3
        result.append(totals)
    return result


@pytest.mark.parametrize(
    "attended",
    [
        ((0, 60),),
        # Few columns, and more than half of them: these take different ways.
        ((10, 22), (40, 50)),
        ((0, 4), (10, 22), (58, 60)),
        ((0, 4), (6, 59)),
        ((5, 60),),
    ],
)
def test_a_window_sees_its_attended_columns_alone_and_scores_those_asked_for(attended: tuple[tuple[int, int], ...]):
    observed = window(attended=attended, scored=(12, 20))
    layer = LayerObservation(0, keys(), (observed,))
    columns = [j for start, stop in attended for j in range(start, stop)]
    stats = layer.statistics(observed, (0, TOKENS), frozenset({"mean"}))
    assert stats.mean is not None
    expected = torch.tensor(mean_attention(observed, columns, 12, 20, layer.k), dtype=torch.float64)
    torch.testing.assert_close(stats.mean, expected)


def test_a_window_that_scores_columns_which_it_does_not_see_is_refused():
    """Without ``scored`` these are the compressed ones."""
    with pytest.raises(
        PolicyError, match=r"windows\[0\].scored is \(0, 60\), expected a part of one of \(\(20, 60\),\)"
    ):
        LayerObservation(0, keys(), (window(attended=((20, 60),)),))
    with pytest.raises(PolicyError, match=r"windows\[0\].scored is \(10, 30\), expected a part of one of"):
        LayerObservation(0, keys(), (window(attended=((0, 4), (20, 60))),), compressed=(10, 30))
    assert LayerObservation(0, keys(), (window(attended=((0, 4), (20, 60))),), compressed=(20, 30)).num_compressed == 10


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_without_windows_the_output_projection_may_have_any_multiple_of_the_kv_heads(heads: int):
    layer = LayerObservation(0, keys(), w_o=torch.ones(heads, 8, 16, dtype=torch.float64))
    assert layer.num_query_heads == heads


@pytest.mark.parametrize("heads", [1, 3, 0])
def test_an_output_projection_whose_heads_do_not_divide_is_refused(heads: int):
    with pytest.raises(PolicyError, match=f"w_o has {heads} heads, expected a multiple of the 2 KV heads"):
        LayerObservation(0, keys(), w_o=torch.ones(heads, 8, 16, dtype=torch.float64))


def test_with_windows_the_output_projection_has_their_query_heads():
    with pytest.raises(PolicyError, match=r"w_o has shape \[8, 8, 16\], expected \[Hq, D, hidden\] = \[4, 8, hidden\]"):
        LayerObservation(0, keys(), (window(),), w_o=torch.ones(8, 8, 16, dtype=torch.float64))


def test_windows_of_different_query_heads_are_refused():
    other = Window(torch.zeros(2, 3, 8, dtype=torch.float64), torch.arange(3))
    with pytest.raises(PolicyError, match=r"windows\[1\].q has 2 query heads, windows\[0\].q has 4"):
        LayerObservation(0, keys(), (window(), other))


def test_keys_on_a_device_that_holds_no_values_are_refused():
    with pytest.raises(PolicyError, match="k is on meta, which holds no values; expected a device that does"):
        LayerObservation(0, torch.zeros(2, TOKENS, 8, device="meta"))


def test_scale_and_softcap_reach_the_attention():
    observed = window()
    layer = LayerObservation(0, keys(), (observed,), scale=0.2, softcap=1.5)
    stats = layer.statistics(observed, (0, TOKENS), frozenset({"maximum"}))
    logits = torch.tanh(observed.q[0, 2] @ layer.k[0].T * 0.2 / 1.5) * 1.5
    assert stats.maximum is not None
    # Only the last row sees the last column.
    assert float(stats.maximum[0, -1]) == pytest.approx(float(logits.softmax(0)[-1]))
