"""The op ``window_stats``: checks and dispatch."""

import difflib
import math
from collections.abc import Set

import torch
from torch import Tensor

from cake_kernels.backend import Backend, backend_for
from cake_kernels.checks import FLOATS, check_device, check_dtype, check_positive, check_same, check_shape
from cake_kernels.errors import KernelInputError
from cake_kernels.window_stats.reference import window_stats_reference
from cake_kernels.window_stats.result import ALL_STATS, WindowStats

WIDEST_POOL = 1023
DEFAULT_STATS = frozenset({"mean", "variance", "entropy"})


def window_stats(
    q: Tensor,
    k: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    *,
    scored: tuple[int, int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    stats: Set[str] = DEFAULT_STATS,
    pool_kernel: int = 5,
) -> WindowStats:
    """Give statistics of the attention that the window's queries pay to the scored tokens.

    Row i of the window sees key j if ``k_pos[j] <= q_pos[i]``. Its softmax runs over all keys that it sees, scored or
    not; the scored columns are not renormalised. The [Hq, W, N] weights never exist: with N = 131072, Hq = W = 32 and
    the default statistics, the call needs less than 64 MiB besides its inputs, 32 MiB of it outputs.

    Args:
        q: [Hq, W, D] queries as the attention uses them; float32, float16, bfloat16 or float64. The softmax and its
            statistics are float32, float64 for float64.
        k: [Hkv, N, D] keys, dtype of ``q``; query head h reads KV head ``h // (Hq / Hkv)``.
        q_pos: [W] int64 absolute positions of the queries, in any order.
        k_pos: [N] int64 absolute positions of the keys, in any order.
        scored: Half-open range of columns of ``k``, ``0 <= low < high <= N``; default all.
        scale: Factor on query-key products, > 0; default ``1 / sqrt(D)``.
        softcap: Logits become ``softcap * tanh(logit / softcap)``, > 0; default no cap.
        stats: Names of the wanted fields of ``WindowStats``, at least one; ``variance`` needs W >= 2.
        pool_kernel: Width of the average pool of ``pooled_maximum``, odd, at least 1.

    Returns:
        The wanted statistics over the n = high - low scored columns, on the device of ``q``.

    Raises:
        KernelInputError: A shape, dtype, device or value is out of range, ``q`` or ``k`` holds NaN or infinity, or a
            query sees no key. Looking for these reads ``q`` and ``k`` twice, allocates nothing of their size and waits
            for the device once. The Triton backend also refuses float64, W above 128 and pools wider than 63.
        UnsupportedDeviceError: The backend asked for cannot run on this device.

    Source: CAKE (arXiv 2503.12491) as in antgroup/cakekv at c4675ce: mean, variance and entropy of the window
        attention; pooled maximum: FFY0/DefensiveKV at 9251b95.
    """
    _check_tensors(q, k, q_pos, k_pos)
    num_columns, head_dim = k.shape[1:]
    _check_stats(stats, q.shape[1], pool_kernel)
    low, high = (0, num_columns) if scored is None else scored
    if not (isinstance(low, int) and isinstance(high, int) and 0 <= low < high <= num_columns):
        raise KernelInputError(f"scored is {(low, high)}, allowed: 0 <= low < high <= {num_columns}")
    check_positive("scale", scale)
    check_positive("softcap", softcap)
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    _check_values(q, k, q_pos, k_pos, scale)
    if backend_for(q.device) is Backend.TRITON:
        from cake_kernels.window_stats.triton_kernels import window_stats_triton as implementation
    else:
        implementation = window_stats_reference
    return implementation(
        q,
        k,
        q_pos,
        k_pos,
        scored=(low, high),
        scale=scale,
        softcap=softcap,
        stats=frozenset(stats),
        pool_kernel=pool_kernel,
    )


def _check_tensors(q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> None:
    check_shape("q", q, (None, None, None))
    check_shape("k", k, (None, None, q.shape[2]))
    num_heads, num_kv_heads = q.shape[0], k.shape[0]
    if num_heads % num_kv_heads:
        raise KernelInputError(f"q has {num_heads} heads, allowed: multiples of the {num_kv_heads} heads of k")
    check_shape("q_pos", q_pos, (q.shape[1],))
    check_shape("k_pos", k_pos, (k.shape[1],))
    check_dtype("q", q, FLOATS)
    check_same(q=q, k=k)
    check_dtype("q_pos", q_pos, (torch.int64,))
    check_dtype("k_pos", k_pos, (torch.int64,))
    check_device(q=q, k=k, q_pos=q_pos, k_pos=k_pos)


def _check_stats(stats: Set[str], num_rows: int, pool_kernel: int) -> None:
    known = ", ".join(sorted(ALL_STATS))
    if isinstance(stats, str) or not all(isinstance(name, str) for name in stats):
        raise KernelInputError(f"stats is {stats!r}, allowed: a set of names among {known}")
    if not stats:
        raise KernelInputError(f"stats is empty, allowed: at least one of {known}")
    for name in sorted(set(stats) - ALL_STATS):
        near = difflib.get_close_matches(name, sorted(ALL_STATS), n=1)
        meant = f", did you mean {near[0]!r}?" if near else ""
        raise KernelInputError(f"stats names {name!r}, allowed: {known}{meant}")
    if "variance" in stats and num_rows < 2:
        raise KernelInputError(f"the window has {num_rows} row, allowed: 2 or more, since variance is asked for")
    if not isinstance(pool_kernel, int) or not 1 <= pool_kernel <= WIDEST_POOL or pool_kernel % 2 == 0:
        raise KernelInputError(f"pool_kernel is {pool_kernel}, allowed: odd numbers from 1 to {WIDEST_POOL}")


def _check_values(q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float) -> None:
    """Refuse values without a softmax. ``amax`` and ``amin`` keep NaN, and copy no operand whatever its strides."""
    first_key, first_query = k_pos.amin(), q_pos.amin()
    facts = [q.amin(), q.amax(), k.amin(), k.amax(), first_key > first_query]
    *extremes, blind = torch.stack([fact.to(torch.float64) for fact in facts]).tolist()
    for name, smallest, largest in (("q", *extremes[:2]), ("k", *extremes[2:])):
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            found = "NaN" if math.isnan(smallest) else f"values from {smallest} to {largest}"
            raise KernelInputError(f"{name} holds {found}, allowed: finite values")
    bound = max(map(abs, extremes[:2])) * max(map(abs, extremes[2:])) * q.shape[2] * max(1.0, scale)
    limit = torch.finfo(torch.float64 if q.dtype == torch.float64 else torch.float32).max
    if bound > limit:
        raise KernelInputError(f"max|q| * max|k| * D * max(1, scale) is {bound:.3g}, allowed: up to {limit:.3g}")
    if blind:
        raise KernelInputError(
            f"a query at position {int(first_query)} sees no key, allowed: {int(first_key)} (the first key) or later"
        )
