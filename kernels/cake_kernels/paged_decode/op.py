"""The op ``paged_decode``: checks and dispatch."""

import math

from torch import Tensor

from cake_kernels.backend import Backend, backend_for
from cake_kernels.paged_decode.reference import paged_decode_reference
from cake_kernels.slab import check_base_rows, check_paged_attention, check_within, values_are_checked


def paged_decode(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    *,
    page_size: int,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Give the attention of one query per request over the physical rows of each KV head.

    Query head h of request b reads the first ``kv_lens[b, g]`` rows of the pages ``base_rows[b, g]``, with
    ``g = h // (Hq / Hkv)``. Kept rows are rotated already, and softmax has no order, so neither positions nor the order
    of the rows matter. Logits, softmax and sums are float32, float64 for float64. A head without rows gives zeros.

    Args:
        q: [B, Hq, D] queries, dtype of ``slab``.
        slab: [L, 2, R, Hkv, D] contiguous, float32, float16, bfloat16 or float64; D a multiple of 8, at most 256; Hq at
            most 64 * Hkv. Rows that are not read may hold anything.
        base_rows: [B, Hkv, max_pages] int64 first K row of each page, as ``page_table`` gives them for one layer;
            pages past the last one are not read.
        kv_lens: [B, Hkv] int32 physical rows, 0 to ``max_pages * P``.
        page_size: P, slots per page; divides R.
        scale: Factor on query-key products, > 0; default ``1 / sqrt(D)``.
        softcap: Logits become ``softcap * tanh(logit / softcap)``, > 0; default no cap.

    Returns:
        [B, Hq, D], dtype of ``q``.

    Raises:
        KernelInputError: A shape, dtype, device or number is wrong; on the CPU also a length or a base row outside its
            range. On an accelerator values are not looked at, which would wait for the device, and rows past the
            table's width are dropped. The Triton backend also refuses float64.
        UnsupportedDeviceError: The backend asked for cannot run on this device.
    """
    check_paged_attention(
        q,
        slab,
        base_rows,
        kv_lens,
        num_requests=q.shape[0] if q.dim() else 1,
        page_size=page_size,
        scale=scale,
        softcap=softcap,
    )
    if values_are_checked(slab.device):
        check_within("kv_lens", kv_lens, 0, base_rows.shape[2] * page_size, unit="(the rows of max_pages pages)")
        check_base_rows(slab, base_rows, kv_lens, page_size)
    if backend_for(slab.device) is Backend.TRITON:
        from cake_kernels.paged_decode.triton_kernels import paged_decode_triton as implementation
    else:
        implementation = paged_decode_reference
    scale = 1.0 / math.sqrt(q.shape[2]) if scale is None else scale
    return implementation(q, slab, base_rows, kv_lens, page_size=page_size, scale=scale, softcap=softcap)
