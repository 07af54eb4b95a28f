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
from cake_kernels.kv_compaction import kv_compaction
from cake_kernels.page_table import page_table
from cake_kernels.paged_decode import paged_decode
from cake_kernels.paged_decode.cases import CASES, TOLERANCES, Case, compare

# Of the op, in float64, against the oracle below.
TOLERANCE = 1e-12


def oracle(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    *,
    page_size: int,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The attention in float64, one row after the other, read at [layer, K or V, slot, head]."""
    _, _, num_slots, num_kv_heads, head_dim = slab.shape
    batch, num_heads, _ = q.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    for request in range(batch):
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            total = 0.0
            for row in range(int(kv_lens[request, kv_head])):
                page, within = divmod(row, page_size)
                layer, rest = divmod(int(base_rows[request, kv_head, page]), 2 * num_slots * num_kv_heads)
                slot, column = divmod(rest, num_kv_heads)
                key, value = slab[layer, :, slot + within, column].double()
                logit = float(q[request, head].double() @ key) * (1 / math.sqrt(head_dim) if scale is None else scale)
                weight = math.exp(logit if softcap is None else softcap * math.tanh(logit / softcap))
                out[request, head] += weight * value
                total += weight
            if total:
                out[request, head] /= total
    return out


def in_float64(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "q": arguments["q"].double(), "slab": arguments["slab"].double()}


def assert_is_the_attention(arguments: dict[str, Any]) -> None:
    arguments = in_float64(arguments)
    torch.testing.assert_close(paged_decode(**arguments), oracle(**arguments), rtol=TOLERANCE, atol=TOLERANCE)


def test_a_worked_example():
    # One head, D = 8, pages of one slot. Rows 2 and 0 hold keys ln 3 and 0 in the first entry: weights 3/4 and 1/4.
    slab = torch.full((1, 2, 4, 1, 8), torch.nan)
    slab[0, 0, [2, 0]] = 0.0
    slab[0, 0, 2, 0, 0] = math.log(3)
    slab[0, 1, 2], slab[0, 1, 0] = 4.0, 8.0
    q = torch.zeros(1, 1, 8)
    q[0, 0, 0] = 1.0
    base_rows, kv_lens = torch.tensor([[[2, 0, -1]]]), torch.tensor([[2]], dtype=torch.int32)
    out = paged_decode(q, slab, base_rows, kv_lens, page_size=1, scale=1.0)
    torch.testing.assert_close(out, torch.full((1, 1, 8), 5.0))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_head_reads_its_own_rows_and_nothing_else(case: Case):
    assert_is_the_attention(case.make(1))


@pytest.mark.parametrize("page_size", [1, 8, 16, 32])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("group", range(1, 9))
def test_groups_head_sizes_and_page_sizes_go_together(group: int, head_dim: int, page_size: int):
    assert_is_the_attention(Case("", ((9, 33), (2, 16)), group, head_dim, page_size).make(0))


def test_the_scale_is_the_callers():
    arguments: dict[str, Any] = Case("", ((9, 33),), 2, 16, 4).make(0) | {"scale": 0.7}
    assert_is_the_attention(arguments)
    assert not torch.allclose(paged_decode(**arguments), paged_decode(**{**arguments, "scale": None}))


def test_a_head_without_rows_gives_zeros():
    arguments = Case("", ((0, 5),), 3, 16, 4).make(0)
    out = paged_decode(**arguments)
    assert torch.equal(out[:, :3], torch.zeros(1, 3, 16))
    assert out[:, 3:].abs().min() > 0


def test_the_order_of_the_pages_does_not_matter():
    arguments = in_float64(Case("", ((32, 32),), 2, 16, 4).make(0))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        paged_decode(**{**arguments, "base_rows": arguments["base_rows"][..., order]}), paged_decode(**arguments)
    )


def test_logits_of_a_thousand_do_not_overflow():
    arguments = in_float64(Case("", ((40, 9),), 2, 64, 8, spread=1000.0).make(0))
    out = paged_decode(**{name: x.float() if name in ("q", "slab") else x for name, x in arguments.items()})
    torch.testing.assert_close(out.double(), paged_decode(**arguments), rtol=1e-2, atol=1e-2)
    assert (arguments["q"].abs().max() > 1e3) and out.isfinite().all()


def test_inputs_may_have_any_strides():
    arguments = CASES[2].make(0)
    strided = {
        **arguments,
        "q": arguments["q"].transpose(1, 2).contiguous().transpose(1, 2),
        "base_rows": arguments["base_rows"].transpose(1, 2).contiguous().transpose(1, 2),
        "kv_lens": arguments["kv_lens"].T.contiguous().T,
    }
    torch.testing.assert_close(paged_decode(**strided), paged_decode(**arguments))


@settings(max_examples=40, deadline=None)
@given(
    cells=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    before=st.integers(0, 2),
    after=st.integers(0, 9),
    page_size=st.sampled_from([1, 4, 8]),
    layer=st.integers(0, 1),
    group=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_after_compaction_a_query_sees_the_plain_rows_and_the_kept_ones(
    cells: list[int], before: int, after: int, page_size: int, layer: int, group: int, seed: int
):
    generator = torch.Generator().manual_seed(seed)
    start, end = before * page_size, (before + 5) * page_size
    num_owned = max(1, -(-sum(cells) // 4))
    pages = torch.randperm(num_owned + before + 5 + -(-after // page_size), generator=generator)
    slots = (pages[num_owned:, None] * page_size + torch.arange(page_size)).flatten()[: end + after]
    slab = torch.randn(2, 2, len(pages) * page_size, 2, 8, generator=generator, dtype=torch.float64)
    original = slab.clone()
    offsets = torch.tensor([0, *cells]).cumsum(0).int()
    counts = torch.tensor(cells).view(2, 2)[layer] * page_size
    kept = torch.stack([torch.randperm(end - start, generator=generator) for _ in range(2)])
    for head, count in enumerate(counts.tolist()):
        kept[head, :count] = kept[head, :count].sort().values
    kv_compaction(slab, slots[start:end], kept, counts, offsets, pages[:num_owned], layer=layer, page_size=page_size)
    table = page_table(
        slots[None],
        int32([end + after])[0],
        int32([start])[0],
        int32([end])[0],
        pages[None, :num_owned],
        int32([num_owned])[0],
        offsets[None],
        layer=layer,
        num_layers=2,
        num_kv_heads=2,
        num_slots=slab.shape[2],
        page_size=page_size,
        max_pages=20,
    )
    q = torch.randn(1, 2 * group, 8, generator=generator, dtype=torch.float64)
    out = paged_decode(q, slab, *table, page_size=page_size).unflatten(1, (2, group))
    for head, count in enumerate(counts.tolist()):
        seen = torch.cat([slots[:start], slots[start:end][kept[head, :count]], slots[end:]])
        keys, values = original[layer, :, seen, head]
        weights = (q.unflatten(1, (2, group))[0, head] @ keys.T / math.sqrt(8)).softmax(dim=-1)
        torch.testing.assert_close(out[0, head], weights @ values)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_op_on_this_machine_agrees_with_the_reference_in_float64(case: Case):
    assert compare(case) <= 1.0


def test_the_triton_kernels_agree_with_the_reference_in_the_interpreter(
    interpreted_cases: Callable[[str], list[dict[str, Any]]],
):
    results = interpreted_cases("paged_decode")
    assert [result for result in results if not result["ok"]] == []
    assert [result["case"] for result in results] == [case.name for case in CASES]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_comparison_sees_an_error_of_three_tolerances(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    def skewed(q: Tensor, slab: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return paged_decode(q, slab, *args, **kwargs) * (1 + 3 * TOLERANCES[dtype])

    monkeypatch.setattr("cake_kernels.paged_decode.cases.paged_decode", skewed)
    assert compare(Case("", ((1, 1),), 2, 16, 4, dtype)) > 1.5


@pytest.mark.parametrize("wrong", [torch.Tensor.float, lambda out: out[:, :1], lambda out: out * torch.nan])
def test_the_comparison_sees_a_wrong_dtype_shape_and_nan(
    wrong: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("cake_kernels.paged_decode.cases.paged_decode", lambda **kwargs: wrong(paged_decode(**kwargs)))
    assert compare(Case("", ((3, 1),), 2, 16, 4, torch.float16)) == float("inf")


def test_the_op_imports_no_triton():
    code = "import sys, cake_kernels.paged_decode.op, cake_kernels.paged_decode.cases; print('triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "False\n", result.stderr


def inputs() -> dict[str, Any]:
    """One layer, 8 pages of 4 slots, two KV heads, four query heads, two requests."""
    return {
        "q": torch.zeros(2, 4, 8),
        "slab": torch.zeros(1, 2, 32, 2, 8),
        "base_rows": torch.tensor([[[0, 8, -1], [17, -1, -1]], [[24, 32, 40], [49, 57, -1]]]),
        "kv_lens": int32([7, 4], [12, 5]),
        "page_size": 4,
    }


def int32(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def changed(**changes: Any) -> dict[str, Any]:
    return inputs() | changes


def with_row(row: int, *place: int) -> dict[str, Any]:
    base_rows = inputs()["base_rows"]
    base_rows[place] = row
    return changed(base_rows=base_rows)


REFUSED = {
    "slab of four dimensions": (
        changed(slab=torch.zeros(2, 32, 2, 8)),
        r"slab has shape \[2, 32, 2, 8\], expected \[any",
    ),
    "slab of integers": (
        changed(slab=torch.zeros(1, 2, 32, 2, 8).int()),
        "slab is torch.int32, allowed: torch.float32",
    ),
    "slab transposed": (changed(slab=torch.zeros(1, 2, 2, 32, 8).transpose(2, 3)), "slab has strides .*contiguous"),
    "D of 12": (changed(slab=torch.zeros(1, 2, 32, 2, 12)), "head size D is 12, allowed: multiples of 8 up to 256"),
    "D of 264": (changed(slab=torch.zeros(1, 2, 32, 2, 264)), "head size D is 264, allowed: multiples of 8 up to 256"),
    "page size zero": (changed(page_size=0), "page_size is 0, allowed: divisors of the 32 slots"),
    "page size 5": (changed(page_size=5), "page_size is 5, allowed: divisors of the 32 slots"),
    "q without dimensions": (changed(q=torch.zeros(())), r"q has shape \[\], expected \[any, any, 8\]"),
    "q of another D": (changed(q=torch.zeros(2, 4, 16)), r"q has shape \[2, 4, 16\], expected \[any, any, 8\]"),
    "no requests": (changed(q=torch.zeros(0, 4, 8)), r"q has shape \[0, 4, 8\], expected \[any, any, 8\]"),
    "heads not a multiple": (
        changed(q=torch.zeros(2, 3, 8)),
        "q has 3 heads, allowed: multiples of the 2 heads of the s",
    ),
    "group of 65": (
        changed(q=torch.zeros(2, 130, 8)),
        "q has 130 heads, allowed: multiples of the 2 heads .* up to 128",
    ),
    "another dtype": (
        changed(q=torch.zeros(2, 4, 8).half()),
        "mixed dtypes: q is torch.float16, slab is torch.float32",
    ),
    "another device": (changed(q=torch.zeros(2, 4, 8, device="meta")), "mixed devices: q is on meta, slab is on cpu"),
    "table elsewhere": (changed(kv_lens=int32([1, 1], [1, 1]).to("meta")), "mixed devices: .* kv_lens is on meta"),
    "table of one request": (
        changed(base_rows=inputs()["base_rows"][:1]),
        r"base_rows has shape \[1, 2, 3\], expected \[2",
    ),
    "table of one head": (
        changed(base_rows=inputs()["base_rows"][:, :1]),
        r"base_rows has shape \[2, 1, 3\], expected",
    ),
    "no pages": (
        changed(base_rows=inputs()["base_rows"][..., :0]),
        r"base_rows has shape \[2, 2, 0\], expected \[2, 2, a",
    ),
    "base_rows int32": (
        changed(base_rows=inputs()["base_rows"].int()),
        "base_rows is torch.int32, allowed: torch.int64",
    ),
    "lengths of one request": (changed(kv_lens=int32([7, 4])), r"kv_lens has shape \[1, 2\], expected \[2, 2\]"),
    "kv_lens int64": (changed(kv_lens=torch.tensor([[7, 4], [12, 5]])), "kv_lens is torch.int64, allowed: torch.int32"),
    "negative length": (
        changed(kv_lens=int32([7, -1], [12, 5])),
        r"kv_lens\[0, 1\] is -1, allowed: 0 to 12 \(the rows of",
    ),
    "longer than the table": (changed(kv_lens=int32([7, 4], [13, 5])), r"kv_lens\[1, 0\] is 13, allowed: 0 to 12"),
    "page past the end in use": (
        changed(kv_lens=int32([9, 4], [12, 5])),
        r"base_rows\[0, 0, 2\] is -1, allowed: 0 to 127",
    ),
    "row beyond the slab": (with_row(128, 1, 0, 1), r"base_rows\[1, 0, 1\] is 128, allowed: 0 to 127"),
    "a V row": (
        with_row(64, 0, 0, 0),
        r"base_rows\[0, 0, 0\] is 64, allowed: K rows of a page's first slot, \(layer \* 64",
    ),
    "inside a page": (with_row(18, 0, 1, 0), r"base_rows\[0, 1, 0\] is 18, allowed: .* \+ page \* 4\) \* 2 \+ head"),
    "scale zero": (changed(scale=0.0), "scale is 0.0, allowed: finite and above 0"),
    "scale infinite": (changed(scale=float("inf")), "scale is inf, allowed: finite and above 0"),
    "scale NaN": (changed(scale=float("nan")), "scale is nan, allowed: finite and above 0"),
    "softcap negative": (changed(softcap=-5.0), "softcap is -5.0, allowed: finite and above 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_input_is_refused_with_its_value_and_what_is_allowed(what: str):
    arguments, message = REFUSED[what]
    with pytest.raises(KernelInputError, match=message):
        paged_decode(**arguments)


def test_the_triton_backend_refuses_float64():
    triton_kernels = pytest.importorskip("cake_kernels.paged_decode.triton_kernels", reason="needs triton")
    with pytest.raises(
        KernelInputError, match="q is torch.float64, allowed by the Triton backend: torch.float32, torch.f"
    ):
        triton_kernels.paged_decode_triton(**in_float64(inputs()), scale=1.0, softcap=None)


def test_splits_fill_the_gpu_but_do_not_get_short():
    triton_kernels = pytest.importorskip("cake_kernels.paged_decode.triton_kernels", reason="needs triton")
    assert triton_kernels.num_splits(8, 100) == 1
    assert triton_kernels.num_splits(8, 384) == 3
    assert triton_kernels.num_splits(8, 131072) == 64
    assert triton_kernels.num_splits(264, 131072) == 2
    assert triton_kernels.num_splits(4096, 131072) == 1


def test_the_triton_backend_on_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAKE_KERNELS_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedDeviceError, match="cannot run on a cpu tensor; it needs a CUDA device"):
        paged_decode(**inputs())
