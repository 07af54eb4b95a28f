"""CPU attention: the same numbers as SGLang's own backend, and an independent float64 definition."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from cake_sglang.runtime.backends.torch_native_backend import (
    ROWS_PER_BLOCK,
    CakeTorchNativeBackend,
    attend_new_rows,
    attend_runs,
    find_runs,
)

pytestmark = pytest.mark.sglang
TOLERANCE = 1e-4  # float32; the order of sums differs between one padded pass and blocks


def dense_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first_row: int) -> torch.Tensor:
    """Oracle in float64, written from the definition: row i of the sequence sees keys 0..i."""
    group = query.shape[1] // key.shape[1]
    k = key.double().repeat_interleave(group, dim=1)
    v = value.double().repeat_interleave(group, dim=1)
    out = torch.empty(query.shape[0], query.shape[1], value.shape[2], dtype=torch.float64)
    for i in range(query.shape[0]):
        visible = first_row + i + 1
        scores = torch.einsum("hd,nhd->hn", query[i].double(), k[:visible]) / math.sqrt(query.shape[2])
        out[i] = torch.einsum("hn,nhd->hd", torch.softmax(scores, -1), v[:visible])
    return out


def scattered_pool(lengths: list[int], *, scatter: bool) -> dict[str, Any]:
    """A pool of slots with the KV of several requests, in runs of 7 slots or in one run each."""
    torch.manual_seed(7)
    total = sum(lengths) + 64
    rows = torch.zeros(len(lengths), max(lengths), dtype=torch.int32)
    order = torch.cat(list(torch.arange(1, total).split(7))[::-1]) if scatter else torch.arange(1, total)
    used = 0
    for i, length in enumerate(lengths):
        rows[i, :length] = order[used : used + length].int()
        used += length
    return {
        "rows": rows,
        "key": torch.randn(total, 3, 64),
        "value": torch.randn(total, 3, 64),
        "indices": torch.arange(len(lengths)),
        "seq_lens": torch.tensor(lengths),
    }


def backend(pool: dict[str, Any]) -> CakeTorchNativeBackend:
    cake = CakeTorchNativeBackend(
        SimpleNamespace(
            device="cpu",
            req_to_token_pool=SimpleNamespace(req_to_token=pool["rows"]),
            token_to_kv_pool=SimpleNamespace(),
        )
    )
    batch = SimpleNamespace(req_pool_indices=pool["indices"], seq_lens=pool["seq_lens"], out_cache_loc=None)
    cake.init_forward_metadata(batch)
    return cake


def run(which: Any, pool: dict[str, Any], query: torch.Tensor, new_rows: list[int] | None) -> torch.Tensor:
    output = torch.full_like(query, float("nan"))
    common = {"scaling": 64**-0.5, "enable_gqa": True, "causal": new_rows is not None}
    base = (query, output, pool["key"], pool["value"], pool["rows"], pool["indices"], pool["seq_lens"])
    if new_rows is None:
        return which._run_sdpa_forward_decode(*base, **common)
    lens = torch.tensor(new_rows)
    return which._run_sdpa_forward_extend(*base, pool["seq_lens"] - lens, lens, **common)


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize(
    ("lengths", "new_rows"), [([30], [30]), ([300], [1]), ([300, 77, 64], [30, 77, 63]), ([1], [1])]
)
def test_an_extend_gives_the_same_rows_as_sglangs_padded_pass(
    lengths: list[int], new_rows: list[int], scatter: bool
) -> None:
    pool = scattered_pool(lengths, scatter=scatter)
    cake = backend(pool)
    query = torch.randn(sum(new_rows), 9, 64)
    stock = TorchNativeAttnBackend.__new__(TorchNativeAttnBackend)
    torch.testing.assert_close(
        run(cake, pool, query, new_rows), run(stock, pool, query, new_rows), atol=TOLERANCE, rtol=TOLERANCE
    )
    assert cake.stock_calls == 0


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("lengths", [[1], [50, 7, 300], [64, 65, 63]])
def test_a_decode_step_gives_the_same_rows_as_sglangs_copying_pass(lengths: list[int], scatter: bool) -> None:
    pool = scattered_pool(lengths, scatter=scatter)
    query = torch.randn(len(lengths), 9, 64)
    stock = TorchNativeAttnBackend.__new__(TorchNativeAttnBackend)
    torch.testing.assert_close(
        run(backend(pool), pool, query, None), run(stock, pool, query, None), atol=TOLERANCE, rtol=TOLERANCE
    )


@pytest.mark.parametrize("num_rows", [1, 31, ROWS_PER_BLOCK, ROWS_PER_BLOCK + 1])
@pytest.mark.parametrize("prefix", [0, 1, 63, 200])
def test_new_rows_equal_the_definition_in_float64(num_rows: int, prefix: int) -> None:
    torch.manual_seed(num_rows + prefix)
    query = torch.randn(num_rows, 6, 16)
    key, value = torch.randn(prefix + num_rows, 2, 16), torch.randn(prefix + num_rows, 2, 8)
    got = attend_new_rows(query, key, value, scaling=None)
    torch.testing.assert_close(got.double(), dense_attention(query, key, value, prefix), atol=TOLERANCE, rtol=TOLERANCE)


def test_runs_of_slots_are_read_in_token_order() -> None:
    torch.manual_seed(0)
    key, value = torch.randn(40, 2, 16), torch.randn(40, 2, 8)
    runs = ((30, 40), (3, 9), (20, 21))
    order = torch.cat([torch.arange(start, end) for start, end in runs])
    query = torch.randn(1, 6, 16)
    got = attend_runs(query[0], key, value, runs, scaling=0.25)
    expected = dense_attention(query, key[order], value[order], len(order) - 1)[0]
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("slots", "runs"),
    [
        ([5], ((5, 6),)),
        ([5, 6, 7], ((5, 8),)),
        ([5, 6, 9, 10, 2], ((5, 7), (9, 11), (2, 3))),
        ([3, 2, 1], ((3, 4), (2, 3), (1, 2))),
    ],
)
def test_consecutive_slots_are_joined_into_runs(slots: list[int], runs: tuple[tuple[int, int], ...]) -> None:
    assert find_runs(torch.tensor(slots, dtype=torch.int32)) == runs


def test_sliding_windows_go_to_sglang_and_are_counted() -> None:
    pool = scattered_pool([20], scatter=False)
    cake = backend(pool)
    query = torch.randn(1, 9, 64)
    cake._run_sdpa_forward_decode(
        query, torch.empty_like(query), pool["key"], pool["value"], pool["rows"], pool["indices"],
        pool["seq_lens"], scaling=0.125, enable_gqa=True, sliding_window_size=4,
    )  # fmt: skip
    assert cake.stock_calls == 1
