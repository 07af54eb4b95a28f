"""Torch definition of ``paged_decode``."""

import torch
from torch import Tensor

from cake_kernels.slab import page_rows


def paged_decode_reference(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    *,
    page_size: int,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """Give the attention that ``op.paged_decode`` documents; inputs are not checked here."""
    _, _, num_slots, num_kv_heads, head_dim = slab.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    flat = slab.view(-1, head_dim)
    rows = page_rows(base_rows, page_size, num_kv_heads)
    # [B, Hkv, group, D]
    queries = q.to(dtype).unflatten(1, (num_kv_heads, -1))
    out = torch.zeros_like(queries)
    for request, lengths in enumerate(kv_lens.tolist()):
        for head, length in enumerate(lengths):
            if length == 0:
                continue
            own = rows[request, head, :length]
            keys, values = flat[own].to(dtype), flat[own + num_slots * num_kv_heads].to(dtype)
            logits = queries[request, head] @ keys.T * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            out[request, head] = torch.softmax(logits, dim=-1) @ values
    return out.flatten(1, 2).to(q.dtype)
