"""The engine's tokenizer over HTTP: plain text to ids, and the frame of a prompt."""

import hashlib
import json
import logging
from collections.abc import Sequence

from cake_rag.config import CHAT_TEMPLATE_KWARGS
from cake_rag.engine_http import EngineHttp
from cake_rag.errors import EngineRequestError
from cake_rag.prompt import PromptFrame, split_blocks, split_control_text

logger = logging.getLogger(__name__)

_SENTINEL = "DOCUMENTstandsHERE7f3a"
# What a tokenizer does to this tells it apart from another one under the same model path.
_FINGERPRINT_TEXT = 'The 12 quick foxes (naïve, 東京) said:\n\n\t"don\'t" 😀 3.14'
# Changes when this module tokenises documents in another way, so that stored ids are made again.
_TOKENISATION = 1
_MAX_CONTROL_ROUNDS = 8


class EngineTokenizer:
    """Tokenises with the engine's own tokenizer, so that ids always suit the model."""

    def __init__(self, http: EngineHttp) -> None:
        """Prepare; nothing is sent yet."""
        self._http = http
        self._control_strings: set[str] = set()

    async def fingerprint(self) -> str:
        """Give 12 hex digits that differ between tokenizers which tokenise differently."""
        [probe] = await self._tokenize_pieces([_FINGERPRINT_TEXT])
        return hashlib.sha256(json.dumps([_TOKENISATION, probe]).encode()).hexdigest()[:12]

    async def tokenize(self, text: str) -> list[int]:
        """Give the ids of plain text; no id is a control token, whatever the text says.

        Long text is sent in blocks. The result is checked: if a control token slipped in, its string is
        learnt and broken up as well.

        Raises:
            EngineUnavailableError: If the engine does not answer.
            EngineRequestError: If the engine refuses the text.
        """
        ids: list[int] = []
        for block in split_blocks(text):
            ids += await self._tokenize_block(block)
        return ids

    async def frame(self, system: str) -> PromptFrame:
        """Give the constant runs around document and question, from the model's chat template.

        Raises:
            EngineUnavailableError: If the engine does not answer.
            EngineRequestError: If no way of making a prompt works for this model.
        """
        attempts: list[tuple[str, list[dict[str, str]] | None]] = [
            ("system turn", [_turn("system", system), _turn("user", _SENTINEL)]),
            ("no system turn", [_turn("user", f"{system}\n\n{_SENTINEL}")]),
            ("no chat template", None),
        ]
        failures: list[str] = []
        for name, messages in attempts:
            try:
                rendered = await self._render(messages) if messages else f"{system}\n\n{_SENTINEL}\nAnswer:"
            except EngineRequestError as error:
                failures.append(f"{name}: {error}")
                continue
            parts = rendered.split(_SENTINEL)
            if len(parts) != 2:
                failures.append(f"{name}: the user's text stands {len(parts) - 1} times in the rendered prompt")
                continue
            if failures:
                logger.warning("prompt_frame=%r after %s", name, "; ".join(failures))
            head_ids, tail_ids = await self._tokenize_pieces(parts)
            self._control_strings |= await self._control_strings_of([*head_ids, *tail_ids])
            return PromptFrame(tuple(head_ids), tuple(tail_ids))
        raise EngineRequestError(f"no prompt can be made for this model: {'; '.join(failures)}")

    async def _tokenize_block(self, block: str) -> list[int]:
        for _ in range(_MAX_CONTROL_ROUNDS):
            pieces = split_control_text(block, self._control_strings)
            ids = [token for piece in await self._tokenize_pieces(pieces) for token in piece]
            if await self._detokenize(ids, False) == await self._detokenize(ids, True):
                return ids
            found = {string for string in await self._control_strings_of(ids) if string in block}
            if found <= self._control_strings:
                # Such as <unk> for a character that the vocabulary lacks: the text does not spell it.
                return ids
            self._control_strings |= found
        raise EngineRequestError("the text cannot be tokenised without control tokens")

    async def _control_strings_of(self, ids: Sequence[int]) -> set[str]:
        distinct = sorted(set(ids))
        if not distinct:
            return set()
        shown = await self._detokenize_each(distinct, False)
        hidden = await self._detokenize_each(distinct, True)
        return {string for string, rest in zip(shown, hidden, strict=True) if string and not rest}

    async def _render(self, messages: list[dict[str, str]]) -> str:
        body: dict[str, object] = {
            "messages": messages,
            "add_generation_prompt": True,
            "chat_template_kwargs": CHAT_TEMPLATE_KWARGS,
        }
        return await self._detokenize((await self._http.post("/v1/tokenize", body))["tokens"], False)

    async def _tokenize_pieces(self, pieces: Sequence[str]) -> list[list[int]]:
        body: dict[str, object] = {"prompt": list(pieces), "add_special_tokens": False}
        return (await self._http.post("/v1/tokenize", body))["tokens"]

    async def _detokenize(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        body: dict[str, object] = {"tokens": list(ids), "skip_special_tokens": skip_special_tokens}
        return (await self._http.post("/v1/detokenize", body))["text"]

    async def _detokenize_each(self, ids: Sequence[int], skip_special_tokens: bool) -> list[str]:
        body: dict[str, object] = {
            "tokens": [[token] for token in ids],
            "skip_special_tokens": skip_special_tokens,
        }
        return (await self._http.post("/v1/detokenize", body))["text"]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
