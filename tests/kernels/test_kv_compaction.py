import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cake_kernels.errors import KernelInputError, UnsupportedDeviceError
from cake_kernels.kv_compaction import kv_compaction
from cake_kernels.kv_compaction.cases import CASES, Case, compare
from cake_sglang.segment import SegmentLayout


def oracle(
    slab: Tensor,
    src_slots: Tensor,
    kept: Tensor,
    counts: Tensor,
    offsets: Tensor,
    owned_pages: Tensor,
    *,
    layer: int,
    page_size: int,
) -> Tensor:
    """The slab afterwards, one row after the other, addressed as [layer, K or V, slot, head]."""
    after = slab.clone()
    num_kv_heads, num_owned = slab.shape[3], owned_pages.shape[0]
    for head in range(num_kv_heads):
        for order in range(int(counts[head])):
            slot = int(src_slots[kept[head, order]])
            cell = int(offsets[layer * num_kv_heads + head]) + order // page_size
            column, owned = divmod(cell, num_owned)
            buffer, target_head = divmod(column, num_kv_heads)
            target = int(owned_pages[owned]) * page_size + order % page_size
            after[buffer, :, target, target_head] = slab[layer, :, slot, head]
    return after


def inputs() -> dict[str, Any]:
    """Two layers, two heads, pages of 4 slots: page 3 and page 1 are owned, tokens lie in pages 0 and 2."""
    return {
        "slab": torch.arange(2 * 2 * 16 * 2 * 8, dtype=torch.float32).view(2, 2, 16, 2, 8),
        "src_slots": torch.tensor([8, 9, 10, 11, 0, 1, 2, 3]),
        "kept": torch.tensor([[0, 2, 5, 7], [1, 3, 4, 6]]),
        "counts": torch.tensor([4, 4], dtype=torch.int32),
        "offsets": torch.tensor([0, 2, 4, 5, 6], dtype=torch.int32),
        "owned_pages": torch.tensor([3, 1]),
        "layer": 1,
        "page_size": 4,
    }


def test_a_worked_example():
    arguments = inputs()
    before = arguments["slab"].clone()
    kv_compaction(**arguments)
    after = arguments["slab"]
    # Head 0 of layer 1 has cell 4: owned page 4 % 2 = 0, which is page 3, column 4 // 2 = 2, which is layer 1 head 0.
    torch.testing.assert_close(after[1, :, 12:16, 0], before[1, :, [8, 10, 1, 3], 0], rtol=0, atol=0)
    # Head 1 has cell 5: owned page 1, which is page 1, column 2 again: another head's place.
    torch.testing.assert_close(after[1, :, 4:8, 0], before[1, :, [9, 11, 0, 2], 1], rtol=0, atol=0)
    after[1, :, 12:16, 0], after[1, :, 4:8, 0] = before[1, :, 12:16, 0], before[1, :, 4:8, 0]
    assert torch.equal(after, before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_row_lands_where_the_layout_says_and_nothing_else_changes(case: Case):
    arguments = case.make(1)
    expected = oracle(**arguments)
    kv_compaction(**arguments)
    assert torch.equal(arguments["slab"], expected)


def test_the_cells_are_those_of_the_segment_layout():
    cells = ((3, 0, 2), (1, 4, 1))
    layout = SegmentLayout(cells, num_owned=3)
    arguments = Case("", cells, 1, 60, 8, 8, spare_pages=1).make(0)
    assert arguments["owned_pages"].shape[0] == layout.num_owned
    assert arguments["offsets"].tolist() == layout.offsets()
    before = arguments["slab"].clone()
    kv_compaction(**arguments)
    for head, count in enumerate(cells[1]):
        tokens = arguments["kept"][head, : count * 8].unflatten(0, (count, 8))
        for cell, page_tokens in zip(layout.cells(1, head), tokens, strict=True):
            first = int(arguments["owned_pages"][cell.page]) * 8
            wanted = before[1, :, arguments["src_slots"][page_tokens], head]
            assert torch.equal(arguments["slab"][cell.buffer, :, first : first + 8, cell.column], wanted)


def test_the_layers_of_a_segment_may_come_in_any_order():
    arguments = Case("", ((2, 3), (1, 2), (4, 0)), 0, 40, 8, 4).make(0)
    slabs = []
    for order in ((0, 1, 2), (2, 0, 1)):
        slab = arguments["slab"].clone()
        for layer in order:
            own = arguments["offsets"][2 * layer : 2 * layer + 3].diff() * 4
            kept = torch.stack([torch.arange(16), torch.arange(20, 36)])
            kv_compaction(**{**arguments, "slab": slab, "layer": layer, "counts": own, "kept": kept})
        slabs.append(slab)
    assert torch.equal(*slabs)


def test_indices_may_have_any_strides():
    arguments = Case("", ((2, 3), (1, 2)), 0, 40, 8, 4).make(0)
    strided = {**arguments, "slab": arguments["slab"].clone()}
    for name in ("src_slots", "kept", "counts", "offsets", "owned_pages"):
        strided[name] = torch.stack([arguments[name], torch.zeros_like(arguments[name])], dim=-1)[..., 0]
    kv_compaction(**arguments)
    kv_compaction(**strided)
    assert torch.equal(arguments["slab"], strided["slab"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_op_on_this_machine_agrees_with_the_reference(case: Case):
    assert compare(case) <= 1.0


def test_the_triton_kernel_agrees_with_the_reference_in_the_interpreter(
    interpreted_cases: Callable[[str], list[dict[str, Any]]],
):
    results = interpreted_cases("kv_compaction")
    assert [result for result in results if not result["ok"]] == []
    assert [result["case"] for result in results] == [case.name for case in CASES]


def test_the_comparison_sees_one_wrong_number(monkeypatch: pytest.MonkeyPatch):
    def skewed(slab: Tensor, *args: Any, **kwargs: Any) -> None:
        kv_compaction(slab, *args, **kwargs)
        slab[-1, 1, -1, -1, -1] += 1.0

    monkeypatch.setattr("cake_kernels.kv_compaction.cases.kv_compaction", skewed)
    assert compare(CASES[2]) > 1.0


def test_the_op_imports_no_triton():
    code = "import sys, cake_kernels.kv_compaction.op, cake_kernels.kv_compaction.cases; print('triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "False\n", result.stderr


def changed(**changes: Any) -> dict[str, Any]:
    return inputs() | changes


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def slab_of(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(shape, **options)


REFUSED = {
    "slab of four dimensions": (changed(slab=slab_of(2, 16, 2, 8)), r"slab has shape \[2, 16, 2, 8\], expected \[any,"),
    "slab of K alone": (changed(slab=slab_of(2, 1, 16, 2, 8)), r"slab has shape \[2, 1, 16, 2, 8\], expected \[any, 2"),
    "slab of integers": (changed(slab=slab_of(2, 2, 16, 2, 8, dtype=torch.int8)), "slab is torch.int8, allowed: .*16"),
    "slab transposed": (
        changed(slab=slab_of(2, 2, 2, 16, 8).transpose(2, 3)),
        r"slab has strides \[512, 256, 8, 128, 1\], allowed: contiguous",
    ),
    "D of 12": (changed(slab=slab_of(2, 2, 16, 2, 12)), "head size D is 12, allowed: multiples of 8 up to 256"),
    "D of 264": (changed(slab=slab_of(2, 2, 16, 2, 264)), "head size D is 264, allowed: multiples of 8 up to 256"),
    "page size zero": (changed(page_size=0), "page_size is 0, allowed: divisors of the 16 slots"),
    "page size 5": (changed(page_size=5), "page_size is 5, allowed: divisors of the 16 slots"),
    "layer below": (changed(layer=-1), "layer is -1, allowed: 0 to 1"),
    "layer beyond": (changed(layer=2), "layer is 2, allowed: 0 to 1"),
    "no sources": (
        changed(src_slots=torch.zeros(0, dtype=torch.int64)),
        r"src_slots has shape \[0\], expected \[any\]",
    ),
    "kept of one dimension": (changed(kept=torch.arange(4)), r"kept has shape \[4\], expected \[2, 4\]"),
    "kept of another Hkv": (changed(kept=torch.zeros(3, 4).long()), r"kept has shape \[3, 4\], expected \[2, 4\]"),
    "counts too short": (changed(counts=int32(4)), r"counts has shape \[1\], expected \[2\]"),
    "offsets too short": (changed(offsets=int32(0, 2, 4, 5)), r"offsets has shape \[4\], expected \[5\]"),
    "no owned pages": (changed(owned_pages=torch.zeros(0).long()), r"owned_pages has shape \[0\], expected \[any\]"),
    "src_slots int32": (
        changed(src_slots=inputs()["src_slots"].int()),
        "src_slots is torch.int32, allowed: torch.int64",
    ),
    "kept int32": (changed(kept=inputs()["kept"].int()), "kept is torch.int32, allowed: torch.int64"),
    "owned_pages int32": (changed(owned_pages=int32(3, 1)), "owned_pages is torch.int32, allowed: torch.int64"),
    "counts float": (
        changed(counts=torch.tensor([4.0, 4.0])),
        "counts is torch.float32, allowed: torch.int32, torch.i",
    ),
    "offsets int64": (changed(offsets=torch.tensor([0, 2, 4, 5, 6])), "offsets is torch.int64, allowed: torch.int32"),
    "mixed devices": (changed(kept=torch.zeros(2, 4, device="meta").long()), "mixed devices: .* kept is on meta"),
    "offsets from 1": (changed(offsets=int32(1, 2, 4, 5, 6)), r"offsets\[0\] is 1, allowed: 0"),
    "offsets descend": (
        changed(offsets=int32(0, 4, 2, 3, 4)),
        r"offsets\[1:\]\[1\] is 2, allowed: 4 to 8 \(the cells of 2 owned pages\)",
    ),
    "more cells than owned": (
        changed(offsets=int32(0, 2, 4, 5, 9)),
        r"offsets\[1:\]\[3\] is 9, allowed: 5 to 8 \(the cells of 2 owned pages\)",
    ),
    "count of a cell too few": (
        changed(counts=int32(4, 3)),
        r"counts\[1\] is 3, allowed: 4 to 4 \(rows of the head's cells\)",
    ),
    "kept narrower than counts": (
        changed(kept=inputs()["kept"][:, :3]),
        r"counts\[0\] is 4, allowed: 0 to 3 \(the width of kept\)",
    ),
    "kept below": (
        changed(kept=torch.tensor([[-1, 2, 5, 7], [1, 3, 4, 6]])),
        r"kept\[0, 0\] is -1, allowed: 0 to 7 \(tokens of src_slots\)",
    ),
    "kept beyond": (changed(kept=torch.tensor([[0, 2, 5, 7], [1, 3, 4, 8]])), r"kept\[1, 3\] is 8, allowed: 0 to 7"),
    "kept twice": (
        changed(kept=torch.tensor([[0, 2, 2, 7], [1, 3, 4, 6]])),
        r"kept\[:, 1:\]\[0, 1\] is 2, allowed: 3 to 7 \(kept ascends\)",
    ),
    "slot beyond": (
        changed(src_slots=torch.tensor([8, 9, 10, 16, 0, 1, 2, 3])),
        r"src_slots\[3\] is 16, allowed: 0 to 15",
    ),
    "negative slot": (
        changed(src_slots=torch.tensor([8, 9, 10, -4, 0, 1, 2, 3])),
        r"src_slots\[3\] is -4, allowed: 0 to 15",
    ),
    "owned page beyond": (changed(owned_pages=torch.tensor([3, 4])), r"owned_pages\[1\] is 4, allowed: 0 to 3"),
    "owned page twice": (
        changed(owned_pages=torch.tensor([3, 3])),
        "owned_pages holds page 3 twice, allowed: distinct",
    ),
    "source in an owned page": (
        changed(src_slots=torch.tensor([8, 9, 10, 11, 0, 1, 2, 13])),
        r"src_slots\[7\] is 13, in an owned page, allowed: slots of other pages",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_input_is_refused_with_its_value_and_what_is_allowed(what: str):
    arguments, message = REFUSED[what]
    before = arguments["slab"].clone()
    with pytest.raises(KernelInputError, match=message):
        kv_compaction(**arguments)
    assert torch.equal(arguments["slab"], before)


def test_the_triton_backend_on_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CAKE_KERNELS_BACKEND", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedDeviceError, match="cannot run on a cpu tensor; it needs a CUDA device"):
        kv_compaction(**inputs())
