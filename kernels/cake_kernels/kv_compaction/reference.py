"""Torch definition of ``kv_compaction``."""

import torch
from torch import Tensor

from cake_kernels.slab import cell_rows, plain_rows


def kv_compaction_reference(
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
    """Copy the rows that ``op.kv_compaction`` documents; inputs are not checked here."""
    _, _, num_slots, num_kv_heads, head_dim = slab.shape
    flat = slab.view(-1, head_dim)
    to_values = num_slots * num_kv_heads
    sizes = {"num_slots": num_slots, "num_kv_heads": num_kv_heads}
    first_cells = offsets[layer * num_kv_heads : (layer + 1) * num_kv_heads].tolist()
    for head, (count, first) in enumerate(zip(counts.tolist(), first_cells, strict=True)):
        source = plain_rows(src_slots[kept[head, :count]], layer, head, **sizes)
        order = torch.arange(count, device=slab.device)
        cells = first + order // page_size
        target = cell_rows(cells, owned_pages, owned_pages.shape[0], page_size=page_size, **sizes)
        target += order % page_size * num_kv_heads
        flat[target] = flat[source]
        flat[target + to_values] = flat[source + to_values]
