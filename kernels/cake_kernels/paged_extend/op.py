"""The op ``paged_extend``: checks and dispatch."""

import math

import torch
from torch import Tensor

from cake_kernels.backend import Backend, backend_for
from cake_kernels.checks import check_device, check_dtype, check_shape
from cake_kernels.errors import KernelInputError
from cake_kernels.paged_extend.reference import paged_extend_reference
from cake_kernels.slab import check_base_rows, check_paged_attention, check_within, values_are_checked


def paged_extend(
    q: Tensor,
    slab: Tensor,
    base_rows: Tensor,
    kv_lens: Tensor,
    qo_indptr: Tensor,
    *,
    page_size: int,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Give the causal attention of each request's newest rows over the physical rows of each KV head.

    Request b asks with the n rows ``q[qo_indptr[b] : qo_indptr[b + 1]]``, whose own K and V are the last n physical
    rows of each of its KV heads. Row i sees the rows before ``kv_lens[b, g] - n + i + 1`` of KV head g: everything that
    was there before, itself, and the new rows before it. Heads, pages and accumulation are as in ``paged_decode``. No
    value is read on the host on an accelerator, so the call can be recorded in a graph.

    Args:
        q: [T, Hq, D] queries of all requests, one request after the other, dtype of ``slab``.
        slab: [L, 2, R, Hkv, D] contiguous, float32, float16, bfloat16 or float64; D a multiple of 8, at most 256; Hq at
            most 64 * Hkv. Rows that are not read may hold anything.
        base_rows: [B, Hkv, max_pages] int64 first K row of each page, as ``page_table`` gives them for one layer;
            pages past the last one are not read.
        kv_lens: [B, Hkv] int32 physical rows with the new ones, n to ``max_pages * P``.
        qo_indptr: [B + 1] int32 first query row of each request, ascending from 0 to T; a request may have no row.
        page_size: P, slots per page; divides R.
        scale: Factor on query-key products, > 0; default ``1 / sqrt(D)``.
        softcap: Logits become ``softcap * tanh(logit / softcap)``, > 0; default no cap.

    Returns:
        [T, Hq, D], dtype of ``q``.

    Raises:
        KernelInputError: A shape, dtype, device or number is wrong; on the CPU also an index value outside its range.
            On an accelerator values are not looked at, which would wait for the device, and rows past the table's
            width are dropped. The Triton backend also refuses float64.
        UnsupportedDeviceError: The backend asked for cannot run on this device.
    """
    check_shape("qo_indptr", qo_indptr, (None,))
    num_requests = qo_indptr.shape[0] - 1
    if num_requests < 1:
        raise KernelInputError("qo_indptr has shape [1], allowed: two entries or more")
    check_dtype("qo_indptr", qo_indptr, (torch.int32,))
    check_paged_attention(
        q,
        slab,
        base_rows,
        kv_lens,
        num_requests=num_requests,
        page_size=page_size,
        scale=scale,
        softcap=softcap,
    )
    check_device(q=q, qo_indptr=qo_indptr)
    if values_are_checked(slab.device):
        _check_rows(qo_indptr, q.shape[0])
        most = base_rows.shape[2] * page_size
        check_within("kv_lens", kv_lens, qo_indptr.diff()[:, None], most, unit="(the new rows to max_pages pages)")
        check_base_rows(slab, base_rows, kv_lens, page_size)
    if backend_for(slab.device) is Backend.TRITON:
        from cake_kernels.paged_extend.triton_kernels import paged_extend_triton as implementation
    else:
        implementation = paged_extend_reference
    scale = 1.0 / math.sqrt(q.shape[2]) if scale is None else scale
    return implementation(q, slab, base_rows, kv_lens, qo_indptr, page_size=page_size, scale=scale, softcap=softcap)


def _check_rows(qo_indptr: Tensor, num_rows: int) -> None:
    check_within("qo_indptr[:1]", qo_indptr[:1], 0, 0)
    check_within("qo_indptr[1:]", qo_indptr[1:], qo_indptr[:-1], num_rows, unit="(the rows of q)")
    check_within("qo_indptr[-1:]", qo_indptr[-1:], num_rows, num_rows, unit="(the rows of q)")
