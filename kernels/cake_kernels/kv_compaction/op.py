"""The op ``kv_compaction``: checks and dispatch."""

import torch
from torch import Tensor

from cake_kernels.backend import Backend, backend_for
from cake_kernels.checks import check_device, check_dtype, check_range, check_shape
from cake_kernels.errors import KernelInputError
from cake_kernels.kv_compaction.reference import kv_compaction_reference
from cake_kernels.slab import check_slab, check_within, values_are_checked

INTEGERS = (torch.int32, torch.int64)


def kv_compaction(
    slab: Tensor,
    src_slots: Tensor,
    kept: Tensor,
    counts: Tensor,
    offsets: Tensor,
    owned_pages: Tensor,
    *,
    layer: int,
    page_size: int,
) -> None:
    """Copy the kept K and V rows of one layer into the cells of a segment, in place.

    Kept row j of head h goes to row ``j % P`` of cell ``offsets[layer * Hkv + h] + j // P``; ``cake_kernels.slab`` says
    where a cell lies. Nothing else in the slab changes. Sources and owned pages have no slot in common, so the calls
    for the layers of a segment may come in any order.

    Args:
        slab: [L, 2, R, Hkv, D] contiguous, float32, float16, bfloat16 or float64; D a multiple of 8, at most 256.
        src_slots: [N] int64 slots of the tokens, 0 to R - 1.
        kept: [Hkv, M] int64 tokens that each head keeps, as indices into ``src_slots``, ascending; entries from
            ``counts[h]`` on are not read.
        counts: [Hkv] int32 or int64 rows that each head keeps: its cells times P, so every cell is full.
        offsets: [L * Hkv + 1] int32 first cell of each (layer, head), ascending from 0; the last entry is the number
            of cells, at most ``m * L * Hkv``.
        owned_pages: [m] int64 distinct pages of the segment, 0 to R / P - 1.
        layer: Layer of the sources and of the kept rows, 0 to L - 1.
        page_size: P, slots per page; divides R.

    Raises:
        KernelInputError: A shape, dtype or device is wrong; on the CPU also a value outside its range, or a source slot
            in an owned page. On an accelerator values are not looked at, which would wait for the device.
        UnsupportedDeviceError: The backend asked for cannot run on this device.
    """
    check_slab(slab, page_size)
    num_layers, _, num_slots, num_kv_heads, _ = slab.shape
    check_range("layer", layer, 0, num_layers - 1)
    check_shape("src_slots", src_slots, (None,))
    # No row is kept where M is 0.
    check_shape("kept", kept, (num_kv_heads, kept.shape[-1] if kept.dim() else None))
    check_shape("counts", counts, (num_kv_heads,))
    check_shape("offsets", offsets, (num_layers * num_kv_heads + 1,))
    check_shape("owned_pages", owned_pages, (None,))
    for name, tensor in {"src_slots": src_slots, "kept": kept, "owned_pages": owned_pages}.items():
        check_dtype(name, tensor, (torch.int64,))
    check_dtype("counts", counts, INTEGERS)
    check_dtype("offsets", offsets, (torch.int32,))
    check_device(slab=slab, src_slots=src_slots, kept=kept, counts=counts, offsets=offsets, owned_pages=owned_pages)
    if values_are_checked(slab.device):
        own = offsets[layer * num_kv_heads : (layer + 1) * num_kv_heads + 1]
        _check_cells(counts, offsets, own, owned_pages.shape[0], page_size)
        _check_kept(kept, counts, src_slots.shape[0])
        _check_places(src_slots, owned_pages, num_slots, page_size)
    if backend_for(slab.device) is Backend.TRITON:
        from cake_kernels.kv_compaction.triton_kernels import kv_compaction_triton as implementation
    else:
        implementation = kv_compaction_reference
    implementation(slab, src_slots, kept, counts, offsets, owned_pages, layer=layer, page_size=page_size)


def _check_cells(counts: Tensor, offsets: Tensor, own: Tensor, num_owned: int, page_size: int) -> None:
    if int(offsets[0]) != 0:
        raise KernelInputError(f"offsets[0] is {int(offsets[0])}, allowed: 0")
    most = num_owned * (offsets.shape[0] - 1)
    check_within("offsets[1:]", offsets[1:], offsets[:-1], most, unit=f"(the cells of {num_owned} owned pages)")
    rows = own.diff() * page_size
    check_within("counts", counts, rows, rows, unit="(rows of the head's cells)")


def _check_kept(kept: Tensor, counts: Tensor, num_tokens: int) -> None:
    check_within("counts", counts, 0, kept.shape[1], unit="(the width of kept)")
    order = torch.arange(kept.shape[1], device=kept.device)
    check_within("kept", kept, 0, num_tokens - 1, order < counts[:, None], unit="(tokens of src_slots)")
    later = kept[:, 1:]
    check_within(
        "kept[:, 1:]", later, kept[:, :-1] + 1, num_tokens - 1, order[1:] < counts[:, None], unit="(kept ascends)"
    )


def _check_places(src_slots: Tensor, owned_pages: Tensor, num_slots: int, page_size: int) -> None:
    num_pages = num_slots // page_size
    check_within("src_slots", src_slots, 0, num_slots - 1)
    check_within("owned_pages", owned_pages, 0, num_pages - 1)
    owners = torch.zeros(num_pages, dtype=torch.int64).index_add_(0, owned_pages, torch.ones_like(owned_pages))
    if bool((owners > 1).any()):
        raise KernelInputError(f"owned_pages holds page {int(owners.argmax())} twice, allowed: distinct pages")
    taken = owners[src_slots // page_size] > 0
    if bool(taken.any()):
        index = int(taken.nonzero()[0])
        raise KernelInputError(
            f"src_slots[{index}] is {int(src_slots[index])}, in an owned page, allowed: slots of other pages"
        )
