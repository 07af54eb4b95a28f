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
from cake_kernels.page_table import PageTable, page_table
from cake_kernels.page_table.cases import CASES, Case, compare


def oracle(
    slots: Tensor,
    seq_lens: Tensor,
    seg_start: Tensor,
    seg_end: Tensor,
    owned_pages: Tensor,
    num_owned: Tensor,
    offsets: Tensor,
    *,
    layer: int,
    num_layers: int,
    num_kv_heads: int,
    num_slots: int,
    page_size: int,
    max_pages: int,
) -> PageTable:
    """The table, one page after the other; a row's number is looked up in the slab counted through."""
    number = torch.arange(num_layers * 2 * num_slots * num_kv_heads).view(num_layers, 2, num_slots, num_kv_heads)
    batch = slots.shape[0]
    base_rows = torch.full((batch, num_kv_heads, max_pages), -1)
    kv_lens = torch.zeros(batch, num_kv_heads, dtype=torch.int32)
    for request in range(batch):
        start, end, length = int(seg_start[request]), int(seg_end[request]), int(seq_lens[request])
        for head in range(num_kv_heads):
            pages = [(layer, int(slots[request, token]), head) for token in range(0, start, page_size)]
            if end > start:
                index = layer * num_kv_heads + head
                for cell in range(int(offsets[request, index]), int(offsets[request, index + 1])):
                    column, owned = divmod(cell, int(num_owned[request]))
                    buffer, column_head = divmod(column, num_kv_heads)
                    pages.append((buffer, int(owned_pages[request, owned]) * page_size, column_head))
            rows = len(pages) * page_size + length - end
            pages += [(layer, int(slots[request, token]), head) for token in range(end, length, page_size)]
            for order, (buffer, slot, column_head) in enumerate(pages):
                base_rows[request, head, order] = number[buffer, 0, slot, column_head]
            kv_lens[request, head] = rows
    return PageTable(base_rows, kv_lens)


def inputs() -> dict[str, Any]:
    """Two layers, two heads, 8 pages of 4 slots; request 0 has 4 plain tokens, a segment of 8 and 3 plain ones."""
    return {
        "slots": torch.tensor([[*range(8, 12), *[-7] * 8, *range(20, 23)], [*range(4, 9), *[-7] * 10]]).int(),
        "seq_lens": int32(15, 4),
        "seg_start": int32(4, 0),
        "seg_end": int32(12, 0),
        "owned_pages": torch.tensor([[7, 3], [-7, -7]]),
        "num_owned": int32(2, -7),
        "offsets": torch.tensor([[0, 2, 3, 3, 5], [-7] * 5]).int(),
        "layer": 1,
        "num_layers": 2,
        "num_kv_heads": 2,
        "num_slots": 32,
        "page_size": 4,
        "max_pages": 5,
    }


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_worked_example():
    base_rows, kv_lens = page_table(**inputs())
    # A K row of layer 1 is (64 + slot) * 2 + head. Head 0 of layer 1 has no cell.
    # Cells 3 and 4 of head 1: owned pages 3 % 2 = 1 (page 3) and 0 (page 7), columns 3 // 2 = 1 (layer 0 head 1) and 2
    # (layer 1 head 0).
    expected = [
        [
            [(64 + 8) * 2, (64 + 20) * 2, -1, -1, -1],
            [(64 + 8) * 2 + 1, 12 * 2 + 1, (64 + 28) * 2, (64 + 20) * 2 + 1, -1],
        ],
        [[(64 + 4) * 2, -1, -1, -1, -1], [(64 + 4) * 2 + 1, -1, -1, -1, -1]],
    ]
    assert base_rows.tolist() == expected
    assert kv_lens.tolist() == [[7, 15], [4, 4]]
    assert (base_rows.dtype, kv_lens.dtype) == (torch.int64, torch.int32)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_table_lists_plain_pages_cells_and_plain_pages(case: Case, seed: int):
    arguments = case.make(seed)
    result, expected = page_table(**arguments), oracle(**arguments)
    assert torch.equal(result.kv_lens, expected.kv_lens)
    assert torch.equal(result.base_rows, expected.base_rows)


def test_indices_may_have_any_strides():
    arguments = CASES[8].make(0)
    strided = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            strided[name] = torch.stack([value, torch.zeros_like(value)], dim=-1)[..., 0]
    assert all(map(torch.equal, page_table(**strided), page_table(**arguments)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_rows_that_a_table_names_after_compaction_are_the_kept_ones(data: st.DataObject):
    size = data.draw(st.sampled_from([1, 2, 4, 8]), "page size")
    num_layers, num_heads = data.draw(st.integers(1, 3), "layers"), data.draw(st.integers(1, 3), "heads")
    columns = num_layers * num_heads
    cells = data.draw(st.lists(st.integers(0, 4), min_size=columns, max_size=columns), "cells")
    before, middle = data.draw(st.integers(0, 2), "pages before"), data.draw(st.integers(max(1, *cells, 1), 5), "pages")
    after = data.draw(st.integers(0, 2 * size), "tokens after")
    num_owned = max(1, -(-sum(cells) // columns)) + data.draw(st.integers(0, 2), "spare pages")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99), "seed"))

    start, end = before * size, (before + middle) * size
    num_tokens = end + after
    pages = torch.randperm(num_owned + -(-num_tokens // size) + 1, generator=generator)
    slots = (pages[num_owned:, None] * size + torch.arange(size)).flatten()[:num_tokens]
    slab = torch.randn(num_layers, 2, len(pages) * size, num_heads, 8, generator=generator)
    before_compaction = slab.clone()
    offsets = torch.tensor([0, *cells]).cumsum(0).int()
    kept = []
    for layer in torch.randperm(num_layers, generator=generator).tolist():
        counts = torch.tensor(cells).view(num_layers, num_heads)[layer] * size
        chosen = torch.zeros(num_heads, int(counts.max()), dtype=torch.int64)
        for head, count in enumerate(counts.tolist()):
            chosen[head, :count] = torch.randperm(end - start, generator=generator)[:count].sort().values
            kept.append((layer, head, chosen[head, :count]))
        kv_compaction(
            slab, slots[start:end], chosen, counts, offsets, pages[:num_owned], layer=layer, page_size=size
        )  # fmt: skip
    for layer, head, tokens in kept:
        base_rows, kv_lens = page_table(
            slots[None],
            int32(num_tokens),
            int32(start),
            int32(end),
            pages[None, :num_owned],
            int32(num_owned),
            offsets[None],
            layer=layer,
            num_layers=num_layers,
            num_kv_heads=num_heads,
            num_slots=slab.shape[2],
            page_size=size,
            max_pages=before + middle + 3,
        )
        source = torch.cat([slots[:start], slots[start:end][tokens], slots[end:]])
        assert int(kv_lens[0, head]) == len(source)
        for order, slot in enumerate(source.tolist()):
            row = int(base_rows[0, head, order // size]) + order % size * num_heads
            buffer, rest = divmod(row, 2 * slab.shape[2] * num_heads)
            place = buffer, slice(None), *divmod(rest, num_heads)
            assert torch.equal(slab[place], before_compaction[layer, :, slot, head])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_op_on_this_machine_agrees_with_the_reference(case: Case):
    assert compare(case) <= 1.0


def test_the_triton_kernel_agrees_with_the_reference_in_the_interpreter(
    interpreted_cases: Callable[[str], list[dict[str, Any]]],
):
    results = interpreted_cases("page_table")
    assert [result for result in results if not result["ok"]] == []
    assert [result["case"] for result in results] == [case.name for case in CASES]


def test_the_comparison_sees_one_wrong_row(monkeypatch: pytest.MonkeyPatch):
    def skewed(*args: Any, **kwargs: Any) -> PageTable:
        table = page_table(*args, **kwargs)
        table.base_rows[-1, -1, 0] += 1
        return table

    monkeypatch.setattr("cake_kernels.page_table.cases.page_table", skewed)
    assert compare(CASES[2]) > 1.0


def test_the_op_imports_no_triton():
    code = "import sys, cake_kernels.page_table.op, cake_kernels.page_table.cases; print('triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "False\n", result.stderr


def changed(**changes: Any) -> dict[str, Any]:
    return inputs() | changes


def slots_with(request: int, token: int, slot: int) -> Tensor:
    slots = inputs()["slots"]
    slots[request, token] = slot
    return slots


REFUSED = {
    "no layers": (changed(num_layers=0), "num_layers is 0, allowed: 1 to 2147483647"),
    "no heads": (changed(num_kv_heads=0), "num_kv_heads is 0, allowed: 1 to 2147483647"),
    "no slots": (changed(num_slots=0), "num_slots is 0, allowed: 1 to 2147483647"),
    "no width": (changed(max_pages=0), "max_pages is 0, allowed: 1 to 2147483647"),
    "layer below": (changed(layer=-1), "layer is -1, allowed: 0 to 1"),
    "layer beyond": (changed(layer=2), "layer is 2, allowed: 0 to 1"),
    "page size zero": (changed(page_size=0), "page_size is 0, allowed: divisors of the 32 slots"),
    "page size 5": (changed(page_size=5), "page_size is 5, allowed: divisors of the 32 slots"),
    "slots of one dimension": (changed(slots=int32(1, 2)), r"slots has shape \[2\], expected \[any, any\]"),
    "no requests": (changed(slots=torch.zeros(0, 4).int()), r"slots has shape \[0, 4\], expected \[any, any\]"),
    "slots float": (changed(slots=torch.zeros(2, 15)), "slots is torch.float32, allowed: torch.int32, torch.int64"),
    "seq_lens too short": (changed(seq_lens=int32(15)), r"seq_lens has shape \[1\], expected \[2\]"),
    "seq_lens int64": (changed(seq_lens=torch.tensor([15, 4])), "seq_lens is torch.int64, allowed: torch.int32"),
    "seg_start too long": (changed(seg_start=int32(4, 0, 0)), r"seg_start has shape \[3\], expected \[2\]"),
    "seg_end int64": (changed(seg_end=torch.tensor([12, 0])), "seg_end is torch.int64, allowed: torch.int32"),
    "num_owned too short": (changed(num_owned=int32(2)), r"num_owned has shape \[1\], expected \[2\]"),
    "owned_pages of one row": (
        changed(owned_pages=torch.tensor([[7, 3]])),
        r"owned_pages has shape \[1, 2\], expected",
    ),
    "owned_pages int32": (
        changed(owned_pages=torch.zeros(2, 2).int()),
        "owned_pages is torch.int32, allowed: torch.int64",
    ),
    "offsets of one layer": (
        changed(offsets=torch.zeros(2, 3).int()),
        r"offsets has shape \[2, 3\], expected \[2, 5\]",
    ),
    "offsets int64": (changed(offsets=torch.zeros(2, 5).long()), "offsets is torch.int64, allowed: torch.int32"),
    "mixed devices": (changed(num_owned=torch.zeros(2, device="meta").int()), "mixed devices: .* num_owned is on meta"),
    "longer than slots": (
        changed(seq_lens=int32(16, 4)),
        r"seq_lens\[0\] is 16, allowed: 0 to 15 \(the width of slots\)",
    ),
    "negative length": (changed(seq_lens=int32(15, -1)), r"seq_lens\[1\] is -1, allowed: 0 to 15"),
    "segment past the end": (changed(seq_lens=int32(11, 4)), r"seg_end\[0\] is 12, allowed: 0 to 11 \(seq_lens\)"),
    "segment reversed": (changed(seg_start=int32(16, 0)), r"seg_start\[0\] is 16, allowed: 0 to 12 \(seg_end\)"),
    "start inside a page": (changed(seg_start=int32(3, 0)), r"seg_start\[0\] is 3, allowed: multiples of 4, a page"),
    "end inside a page": (changed(seg_end=int32(10, 0)), r"seg_end\[0\] is 10, allowed: multiples of 4, a page"),
    "slot below": (changed(slots=slots_with(1, 0, -4)), r"slots\[:, ::4\]\[1, 0\] is -4, allowed: 0 to 28"),
    "slot beyond": (changed(slots=slots_with(0, 12, 32)), r"slots\[:, ::4\]\[0, 3\] is 32, allowed: 0 to 28"),
    "slot inside a page": (
        changed(slots=slots_with(0, 0, 9)),
        r"slots\[:, ::4\]\[0, 0\] is 9, allowed: multiples of 4, a page",
    ),
    "owns nothing": (
        changed(num_owned=int32(0, -7)),
        r"num_owned\[0\] is 0, allowed: 1 to 2 \(the width of owned_pages",
    ),
    "owns more than given": (changed(num_owned=int32(3, -7)), r"num_owned\[0\] is 3, allowed: 1 to 2"),
    "owned page beyond": (
        changed(owned_pages=torch.tensor([[7, 8], [-7, -7]])),
        r"owned_pages\[0, 1\] is 8, allowed: 0 to 7",
    ),
    "offsets from 1": (
        changed(offsets=torch.tensor([[1, 2, 3, 3, 5], [-7] * 5]).int()),
        r"offsets\[:, :1\]\[0, 0\] is 1, allowed: 0 to 0",
    ),
    "offsets descend": (
        changed(offsets=torch.tensor([[0, 2, 1, 3, 5], [-7] * 5]).int()),
        r"offsets\[:, 1:\]\[0, 1\] is 1, allowed: 2 to 8 \(the segment's cells\)",
    ),
    "more cells than owned": (
        changed(offsets=torch.tensor([[0, 2, 3, 3, 9], [-7] * 5]).int()),
        r"offsets\[:, 1:\]\[0, 3\] is 9, allowed: 3 to 8 \(the segment's cells\)",
    ),
    "table too narrow": (changed(max_pages=3), r"max_pages is 3, allowed: 4 \(the longest list\) or more"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_input_is_refused_with_its_value_and_what_is_allowed(what: str):
    arguments, message = REFUSED[what]
    with pytest.raises(KernelInputError, match=message):
        page_table(**arguments)


def test_the_triton_backend_on_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAKE_KERNELS_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedDeviceError, match="cannot run on a cpu tensor; it needs a CUDA device"):
        page_table(**inputs())
