import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cake_kernels.errors import KernelInputError, UnsupportedDeviceError
from cake_kernels.paged_decode import paged_decode
from cake_kernels.paged_decode.cases import TOLERANCES
from cake_kernels.paged_extend import paged_extend
from cake_kernels.paged_extend.cases import CASES, Case, compare

# Of the op, in float64, against the oracle below.
TOLERANCE = 1e-12


def oracle(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    qo_indptr: Tensor,
    *,
    page_size: int,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The attention in float64, one query after the other, read at [layer, K or V, slot, head]."""
    _, _, num_slots, num_kv_heads, head_dim = slab.shape
    num_heads = q.shape[1]
    factor = 1 / math.sqrt(head_dim) if scale is None else scale
    out = torch.zeros(q.shape, dtype=torch.float64)
    for request in range(len(qo_indptr) - 1):
        first, last = int(qo_indptr[request]), int(qo_indptr[request + 1])
        for kv_head in range(num_kv_heads):
            kv_len = int(kv_lens[request, kv_head])
            rows = []
            for row in range(kv_len):
                page, within = divmod(row, page_size)
                layer, rest = divmod(int(base_rows[request, kv_head, page]), 2 * num_slots * num_kv_heads)
                slot, column = divmod(rest, num_kv_heads)
                rows.append(slab[layer, :, slot + within, column].double())
            for query in range(first, last):
                # The last query sees every row, the one before it one row less.
                keys, values = torch.stack(rows[: kv_len - (last - 1 - query)], dim=1)
                for head in range(num_heads):
                    if head * num_kv_heads // num_heads != kv_head:
                        continue
                    logits = keys @ q[query, head].double() * factor
                    if softcap is not None:
                        logits = softcap * torch.tanh(logits / softcap)
                    weights = torch.exp(logits)
                    out[query, head] = weights @ values / weights.sum()
    return out


def in_float64(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "q": arguments["q"].double(), "slab": arguments["slab"].double()}


def assert_is_the_attention(arguments: dict[str, Any]) -> None:
    arguments = in_float64(arguments)
    torch.testing.assert_close(paged_extend(**arguments), oracle(**arguments), rtol=TOLERANCE, atol=TOLERANCE)


def test_a_worked_example():
    # One head, D = 8, one old row with value 1 and two new ones with values 2 and 6; all keys are equal.
    slab = torch.full((1, 2, 4, 1, 8), torch.nan)
    slab[0, 0, [3, 0, 2]] = 0.5
    slab[0, 1, 3], slab[0, 1, 0], slab[0, 1, 2] = 1.0, 2.0, 6.0
    base_rows, kv_lens = torch.tensor([[[3, 0, 2, -1]]]), torch.tensor([[3]], dtype=torch.int32)
    indptr = torch.tensor([0, 2], dtype=torch.int32)
    out = paged_extend(torch.ones(2, 1, 8), slab, base_rows, kv_lens, indptr, page_size=1)
    torch.testing.assert_close(out[:, 0, 0], torch.tensor([1.5, 3.0]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_row_sees_what_was_there_itself_and_the_new_rows_before_it(case: Case):
    assert_is_the_attention(case.make(1))


@pytest.mark.parametrize("page_size", [1, 8, 16, 32])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("group", range(1, 9))
def test_groups_head_sizes_and_page_sizes_go_together(group: int, head_dim: int, page_size: int):
    assert_is_the_attention(Case("", (3, 2), ((9, 33), (2, 16)), group, head_dim, page_size).make(0))


def test_the_scale_is_the_callers():
    arguments: dict[str, Any] = Case("", (4,), ((9, 33),), 2, 16, 4).make(0) | {"scale": 0.7}
    assert_is_the_attention(arguments)
    assert not torch.allclose(paged_extend(**arguments), paged_extend(**{**arguments, "scale": None}))


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
    group=st.integers(1, 3),
    page_size=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 99),
)
def test_each_row_gives_what_decoding_it_would_give(
    requests: list[tuple[int, int, int]], group: int, page_size: int, seed: int
):
    q_lens = tuple(new for new, _, _ in requests)
    if not sum(q_lens):
        q_lens = (1, *q_lens[1:])
    kv_lens = tuple((new + a, new + b) for new, (_, a, b) in zip(q_lens, requests, strict=True))
    arguments = in_float64(Case("", q_lens, kv_lens, group, 8, page_size).make(seed))
    indptr = arguments.pop("qo_indptr")
    out = paged_extend(**arguments, qo_indptr=indptr)
    for request, new in enumerate(q_lens):
        for row in range(new):
            at = int(indptr[request]) + row
            decoded = paged_decode(
                arguments["q"][at : at + 1],
                arguments["slab"],
                arguments["base_rows"][request : request + 1],
                arguments["kv_lens"][request : request + 1] - (new - 1 - row),
                page_size=page_size,
            )
            torch.testing.assert_close(out[at], decoded[0])


def test_later_rows_do_not_reach_earlier_ones():
    arguments = Case("", (5,), ((12, 9),), 2, 16, 4).make(0)
    out = paged_extend(**arguments)
    slab, rows = arguments["slab"], arguments["base_rows"]
    for head, length in enumerate((12, 9)):
        row = int(rows[0, head, (length - 1) // 4]) + (length - 1) % 4 * 2
        slab.view(-1, 16)[[row, row + slab.shape[2] * 2]] += 1.0
    changed = paged_extend(**arguments)
    assert torch.equal(changed[:4], out[:4])
    assert (changed[4] != out[4]).all()


def test_inputs_may_have_any_strides():
    arguments = CASES[4].make(0)
    strided = {
        **arguments,
        "q": arguments["q"].transpose(1, 2).contiguous().transpose(1, 2),
        "base_rows": arguments["base_rows"].transpose(1, 2).contiguous().transpose(1, 2),
        "kv_lens": arguments["kv_lens"].T.contiguous().T,
        "qo_indptr": torch.stack([arguments["qo_indptr"]] * 2, dim=-1)[:, 0],
    }
    torch.testing.assert_close(paged_extend(**strided), paged_extend(**arguments))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_op_on_this_machine_agrees_with_the_reference_in_float64(case: Case):
    assert compare(case) <= 1.0


def test_the_triton_kernel_agrees_with_the_reference_in_the_interpreter(
    interpreted_cases: Callable[[str], list[dict[str, Any]]],
):
    results = interpreted_cases("paged_extend")
    assert [result for result in results if not result["ok"]] == []
    assert [result["case"] for result in results] == [case.name for case in CASES]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_comparison_sees_an_error_of_three_tolerances(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    def skewed(*args: Any, **kwargs: Any) -> Tensor:
        return paged_extend(*args, **kwargs) * (1 + 3 * TOLERANCES[dtype])

    monkeypatch.setattr("cake_kernels.paged_extend.cases.paged_extend", skewed)
    assert compare(Case("", (1,), ((1, 1),), 2, 16, 4, dtype)) > 1.5


def test_the_op_imports_no_triton():
    code = "import sys, cake_kernels.paged_extend.op, cake_kernels.paged_extend.cases; print('triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "False\n", result.stderr


def inputs() -> dict[str, Any]:
    """One layer, 8 pages of 4 slots, two KV heads, four query heads; two requests with 3 and 2 new rows."""
    return {
        "q": torch.zeros(5, 4, 8),
        "slab": torch.zeros(1, 2, 32, 2, 8),
        "base_rows": torch.tensor([[[0, 8, -1], [17, -1, -1]], [[24, 32, 40], [49, 57, -1]]]),
        "kv_lens": int32([7, 4], [12, 5]),
        "qo_indptr": torch.tensor([0, 3, 5], dtype=torch.int32),
        "page_size": 4,
    }


def int32(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def changed(**changes: Any) -> dict[str, Any]:
    return inputs() | changes


def indptr(*bounds: int) -> dict[str, Any]:
    return changed(qo_indptr=torch.tensor(bounds, dtype=torch.int32))


REFUSED = {
    "slab of integers": (
        changed(slab=torch.zeros(1, 2, 32, 2, 8).int()),
        "slab is torch.int32, allowed: torch.float32",
    ),
    "D of 12": (changed(slab=torch.zeros(1, 2, 32, 2, 12)), "head size D is 12, allowed: multiples of 8 up to 256"),
    "page size 5": (changed(page_size=5), "page_size is 5, allowed: divisors of the 32 slots"),
    "no rows": (changed(q=torch.zeros(0, 4, 8)), r"q has shape \[0, 4, 8\], expected \[any, any, 8\]"),
    "q of two dimensions": (changed(q=torch.zeros(5, 8)), r"q has shape \[5, 8\], expected \[any, any, 8\]"),
    "heads not a multiple": (
        changed(q=torch.zeros(5, 3, 8)),
        "q has 3 heads, allowed: multiples of the 2 heads of the s",
    ),
    "group of 65": (
        changed(q=torch.zeros(5, 130, 8)),
        "q has 130 heads, allowed: multiples of the 2 heads .* up to 128",
    ),
    "another dtype": (
        changed(q=torch.zeros(5, 4, 8).half()),
        "mixed dtypes: q is torch.float16, slab is torch.float32",
    ),
    "another device": (changed(q=torch.zeros(5, 4, 8, device="meta")), "mixed devices: q is on meta, slab is on cpu"),
    "bounds elsewhere": (
        changed(qo_indptr=torch.zeros(3, device="meta").int()),
        "mixed devices: q is on cpu, qo_indptr is on meta",
    ),
    "bounds of two dimensions": (
        changed(qo_indptr=int32([0, 3, 5])),
        r"qo_indptr has shape \[1, 3\], expected \[any\]",
    ),
    "no bounds": (indptr(), r"qo_indptr has shape \[0\], expected \[any\]"),
    "one bound": (indptr(0), r"qo_indptr has shape \[1\], allowed: two entries or more"),
    "bounds int64": (changed(qo_indptr=torch.tensor([0, 3, 5])), "qo_indptr is torch.int64, allowed: torch.int32"),
    "bounds of another batch": (indptr(0, 5), r"base_rows has shape \[2, 2, 3\], expected \[1, 2, any\]"),
    "bounds from 1": (indptr(1, 3, 5), r"qo_indptr\[:1\]\[0\] is 1, allowed: 0 to 0"),
    "bounds descend": (indptr(0, 5, 3), r"qo_indptr\[1:\]\[1\] is 3, allowed: 5 to 5 \(the rows of q\)"),
    "bounds too short": (indptr(0, 3, 4), r"qo_indptr\[-1:\]\[0\] is 4, allowed: 5 to 5 \(the rows of q\)"),
    "bounds too long": (indptr(0, 3, 6), r"qo_indptr\[1:\]\[1\] is 6, allowed: 3 to 5 \(the rows of q\)"),
    "kv_lens int64": (changed(kv_lens=torch.tensor([[7, 4], [12, 5]])), "kv_lens is torch.int64, allowed: torch.int32"),
    "fewer rows than new ones": (
        changed(kv_lens=int32([7, 2], [12, 5])),
        r"kv_lens\[0, 1\] is 2, allowed: 3 to 12 \(the n",
    ),
    "longer than the table": (changed(kv_lens=int32([7, 4], [13, 5])), r"kv_lens\[1, 0\] is 13, allowed: 2 to 12"),
    "page past the end in use": (
        changed(kv_lens=int32([9, 4], [12, 5])),
        r"base_rows\[0, 0, 2\] is -1, allowed: 0 to 127",
    ),
    "scale zero": (changed(scale=0.0), "scale is 0.0, allowed: finite and above 0"),
    "softcap infinite": (changed(softcap=float("inf")), "softcap is inf, allowed: finite and above 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_input_is_refused_with_its_value_and_what_is_allowed(what: str):
    arguments, message = REFUSED[what]
    with pytest.raises(KernelInputError, match=message):
        paged_extend(**arguments)


def test_the_triton_backend_refuses_float64():
    triton_kernels = pytest.importorskip("cake_kernels.paged_extend.triton_kernels", reason="needs triton")
    with pytest.raises(
        KernelInputError, match="q is torch.float64, allowed by the Triton backend: torch.float32, torch.f"
    ):
        triton_kernels.paged_extend_triton(**in_float64(inputs()), scale=1.0, softcap=None)


def test_the_triton_backend_on_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAKE_KERNELS_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedDeviceError, match="cannot run on a cpu tensor; it needs a CUDA device"):
        paged_extend(**inputs())
