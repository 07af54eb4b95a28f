"""Torch definition of ``paged_extend``."""

import math

import torch
from torch import Tensor

from cake_kernels.slab import page_rows


def paged_extend_reference(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    qo_indptr: Tensor,
    *,
    page_size: int,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """Give the attention that ``op.paged_extend`` documents; inputs are not checked here."""
    _, _, num_slots, num_kv_heads, head_dim = slab.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    flat = slab.view(-1, head_dim)
    rows = page_rows(base_rows, page_size, num_kv_heads)
    # [T, Hkv, group, D]
    queries = q.to(dtype).unflatten(1, (num_kv_heads, -1))
    out = torch.zeros_like(queries)
    bounds = qo_indptr.tolist()
    for request, lengths in enumerate(kv_lens.tolist()):
        new = slice(bounds[request], bounds[request + 1])
        num_new = new.stop - new.start
        if num_new == 0:
            continue
        for head, length in enumerate(lengths):
            own = rows[request, head, :length]
            keys, values = flat[own].to(dtype), flat[own + num_slots * num_kv_heads].to(dtype)
            # [n, group, kv_len]
            logits = queries[new, head] @ keys.T * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            seen = length - num_new + 1 + torch.arange(num_new, device=q.device)
            hidden = torch.arange(length, device=q.device) >= seen[:, None, None]
            out[new, head] = torch.softmax(logits.masked_fill(hidden, -math.inf), dim=-1) @ values
    return out.flatten(1, 2).to(q.dtype)
