"""Torch definition of ``page_table``."""

import torch
from torch import Tensor

from cake_kernels.page_table.result import PageTable
from cake_kernels.slab import cell_rows, plain_rows


def page_table_reference(
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
    """Give the table that ``op.page_table`` documents; inputs are not checked here."""
    del num_layers
    sizes = {"num_slots": num_slots, "num_kv_heads": num_kv_heads}
    heads = torch.arange(num_kv_heads, device=slots.device)
    start, end, length = (tensor.long()[:, None] for tensor in (seg_start, seg_end, seq_lens))
    # [B, Hkv + 1]; without a segment, offsets and num_owned may hold anything
    own = offsets[:, layer * num_kv_heads : (layer + 1) * num_kv_heads + 1].long().where(end > start, 0)
    in_use = num_owned.long()[:, None, None].where((end > start)[..., None], 1)
    # [B, Hkv]
    first_cells, num_cells = own[:, :-1], own.diff()
    kv_lens = start + num_cells * page_size + length - end

    # [B, Hkv, max_pages]
    pages = torch.arange(max_pages, device=slots.device).expand(*num_cells.shape, max_pages)
    before = (start // page_size)[..., None]
    past_cells = pages - before - num_cells[..., None]
    position = torch.where(pages < before, pages * page_size, end[..., None] + past_cells * page_size)
    position = position.clamp(0, slots.shape[1] - 1)
    slot = slots.gather(1, position.flatten(1)).view_as(position)
    rows = plain_rows(slot, layer, heads[:, None], **sizes)
    cells = (first_cells[..., None] + pages - before).clamp(min=0)
    owned = owned_pages[:, None].expand(-1, num_kv_heads, -1)
    in_cells = (pages >= before) & (past_cells < 0)
    rows = torch.where(in_cells, cell_rows(cells, owned, in_use, page_size=page_size, **sizes), rows)
    rows = rows.masked_fill(pages * page_size >= kv_lens[..., None], -1)
    return PageTable(rows, kv_lens.int())
