import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cake_kernels.errors import KernelInputError, UnsupportedDeviceError
from cake_kernels.window_stats import WindowStats, reference, window_stats
from cake_kernels.window_stats.cases import CASES, TOLERANCES, Case, compare
from cake_kernels.window_stats.result import ALL_STATS

ROOT = Path(__file__).resolve().parents[2]
# Of the op, in float64, against the oracle below.
TOLERANCE = 1e-10


def oracle_weights(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float | None, softcap: float | None
) -> Tensor:
    """[Hq, W, N] softmax weights in float64, one row after the other."""
    num_heads, num_rows, head_dim = q.shape
    group = num_heads // k.shape[0]
    weights = torch.zeros(num_heads, num_rows, k.shape[1], dtype=torch.float64)
    for head in range(num_heads):
        for row in range(num_rows):
            logits = k[head // group].double() @ q[head, row].double()
            logits = logits / head_dim**0.5 if scale is None else logits * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            seen = k_pos <= q_pos[row]
            weights[head, row, seen] = torch.softmax(logits[seen], dim=0)
    return weights


def oracle(
    q: Tensor,
    k: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    scored: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    pool_kernel: int = 5,
    **_: Any,
) -> dict[str, Tensor]:
    """All statistics, from the definition."""
    low, high = scored or (0, k.shape[1])
    weights = oracle_weights(q, k, q_pos, k_pos, scale, softcap)[:, :, low:high]
    num_rows, num_scored = weights.shape[1:]
    mean = sum(weights[:, row] for row in range(num_rows)) / num_rows
    squares = sum((weights[:, row] - mean) ** 2 for row in range(num_rows))
    pooled = torch.zeros_like(weights)
    for column in range(num_scored):
        first, last = column - pool_kernel // 2, column + pool_kernel // 2
        pooled[:, :, column] = weights[:, :, max(first, 0) : last + 1].sum(dim=2) / pool_kernel
    before, after = weights.sum(dim=2, keepdim=True), pooled.sum(dim=2, keepdim=True)
    pooled = torch.where(after > 0, pooled * before / after, pooled)
    return {
        "mean": torch.as_tensor(mean),
        "variance": torch.as_tensor(squares) / max(num_rows - 1, 1),
        "maximum": weights.max(dim=1).values,
        "pooled_maximum": pooled.max(dim=1).values,
        "entropy": -(weights * torch.log(weights + 1e-10)).sum(dim=(1, 2)),
    }


def inputs(heads: int = 2, kv_heads: int = 1, rows: int = 3, columns: int = 40, dim: int = 8) -> dict[str, Any]:
    """Arguments of a call in float64, all statistics; the window is the last rows."""
    generator = torch.Generator().manual_seed(heads * rows * columns)
    return {
        "q": torch.randn(heads, rows, dim, dtype=torch.float64, generator=generator),
        "k": torch.randn(kv_heads, columns, dim, dtype=torch.float64, generator=generator),
        "q_pos": torch.arange(columns - rows, columns),
        "k_pos": torch.arange(columns),
        "stats": ALL_STATS,
    }


def shuffled(arguments: dict[str, Any]) -> dict[str, Any]:
    order = torch.randperm(arguments["k"].shape[1], generator=torch.Generator().manual_seed(1))
    return {**arguments, "k": arguments["k"][:, order], "k_pos": order, "q_pos": arguments["q_pos"].flip(0)}


def strided(arguments: dict[str, Any]) -> dict[str, Any]:
    k = arguments["k"].transpose(0, 1).contiguous().transpose(0, 1)
    return {**arguments, "k": k, "q": arguments["q"].transpose(1, 2).contiguous().transpose(1, 2)}


SITUATIONS = {
    "one head": inputs(heads=1),
    "groups of 4": inputs(heads=8, kv_heads=2, rows=5),
    "two rows": inputs(rows=2),
    "one column": inputs(rows=2, columns=1) | {"q_pos": torch.tensor([0, 0])},
    "own scale": inputs() | {"scale": 0.7},
    "soft cap": inputs() | {"softcap": 0.5, "scale": 2.0},
    "scored in the middle": inputs() | {"scored": (7, 29)},
    "scored up to the window": inputs() | {"scored": (0, 37)},
    "one scored column": inputs() | {"scored": (12, 13)},
    "scored narrower than the pool": inputs() | {"scored": (12, 15), "pool_kernel": 9},
    "pool of 1": inputs() | {"pool_kernel": 1},
    "pool wider than all columns": inputs(columns=12) | {"pool_kernel": 31},
    "foreign queries at later positions": inputs() | {"q_pos": torch.tensor([1000, 90, 5000])},
    "a row that sees one key": inputs() | {"q_pos": torch.tensor([0, 1, 39])},
    "rows that see nothing scored": inputs() | {"q_pos": torch.tensor([3, 20, 39]), "scored": (10, 30)},
    "keys after every query": inputs() | {"q_pos": torch.tensor([9, 10, 11])},
    "positions in no order": shuffled(inputs()),
    "strided": strided(inputs(heads=4, kv_heads=2)),
}


@pytest.fixture(params=[3, 64, 1 << 20], ids=lambda columns: f"blocks of {columns}")
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_BYTES", 0)
    monkeypatch.setattr(reference, "MIN_BLOCK", request.param)


def assert_equals_oracle(arguments: dict[str, Any], result: WindowStats) -> None:
    for name, expected in oracle(**arguments).items():
        if name in arguments["stats"]:
            torch.testing.assert_close(getattr(result, name), expected, rtol=TOLERANCE, atol=TOLERANCE * 1e-3)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_reference_equals_the_definition_in_float64(situation: str):
    arguments = SITUATIONS[situation]
    before = arguments["q"].clone(), arguments["k"].clone()
    assert_equals_oracle(arguments, window_stats(**arguments))
    assert torch.equal(arguments["q"], before[0]) and torch.equal(arguments["k"], before[1])


@settings(max_examples=40, deadline=None)
@given(
    group=st.integers(1, 4),
    kv_heads=st.integers(1, 2),
    rows=st.integers(2, 6),
    columns=st.integers(1, 30),
    pool=st.sampled_from([1, 3, 5, 7, 31]),
    data=st.data(),
)
def test_the_reference_equals_the_definition_for_any_sizes(
    group: int, kv_heads: int, rows: int, columns: int, pool: int, data: st.DataObject
):
    low = data.draw(st.integers(0, columns - 1))
    high = data.draw(st.integers(low + 1, columns))
    arguments = inputs(group * kv_heads, kv_heads, rows, columns) | {"scored": (low, high), "pool_kernel": pool}
    arguments["q_pos"] = torch.tensor(data.draw(st.lists(st.integers(0, columns), min_size=rows, max_size=rows)))
    assert_equals_oracle(arguments, window_stats(**arguments))


def test_two_rows_over_two_keys_give_the_values_worked_by_hand():
    # Row 0 sees key 0: weights 1, 0. Row 1 sees both, with equal logits: 1/2, 1/2. A pool of 3 gives 1/3, 1/3 twice,
    # a mass of 2/3, so the rescaled rows are 1/2, 1/2.
    q, k = torch.zeros(1, 2, 4, dtype=torch.float64), torch.ones(1, 2, 4, dtype=torch.float64)
    result = window_stats(q, k, torch.tensor([0, 1]), torch.tensor([0, 1]), stats=ALL_STATS, pool_kernel=3)
    expected = {
        "mean": [[0.75, 0.25]],
        "variance": [[0.125, 0.125]],
        "maximum": [[1.0, 0.5]],
        "pooled_maximum": [[0.5, 0.5]],
        "entropy": [0.6931471805599453],
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(result, name), torch.tensor(value, dtype=torch.float64), rtol=0, atol=1e-9)


def test_columns_outside_the_scored_range_take_part_in_the_softmax():
    q, k = torch.zeros(1, 2, 4, dtype=torch.float64), torch.ones(1, 8, 4, dtype=torch.float64)
    result = window_stats(q, k, torch.tensor([7, 7]), torch.arange(8), scored=(2, 4))
    torch.testing.assert_close(result.mean, torch.full((1, 2), 1 / 8, dtype=torch.float64))


@pytest.mark.parametrize("name", sorted(ALL_STATS))
def test_a_statistic_alone_equals_itself_among_all(name: str):
    arguments: dict[str, Any] = inputs() | {"scored": (2, 38)}
    everything, alone = window_stats(**arguments), window_stats(**{**arguments, "stats": frozenset({name})})
    assert torch.equal(getattr(alone, name), getattr(everything, name))
    assert [other for other in ALL_STATS - {name} if getattr(alone, other) is not None] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_statistics_of_narrow_inputs_are_float32(dtype: torch.dtype):
    arguments = inputs()
    arguments |= {"q": arguments["q"].to(dtype), "k": arguments["k"].to(dtype)}
    result = window_stats(**arguments)
    assert {getattr(result, name).dtype for name in ALL_STATS} == {torch.float32}


def test_mean_variance_and_entropy_are_the_default():
    arguments = inputs()
    del arguments["stats"]
    result = window_stats(**arguments)
    assert {name for name in ALL_STATS if getattr(result, name) is not None} == {"mean", "variance", "entropy"}


def test_a_row_whose_largest_logit_is_far_from_the_others_stays_finite():
    arguments = inputs(columns=200)
    k = arguments["k"].float()
    k[:, 11] *= 300.0
    arguments |= {"q": arguments["q"].float() * 100.0, "k": k}
    logits = torch.einsum("hwd,nd->hwn", arguments["q"], k[0]) / 8**0.5
    assert logits.max() - logits.median() > 1e4
    result, expected = window_stats(**arguments), oracle(**arguments)
    for name in ALL_STATS:
        torch.testing.assert_close(getattr(result, name).double(), expected[name], rtol=1e-4, atol=1e-6)


def test_a_tiny_variance_keeps_its_digits_in_float32():
    # Rows differ by a thousandth, so the textbook E[x^2] - E[x]^2 loses most of its digits.
    arguments: dict[str, Any] = inputs(columns=500, rows=16) | {"q_pos": torch.full((16,), 499)}
    arguments |= {"q": (1.0 + 1e-3 * arguments["q"]).float(), "k": arguments["k"].float(), "scored": (0, 480)}
    result, expected = window_stats(**arguments), oracle(**arguments)["variance"]
    weights = oracle_weights(arguments["q"], arguments["k"], arguments["q_pos"], arguments["k_pos"], None, None).float()
    textbook = ((weights**2).mean(dim=1) - weights.mean(dim=1) ** 2)[:, :480] * 16 / 15
    assert ((textbook.double() - expected).abs() / expected).median() > 1e-2
    assert result.variance is not None
    assert ((result.variance.double() - expected).abs() / expected).median() < 1e-3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_op_on_this_machine_agrees_with_the_reference_in_float64(case: Case):
    assert compare(case) <= 1.0


def test_the_triton_kernels_agree_with_the_reference_in_the_interpreter(
    interpreted_cases: Callable[[str], list[dict[str, Any]]],
):
    results = interpreted_cases("window_stats")
    assert [result for result in results if not result["ok"]] == []
    assert [result["case"] for result in results] == [case.name for case in CASES]


def test_the_comparison_sees_an_error_of_three_tolerances(monkeypatch: pytest.MonkeyPatch):
    def skewed(*args: Any, **kwargs: Any) -> WindowStats:
        result = window_stats(*args, **kwargs)
        assert result.mean is not None
        return WindowStats(mean=result.mean * (1 + 3 * TOLERANCES["mean"]))

    monkeypatch.setattr("cake_kernels.window_stats.cases.window_stats", skewed)
    assert compare(Case("", 1, 1, 2, 20, 16, stats=frozenset({"mean"}))) > 2.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_131072_keys_need_less_than_64_mib_besides_the_inputs(dtype: str):
    # Each buffer above 64 KiB goes back to the system when freed, so none hides in what was resident before.
    result = subprocess.run(
        [sys.executable, ROOT / "kernels/benchmarks/bench_ops.py", "window_stats", "--memory"]
        + ["--case", f"N = 131072, {dtype}"],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "CAKE_KERNELS_BACKEND": "reference"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    (measured,) = json.loads(result.stdout.splitlines()[-1])["results"]
    assert 32 <= measured["extra_mib"] < 64


def test_the_op_imports_no_triton():
    code = "import sys, cake_kernels.window_stats.op, cake_kernels.window_stats.cases; print('triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "False\n", result.stderr


def changed(**changes: Any) -> dict[str, Any]:
    return inputs(heads=4, kv_heads=2) | changes


def holding(value: float, *index: int) -> Tensor:
    k = inputs(heads=4, kv_heads=2)["k"]
    k[index] = value
    return k


REFUSED = {
    "q of two dimensions": (changed(q=torch.zeros(3, 8)), r"q has shape \[3, 8\], expected \[any, any, any\]"),
    "no heads": (changed(q=torch.zeros(0, 3, 8)), r"q has shape \[0, 3, 8\], expected \[any, any, any\]"),
    "no keys": (changed(k=torch.zeros(2, 0, 8)), r"k has shape \[2, 0, 8\], expected \[any, any, 8\]"),
    "another D": (changed(k=torch.zeros(2, 40, 6)), r"k has shape \[2, 40, 6\], expected \[any, any, 8\]"),
    "heads not a multiple": (changed(k=torch.zeros(3, 40, 8)), "q has 4 heads, allowed: multiples of the 3 heads of k"),
    "q_pos too short": (changed(q_pos=torch.tensor([39])), r"q_pos has shape \[1\], expected \[3\]"),
    "k_pos too short": (changed(k_pos=torch.arange(39)), r"k_pos has shape \[39\], expected \[40\]"),
    "integers": (changed(q=torch.zeros(4, 3, 8, dtype=torch.int32)), "q is torch.int32, allowed: torch.float32"),
    "mixed dtypes": (changed(q=torch.zeros(4, 3, 8)), "mixed dtypes: q is torch.float32, k is torch.float64"),
    "mixed devices": (
        changed(q=torch.zeros(4, 3, 8, dtype=torch.float64, device="meta")),
        "mixed devices: q is on meta, k is on cpu",
    ),
    "q_pos elsewhere": (changed(q_pos=torch.zeros(3, dtype=torch.int64, device="meta")), "q_pos is on meta"),
    "q_pos int32": (changed(q_pos=torch.zeros(3, dtype=torch.int32)), "q_pos is torch.int32, allowed: torch.int64"),
    "k_pos float": (changed(k_pos=torch.zeros(40)), "k_pos is torch.float32, allowed: torch.int64"),
    "one row": (inputs(rows=1), "the window has 1 row, allowed: 2 or more, since variance is asked for"),
    "no stats": (changed(stats=frozenset()), "stats is empty, allowed: at least one of entropy, maximum, mean"),
    "unknown stat": (
        changed(stats={"mean", "varience"}),
        "stats names 'varience', allowed: entropy, .*, did you mean 'variance'?",
    ),
    "stat like none": (changed(stats={"q"}), "stats names 'q', allowed: [a-z, _]*$"),
    "scored empty": (changed(scored=(5, 5)), r"scored is \(5, 5\), allowed: 0 <= low < high <= 40"),
    "scored below": (changed(scored=(-1, 5)), r"scored is \(-1, 5\), allowed: 0 <= low < high <= 40"),
    "scored beyond": (changed(scored=(0, 41)), r"scored is \(0, 41\), allowed: 0 <= low < high <= 40"),
    "scored reversed": (changed(scored=(9, 3)), r"scored is \(9, 3\), allowed: 0 <= low < high <= 40"),
    "even pool": (changed(pool_kernel=4), "pool_kernel is 4, allowed: odd numbers from 1"),
    "no pool": (changed(pool_kernel=0), "pool_kernel is 0, allowed: odd numbers from 1"),
    "negative pool": (changed(pool_kernel=-1), "pool_kernel is -1, allowed: odd numbers from 1"),
    "scale zero": (changed(scale=0.0), "scale is 0.0, allowed: finite and above 0"),
    "scale infinite": (changed(scale=float("inf")), "scale is inf, allowed: finite and above 0"),
    "scale NaN": (changed(scale=float("nan")), "scale is nan, allowed: finite and above 0"),
    "softcap negative": (changed(softcap=-5.0), "softcap is -5.0, allowed: finite and above 0"),
    "NaN in k": (changed(k=holding(float("nan"), 1, 39, 7)), "k holds NaN, allowed: finite values"),
    "inf in k": (changed(k=holding(float("inf"), 0, 3, 2)), "k holds values from .* to inf, allowed: finite values"),
    "-inf in k": (changed(k=holding(-float("inf"), 0, 0, 0)), "k holds values from -inf to .*, allowed: finite"),
    "NaN in q": (changed(q=torch.full((4, 3, 8), torch.nan, dtype=torch.float64)), "q holds NaN, allowed: finite"),
    "overflow": (
        changed(q=torch.full((4, 3, 8), 1e20), k=torch.full((2, 40, 8), 1e20)),
        r"max\|q\| \* max\|k\| \* D \* max\(1, scale\) is 8e\+40, allowed: up to 3.4e\+38",
    ),
    "blind row": (
        changed(q_pos=torch.tensor([39, 4, 12]), k_pos=torch.arange(5, 45)),
        r"a query at position 4 sees no key, allowed: 5 \(the first key\) or later",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_input_is_refused_with_its_value_and_what_is_allowed(what: str):
    arguments, message = REFUSED[what]
    with pytest.raises(KernelInputError, match=message):
        window_stats(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "q is torch.float64, allowed by the Triton backend: torch.float32, torch.float16, torch.bfloat16"),
        ({"q": torch.zeros(4, 129, 8)}, "the window has 129 rows, allowed by the Triton backend: 1 to 128"),
        ({"q": torch.zeros(4, 3, 8), "pool_kernel": 65}, "pool_kernel is 65, allowed by the Triton backend: 1 to 63"),
    ],
)
def test_the_triton_backend_refuses_what_its_tiles_cannot_hold(changes: dict[str, Any], message: str):
    triton_kernels = pytest.importorskip("cake_kernels.window_stats.triton_kernels", reason="needs triton")
    arguments = {"scored": (0, 40), "scale": 1.0, "softcap": None, "pool_kernel": 5, **changed(**changes)}
    with pytest.raises(KernelInputError, match=message):
        triton_kernels.window_stats_triton(**arguments)


def test_the_triton_backend_on_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAKE_KERNELS_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedDeviceError, match="cannot run on a cpu tensor; it needs a CUDA device"):
        window_stats(**inputs())
