"""CPU attention that computes the rows of the new tokens only.

SGLang's ``TorchNativeAttnBackend`` pads the queries of every extend to the whole KV length and copies the whole KV
in every step. Here an extend computes its own rows, in blocks that see no key beyond their last row, and keys and
values are read through views wherever a request's slots are consecutive.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import scaled_dot_product_attention

logger = logging.getLogger(__name__)

ROWS_PER_BLOCK = 512
MAX_RUNS = 16
"""More runs of consecutive slots than this are gathered into one copy: many small products cost more than it."""


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Where one request's KV lies.

    Attributes:
        length: KV length in tokens.
        runs: Half-open slot ranges, in token order, that together hold ``length`` slots.
        slots: [length] integer, the same slots one by one.
    """

    length: int
    runs: tuple[tuple[int, int], ...]
    slots: torch.Tensor


def find_runs(slots: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Split slots into maximal runs of consecutive numbers, as half-open ranges in order.

    Args:
        slots: [N] integer, N >= 1.
    """
    breaks = torch.nonzero(slots[1:] != slots[:-1] + 1).flatten() + 1
    starts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), slots.numel()]
    return tuple((int(slots[s]), int(slots[e - 1]) + 1) for s, e in zip(starts, ends, strict=True))


def attend_new_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scaling: float | None
) -> torch.Tensor:
    """Causal attention of the last ``n`` rows of a sequence over all its keys.

    Args:
        query: [n, Hq, D], rows ``N - n .. N`` of the sequence.
        key: [N, Hkv, D], any strides.
        value: [N, Hkv, Dv], any strides.
        scaling: Factor on the scores; None for ``D ** -0.5``.

    Returns:
        [n, Hq, Dv].
    """
    num_rows, num_keys = query.shape[0], key.shape[0]
    prefix = num_keys - num_rows
    gqa = query.shape[1] != key.shape[1]
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (query, key, value))
    if prefix == 0:
        out = scaled_dot_product_attention(q, k, v, scale=scaling, enable_gqa=gqa, is_causal=True)
        return out[0].transpose(0, 1)
    blocks = []
    for start in range(0, num_rows, ROWS_PER_BLOCK):
        end = min(start + ROWS_PER_BLOCK, num_rows)
        visible = prefix + end
        mask = _causal_mask(end - start, visible)
        out = scaled_dot_product_attention(
            q[:, :, start:end],
            k[:, :, :visible],
            v[:, :, :visible],
            attn_mask=mask,
            scale=scaling,
            enable_gqa=gqa,
        )
        blocks.append(out[0].transpose(0, 1))
    return torch.cat(blocks)


@lru_cache(maxsize=4)
def _causal_mask(num_rows: int, num_keys: int) -> torch.Tensor:
    """Mask of the last ``num_rows`` rows over all keys; every layer of a forward pass asks for the same one."""
    return torch.ones(num_rows, num_keys, dtype=torch.bool).tril(diagonal=num_keys - num_rows)


def attend_runs(
    query: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    runs: Sequence[tuple[int, int]],
    *,
    scaling: float,
) -> torch.Tensor:
    """Attention of one row over runs of slots, without copying keys or values.

    Args:
        query: [Hq, D].
        key_buffer: [R, Hkv, D], all slots of the pool.
        value_buffer: [R, Hkv, Dv].
        runs: Half-open slot ranges.
        scaling: Factor on the scores.

    Returns:
        [Hq, Dv].
    """
    num_heads, num_kv_heads = query.shape[0], key_buffer.shape[1]
    grouped = query.view(num_kv_heads, num_heads // num_kv_heads, -1)
    scores = torch.cat([torch.bmm(grouped, key_buffer[start:end].permute(1, 2, 0)) for start, end in runs], dim=-1)
    weights = torch.softmax(scores.float() * scaling, dim=-1).to(query.dtype)
    out = query.new_zeros(num_kv_heads, grouped.shape[1], value_buffer.shape[2])
    position = 0
    for start, end in runs:
        part = weights[:, :, position : position + end - start]
        out = torch.baddbmm(out, part, value_buffer[start:end].transpose(0, 1))
        position += end - start
    return out.reshape(num_heads, -1)


class CakeTorchNativeBackend(TorchNativeAttnBackend):
    """SGLang's CPU attention with the extend and decode passes replaced.

    Cross attention, encoder attention and sliding windows go to SGLang's own passes; the first such call is logged
    and all are counted in ``stock_calls``.
    """

    def __init__(self, model_runner: Any) -> None:
        """Build on SGLang's ``ModelRunner``."""
        super().__init__(model_runner)
        self.stock_calls = 0
        self._request_slots: list[RequestSlots] = []

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Find, once per forward pass, where each request's KV lies; all layers share it."""
        super().init_forward_metadata(forward_batch)
        assert self.req_to_token_pool is not None
        self._request_slots = self._locate(
            self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices, forward_batch.seq_lens
        )

    @staticmethod
    def _locate(
        req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor
    ) -> list[RequestSlots]:
        located = []
        for row, length in zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True):
            slots = req_to_token[row, :length]
            located.append(RequestSlots(length, find_runs(slots) if length else (), slots))
        return located

    def _stock(self, name: str) -> None:
        self.stock_calls += 1
        if self.stock_calls == 1:
            logger.warning("cake plugin: fallback=stock_attention pass=%s", name)

    def _run_sdpa_forward_extend(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        extend_prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        if encoder_lens is not None or is_cross_attn or not causal or sliding_window_size is not None:
            self._stock("extend")
            return super()._run_sdpa_forward_extend(
                query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, extend_prefix_lens,
                extend_seq_lens, encoder_lens, scaling, enable_gqa, causal, is_cross_attn, sliding_window_size,
            )  # fmt: skip
        start = 0
        for slots, num_rows in zip(self._request_slots, extend_seq_lens.tolist(), strict=True):
            key, value = self._read(k_cache, slots, query.dtype), self._read(v_cache, slots, query.dtype)
            rows = slice(start, start + num_rows)
            output[rows] = attend_new_rows(query[rows], key, value, scaling=scaling)
            start += num_rows
        return output

    def _run_sdpa_forward_decode(
        self,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        scaling: float | None = None,
        enable_gqa: bool = False,
        causal: bool = False,
        is_cross_attn: bool = False,
        sliding_window_size: int | None = None,
    ) -> torch.Tensor:
        if encoder_lens is not None or is_cross_attn or sliding_window_size is not None:
            self._stock("decode")
            return super()._run_sdpa_forward_decode(
                query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens,
                encoder_lens, scaling, enable_gqa, causal, is_cross_attn, sliding_window_size,
            )  # fmt: skip
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        for index, slots in enumerate(self._request_slots):
            same_dtype = k_cache.dtype == query.dtype
            if 1 < len(slots.runs) <= MAX_RUNS and same_dtype:
                output[index] = attend_runs(query[index], k_cache, v_cache, slots.runs, scaling=factor)
                continue
            key, value = self._read(k_cache, slots, query.dtype), self._read(v_cache, slots, query.dtype)
            q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (query[index : index + 1], key, value))
            output[index] = scaled_dot_product_attention(q, k, v, scale=scaling, enable_gqa=enable_gqa)[0, :, 0]
        return output

    @staticmethod
    def _read(cache: torch.Tensor, slots: RequestSlots, dtype: torch.dtype) -> torch.Tensor:
        """Give one request's rows of a buffer, [length, Hkv, D]; a view when its slots are one run."""
        if len(slots.runs) == 1:
            start, end = slots.runs[0]
            return cache[start:end].to(dtype)
        if len(slots.runs) <= MAX_RUNS:
            return torch.cat([cache[start:end] for start, end in slots.runs]).to(dtype)
        return cache[slots.slots.long()].to(dtype)


def create_backend(runner: Any) -> CakeTorchNativeBackend:
    """Build the backend for a ``ModelRunner``; registered under SGLang's name ``torch_native``."""
    return CakeTorchNativeBackend(runner)


def required_signatures() -> list[tuple[Callable[..., object], tuple[str, ...]]]:
    """Give SGLang's methods that this class replaces, with the parameters it relies on."""
    common = ("encoder_lens", "scaling", "enable_gqa", "causal", "is_cross_attn", "sliding_window_size")
    head = ("self", "query", "output", "k_cache", "v_cache", "req_to_token", "req_pool_indices", "seq_lens")
    stock = TorchNativeAttnBackend
    return [
        (stock._run_sdpa_forward_extend, (*head, "extend_prefix_lens", "extend_seq_lens", *common)),
        (stock._run_sdpa_forward_decode, (*head, *common)),
        (stock.init_forward_metadata, ("self", "forward_batch")),
    ]
