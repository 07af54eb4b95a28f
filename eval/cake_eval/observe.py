"""Show a policy a document through a ``ReferenceModel``: prefill it, then run what the policy wants to see."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from cake_eval.reference_model import LayerQueries, ReferenceModel, cached, output_projection
from cake_sglang.errors import UnsupportedError
from cake_sglang.observation import LayerObservation, Window
from cake_sglang.policies.base import KVPolicy
from cake_sglang.policies.query_source import ALL, LAST, NONE, PROBE, REPEAT, needs_projection, query_source

# Neutral requests; the first alone is the source `probe`.
PROBES = (
    "Summarize the text above and list its facts.",
    "List every name, number, date and code that appears in the text.",
    "Question: What happened, who was involved, and where? Answer:",
)
REPEAT_FIRST = "Repeat the text above word for word:"
REPEAT_NEXT = "Repeat the text above word for word, going on after:"
REPEAT_CHUNK = 2000
# A repeat pass in pieces shorter than this costs more in requests than it observes.
SMALLEST_CHUNK = 64
OVERLAP = 8


@dataclass(frozen=True, slots=True)
class ScoringPass:
    """Tokens that run after the document for scoring only.

    Attributes:
        token_ids: What runs at positions n, n + 1, ...
        first_row: First of them whose query observes.
        scored: Half-open columns that they score; None for all.
    """

    token_ids: list[int]
    first_row: int = 0
    scored: tuple[int, int] | None = None


def observe_document(
    model: ReferenceModel, token_ids: Sequence[int], policy: KVPolicy, cache: DynamicCache | None = None
) -> Iterator[LayerObservation]:
    """Prefill a document and give one observation per layer, in order.

    Args:
        model: The model.
        token_ids: The document, all of it the compressed range; N tokens.
        policy: Decides which queries are gathered, and whether values and output projection come along.
        cache: Empty; holds the document's keys and values afterwards, if they are wanted.

    Raises:
        UnsupportedError: Document and scoring pass do not fit the model's context.
    """
    source = query_source(policy)
    cache = DynamicCache() if cache is None else cache
    keep = {ALL: None, LAST: max(source.rows, 1)}.get(source.kind, 1)
    _, document = model.extend(cache, token_ids, keep)
    passes = scoring_passes(model, token_ids, source.kind) if source.extra_pass else []
    ran = [_run(model, cache, scoring) for scoring in passes]
    for layer in sorted(document.layers):
        queries = document.layers[layer]
        k, v = cached(cache, layer)
        windows = []
        if source.kind in (LAST, ALL):
            windows.append(_window(queries, len(token_ids)))
        keys, values, positions = [k], [v], [torch.arange(len(token_ids))]
        columns = len(token_ids)
        for scoring, recorded in zip(passes, ran, strict=True):
            own, rows = recorded[layer], len(scoring.token_ids)
            keys.append(own.k)
            values.append(own.v)
            positions.append(torch.arange(rows) + len(token_ids))
            seen = scoring.scored or (0, len(token_ids))
            window = Window(
                q=own.queries.q[:, scoring.first_row :],
                q_pos=positions[-1][scoring.first_row :],
                attended=(seen, (columns, columns + rows)),
                scored=scoring.scored,
            )
            windows.append(window)
            columns += rows
        yield LayerObservation(
            layer=layer,
            k=torch.cat(keys, dim=1),
            v=torch.cat(values, dim=1),
            w_o=output_projection(queries.module, queries.q.shape[0]) if needs_projection(policy) else None,
            windows=tuple(windows) if source.kind != NONE else (),
            k_pos=torch.cat(positions),
            compressed=(0, len(token_ids)),
            scale=queries.scale,
            softcap=queries.softcap,
        )


def scoring_passes(model: ReferenceModel, token_ids: Sequence[int], kind: str) -> list[ScoringPass]:
    """Give what runs after the document: a probe, several probes, or a repetition in chunks.

    Raises:
        UnsupportedError: The model's context leaves no room for it.
    """
    if kind != REPEAT:
        wordings = PROBES[:1] if kind == PROBE else PROBES
        return [ScoringPass(model.tokens(f"\n\n{wording}\n")) for wording in wordings]
    first, following = (model.tokens(f"\n\n{wording}\n") for wording in (REPEAT_FIRST, REPEAT_NEXT))
    room = model.context_length - len(token_ids) - max(len(first), len(following) + OVERLAP)
    if room < min(SMALLEST_CHUNK, len(token_ids)):
        raise UnsupportedError(
            f"a repeat pass over {len(token_ids)} tokens has room for chunks of {max(room, 0)} in the model's context "
            f"of {model.context_length}, expected at least {SMALLEST_CHUNK}; use a shorter text or another policy"
        )
    chunk = min(REPEAT_CHUNK, room)
    passes = []
    for start in range(0, len(token_ids), chunk):
        stop = min(start + chunk, len(token_ids))
        prompt = [*following, *token_ids[start - OVERLAP : start]] if start else first
        passes.append(ScoringPass([*prompt, *token_ids[start:stop]], len(prompt), (start, stop)))
    return passes


@dataclass(frozen=True, slots=True, eq=False)
class _Ran:
    queries: LayerQueries
    k: Tensor
    v: Tensor


def _run(model: ReferenceModel, cache: DynamicCache, scoring: ScoringPass) -> dict[int, _Ran]:
    """Run a pass, take its queries, keys and values, and leave the cache as it was."""
    length = cache.get_seq_length()
    _, recording = model.extend(cache, scoring.token_ids, None)
    ran = {}
    for layer, queries in recording.layers.items():
        k, v = cached(cache, layer, length)
        ran[layer] = _Ran(queries, k.clone(), v.clone())
    cache.crop(-len(scoring.token_ids))
    return ran


def _window(queries: LayerQueries, end: int) -> Window:
    q = queries.q
    return Window(q=q, q_pos=torch.arange(end - q.shape[1], end))
