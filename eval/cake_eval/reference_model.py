"""A transformers model in this process whose queries and keys can be read: what the engine's figures are held against.

Its attention is our own, exact and causal, because no published implementation hands out the queries that the cache
is observed with. Everything else is the model as transformers ships it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from cake_sglang.errors import ModelError, UnsupportedError

ATTENTION = "cake_observed"
CHUNK = 2048
# Rows of attention at a time; bounds memory, not the result.
ROWS = 512


@dataclass(slots=True)
class LayerQueries:
    """Queries of one layer as its attention used them.

    Attributes:
        rows: Pieces of [Hq, T, D], in order of position.
        module: The attention module.
        scale: Factor on query-key products.
        softcap: Soft cap of the logits, None for none.
    """

    module: nn.Module
    scale: float
    softcap: float | None
    rows: list[Tensor] = field(default_factory=list)

    @property
    def q(self) -> Tensor:
        """[Hq, T, D] all recorded rows."""
        return torch.cat(self.rows, dim=1)


@dataclass(slots=True)
class Recording:
    """Queries of a forward pass: those of its last ``keep`` rows, or of all rows with None."""

    keep: int | None
    layers: dict[int, LayerQueries] = field(default_factory=dict)

    def add(self, module: Any, query: Tensor, scale: float, softcap: float | None) -> None:
        """Take the queries [Hq, T, D] of one layer's call and let go of rows that are no longer among the last."""
        if self.keep == 0:
            return
        layer = self.layers.setdefault(module.layer_idx, LayerQueries(module, scale, softcap))
        layer.rows.append(query if self.keep is None else query[:, -self.keep :].clone())
        while self.keep is not None and sum(rows.shape[1] for rows in layer.rows[1:]) >= self.keep:
            layer.rows.pop(0)
        if self.keep is not None and layer.rows:
            excess = sum(rows.shape[1] for rows in layer.rows) - self.keep
            layer.rows[0] = layer.rows[0][:, max(excess, 0) :]


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


class ReferenceModel:
    """A causal language model on the CPU, one sequence at a time, without gradients."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Take a model whose attention is ``ATTENTION``, and its tokenizer."""
        self.model = model
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, folder: str, dtype: torch.dtype = torch.float32) -> "ReferenceModel":
        """Load a folder with configuration, weights and tokenizer.

        Raises:
            ModelError: The folder cannot be loaded.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=ATTENTION, local_files_only=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"model {folder} cannot be loaded: {error}") from error
        return cls(model.eval(), tokenizer)

    @property
    def context_length(self) -> int:
        """Most tokens that the model was made for."""
        return int(self.model.config.max_position_embeddings)

    def tokens(self, text: str) -> list[int]:
        """Give a text's token ids, without special tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    @torch.inference_mode()
    def extend(self, cache: DynamicCache, token_ids: Sequence[int], keep: int | None = 0) -> tuple[Tensor, Recording]:
        """Run tokens after those of ``cache``, whose keys and values are added to it.

        Args:
            cache: Keys and values so far; an empty one at the start.
            token_ids: At least one token.
            keep: How many of the last rows' queries to record; None for all.

        Returns:
            Logits of the last token [vocabulary] float, and the recording.

        Raises:
            UnsupportedError: The tokens do not fit the model's context, or its attention is not plain and causal.
        """
        start = cache.get_seq_length()
        if not 1 <= len(token_ids) <= self.context_length - start:
            raise UnsupportedError(
                f"{len(token_ids)} tokens after {start}: the model takes 1 to {self.context_length - start} more"
            )
        recording = Recording(keep)
        logits = torch.empty(0)
        with _into(recording):
            for low in range(0, len(token_ids), CHUNK):
                part = torch.tensor([token_ids[low : low + CHUNK]])
                positions = torch.arange(start + low, start + low + part.shape[1])[None]
                logits = self.model(
                    input_ids=part, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
                ).logits[0, -1]
        return logits, recording


def output_projection(module: Any, num_heads: int) -> Tensor:
    """Give an attention module's output projection as [Hq, D, hidden].

    Raises:
        UnsupportedError: The module has none under the usual name.
    """
    projection = getattr(module, "o_proj", None)
    if projection is None:
        raise UnsupportedError(f"{type(module).__name__} has no o_proj; policies that weigh values need it")
    weight = projection.weight.detach()
    return weight.view(weight.shape[0], num_heads, -1).permute(1, 2, 0)


def cached(cache: DynamicCache, layer: int, start: int = 0, stop: int | None = None) -> tuple[Tensor, Tensor]:
    """Give a layer's keys and values [Hkv, n, D] of the positions ``[start, stop)``."""
    entry: Any = cache.layers[layer]
    return entry.keys[0][:, start:stop], entry.values[0][:, start:stop]


def quiet() -> None:
    """Keep transformers' notes and progress bars from the terminal."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def _into(recording: Recording) -> Iterator[None]:
    token = _recording.set(recording)
    try:
        yield
    finally:
        _recording.reset(token)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend causally, rows at a time: query [1, Hq, T, D], key and value [1, Hkv, N, D], N >= T."""
    rows, columns = query.shape[2], key.shape[2]
    if sliding_window is not None and columns > sliding_window:
        raise UnsupportedError(f"layer {module.layer_idx} sees {sliding_window} tokens only, of {columns}")
    if attention_mask is not None or others.get("s_aux") is not None or query.shape[0] != 1:
        raise UnsupportedError(f"{type(module).__name__}: only plain causal attention over one sequence is observed")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    recording = _recording.get()
    if recording is not None:
        recording.add(module, query[0], scale, softcap)
    parts = []
    for low in range(0, rows, ROWS):
        part = query[:, :, low : low + ROWS]
        stop = columns - rows + low + part.shape[2]
        parts.append(_attend(part, key[:, :, :stop], value[:, :, :stop], scale, softcap))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float | None) -> Tensor:
    rows, columns = query.shape[2], key.shape[2]
    mask = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)
    if softcap is None:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=True
        )
    group = query.shape[1] // key.shape[1]
    logits = query.float() @ key.float().repeat_interleave(group, 1).transpose(2, 3) * scale
    logits = (softcap * torch.tanh(logits / softcap)).masked_fill(~mask, -torch.inf)
    return (logits.softmax(-1) @ value.float().repeat_interleave(group, 1)).to(query.dtype)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
