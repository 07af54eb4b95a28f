"""Eviction while decoding, as the published CAKE code does it: one step's attention row decides, in storage order."""

import torch
from torch import Tensor

from cake_sglang.errors import PolicyError
from cake_sglang.fields import check_int
from cake_sglang.indicator import per_kv_head, pool
from cake_sglang.selection import descending


def row_attention(q: Tensor, k: Tensor, scale: float | None = None, softcap: float | None = None) -> Tensor:
    """Give one query row's softmax over all keys.

    Args:
        q: [Hq, D].
        k: [Hkv, N, D]; query head h reads KV head ``h // (Hq / Hkv)``.
        scale: Factor on the products; default ``1 / sqrt(D)``.
        softcap: Soft cap of the logits; default none.

    Returns:
        [Hq, N] float32 (float64 for float64 inputs).
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    factor: float = q.shape[1] ** -0.5 if scale is None else scale
    logits = torch.einsum("hgd,hnd->hgn", q.to(dtype).unflatten(0, (k.shape[0], -1)), k.to(dtype)) * factor
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return torch.softmax(logits, dim=-1).flatten(0, 1)


def evict_step(q: Tensor, k: Tensor, budget: int, window: int, *, kernel: int = 5) -> Tensor:
    """Give the storage rows that one layer keeps after a decode step.

    The attention row of the step, without its last ``window`` columns, is average-pooled along the storage order and
    averaged over the group; the ``budget`` best stay, best first, and the last ``window`` rows after them. The
    storage order is thus the order of scores, so pooling mixes neighbours in rank and not in position, and the
    indicator that prefill stored plays no part: both as published.

    Args:
        q: [Hq, D] query of the step.
        k: [Hkv, N, D] keys in storage order, the step's own key last.
        budget: Rows to keep besides the window, >= 0.
        window: Most recent rows, always kept, >= 1.
        kernel: Odd pooling kernel.

    Returns:
        [Hkv, min(N, budget + window)] int64 row numbers, in the new storage order.

    Raises:
        PolicyError: A number is out of range, the tensors do not fit each other, or one holds NaN or infinity.

    Source: antgroup/cakekv c4675ce ``cake/cake_cache.py`` (decoding eviction, layer-wise).
    """
    check_int("budget", budget, 0)
    check_int("window", window, 1)
    check_int("kernel", kernel, 1)
    if kernel % 2 == 0:
        raise PolicyError(f"kernel is {kernel}, expected an odd integer of at least 1")
    if q.dim() != 2 or k.dim() != 3 or 0 in k.shape or q.shape[1] != k.shape[2]:
        raise PolicyError(f"q is {list(q.shape)} and k {list(k.shape)}, expected [Hq, D] and [Hkv, N, D] of one D")
    if q.dtype != k.dtype or q.device != k.device or not q.is_floating_point():
        raise PolicyError(
            f"q is {q.dtype} on {q.device}, k is {k.dtype} on {k.device}; expected one float dtype, one device"
        )
    for name, tensor in (("q", q), ("k", k)):
        if not bool(torch.isfinite(tensor).all()):
            raise PolicyError(f"{name} holds NaN or infinity; every value must be finite")
    num_kv_heads, num_rows = k.shape[:2]
    if q.shape[0] % num_kv_heads:
        raise PolicyError(f"q has {q.shape[0]} query heads, expected a multiple of the {num_kv_heads} KV heads")
    if num_rows <= budget + window:
        return torch.arange(num_rows, device=k.device).expand(num_kv_heads, -1)
    score = per_kv_head(pool(row_attention(q, k)[:, :-window], kernel, "avg"), num_kv_heads, "mean")
    recent = torch.arange(num_rows - window, num_rows, device=k.device)
    return torch.stack([torch.cat([descending(head, budget), recent]) for head in score])
