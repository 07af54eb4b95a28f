"""The SGLang server as this service sees it: state, tokens, generations. HTTP only.

Routes of SGLang 0.5.23 (``srt/entrypoints/http_server.py``): ``/ready``, ``/model_info``, ``/server_info``,
``/v1/tokenize``, ``/v1/detokenize``, ``/generate``, ``/abort_request``. ``/health`` is never asked: by
default it is the same handler as ``/health_generate``, takes a second, and may run a request.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cake_rag.config import RagConfig
from cake_rag.documents import Usage
from cake_rag.engine_http import EngineHttp
from cake_rag.engine_tokenizer import EngineTokenizer
from cake_rag.errors import EngineError, EngineRequestError, EngineUnavailableError
from cake_rag.prompt import PromptFrame

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine runs.

    Attributes:
        model_id: The engine's model path.
        tokenizer_id: Model path and a digest of the tokenizer's behaviour; the key of stored token ids.
        max_context_tokens: Tokens of one request, prompt and answer together.
        streams_deltas: True when the engine was started with ``--incremental-streaming-output``.
    """

    model_id: str
    tokenizer_id: str
    max_context_tokens: int
    streams_deltas: bool


@dataclass(frozen=True, slots=True)
class EngineState:
    """Whether the engine takes requests, and if not, why. The last two are given when it is ready."""

    state: Literal["ready", "loading", "down"]
    reason: str
    model_id: str | None = None
    max_context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to generate. ``temperature`` 0 is greedy."""

    max_new_tokens: int
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationEvent:
    """New text of a generation. The last event has ``usage`` and ``finish_reason``; its text may be empty."""

    text: str
    usage: Usage | None = None
    finish_reason: str | None = None


class EngineClient:
    """Requests to one engine. Safe to use from many tasks of one event loop; close it with ``aclose``."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 5.0,
        probe_timeout_s: float = 10.0,
        generation_timeout_s: float = 1_800.0,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            base_url: For example ``http://127.0.0.1:30000``.
            connect_timeout_s: Longest wait for a connection.
            probe_timeout_s: Longest wait of ``ready``.
            generation_timeout_s: Longest silence in any other request; covers prefilling on a CPU.
        """
        self._probe_timeout_s = probe_timeout_s
        self._http = EngineHttp(base_url, connect_timeout_s=connect_timeout_s, read_timeout_s=generation_timeout_s)
        self._tokenizer = EngineTokenizer(self._http)
        self._info: EngineInfo | None = None
        self._info_lock = asyncio.Lock()
        self._frames: dict[tuple[str, str], PromptFrame] = {}
        self._abort_tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def from_config(cls, config: RagConfig) -> "EngineClient":
        """Give a client with the timeouts of ``config``."""
        return cls(
            config.engine_url,
            connect_timeout_s=config.connect_timeout_s,
            probe_timeout_s=config.probe_timeout_s,
            generation_timeout_s=config.generation_timeout_s,
        )

    async def aclose(self) -> None:
        """Let aborts that are under way finish, then close all connections."""
        await asyncio.gather(*self._abort_tasks)
        await self._http.aclose()

    async def ready(self) -> EngineState:
        """Give the engine's state; never raises for an engine that is away, and never starts a generation."""
        try:
            status = await self._http.status("/ready", self._probe_timeout_s)
        except EngineUnavailableError as error:
            return EngineState("down", str(error))
        if status == 404:
            return EngineState("down", f"{self._http.base_url} is not an SGLang 0.5.23 server: it has no /ready")
        if status != 200:
            return EngineState("loading", f"{self._http.base_url} is starting, paused or shutting down")
        try:
            info = await asyncio.wait_for(self.info(), self._probe_timeout_s)
        except TimeoutError:
            return EngineState("loading", "the engine is busy and has not told its limits yet")
        except EngineError as error:
            return EngineState("down", str(error))
        return EngineState("ready", "ready", info.model_id, info.max_context_tokens)

    async def info(self) -> EngineInfo:
        """Give what the engine runs. Its limits are asked once per model: that waits for a running prefill.

        Raises:
            EngineUnavailableError: If the engine does not answer.
            EngineRequestError: If the server is not an SGLang engine that this service knows.
        """
        async with self._info_lock:
            model_id = str((await self._http.get("/model_info")).get("model_path", ""))
            if self._info is not None and self._info.model_id == model_id:
                return self._info
            server = await self._http.get("/server_info")
            try:
                # max_req_input_len = min(context length, KV pool) - 1 - 5, see config.ENGINE_RESERVE_TOKENS.
                max_context_tokens = int(server["max_req_input_len"]) + 5
            except (KeyError, TypeError, ValueError) as error:
                raise EngineRequestError("the engine's /server_info states no max_req_input_len") from error
            self._info = EngineInfo(
                model_id=model_id,
                tokenizer_id=f"{model_id}#{await self._tokenizer.fingerprint()}",
                max_context_tokens=max_context_tokens,
                streams_deltas=bool(server.get("incremental_streaming_output", False)),
            )
            logger.info("engine model=%s max_context_tokens=%d", model_id, max_context_tokens)
            return self._info

    async def tokenize(self, text: str) -> list[int]:
        """Give the ids of plain text, without control tokens; see ``EngineTokenizer.tokenize``."""
        return await self._tokenizer.tokenize(text)

    async def frame(self, system: str) -> PromptFrame:
        """Give the constant runs around document and question; made once per tokenizer and system text.

        Raises:
            EngineUnavailableError: If the engine does not answer.
            EngineRequestError: If no prompt can be made for this model.
        """
        key = ((self._info or await self.info()).tokenizer_id, system)
        if key not in self._frames:
            self._frames[key] = await self._tokenizer.frame(system)
        return self._frames[key]

    async def generate(
        self, input_ids: Sequence[int], sampling: Sampling, rid: str
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Generate from token ids. Close the iterator early to abort the generation in the engine.

        Args:
            input_ids: The prompt.
            sampling: How to generate.
            rid: Request id, unique, and no prefix of another one: the engine aborts by prefix.

        Raises:
            EngineUnavailableError: If the engine is away or goes away.
            EngineRequestError: If the engine refuses the request or gives it up.
        """
        streams_deltas = (self._info or await self.info()).streams_deltas
        body: dict[str, object] = {
            "input_ids": list(input_ids),
            "sampling_params": {
                "max_new_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
            },
            "stream": True,
            "rid": rid,
        }
        text = ""
        is_over = False
        try:
            async with self._http.stream("/generate", body) as payloads:
                async for payload in payloads:
                    received, usage, finish_reason = _read(payload)
                    full = text + received if streams_deltas else received
                    # A cumulative text that was revised has no delta; the next event catches up.
                    delta = full[len(text) :] if full.startswith(text) else ""
                    text = full
                    is_over = finish_reason is not None
                    yield GenerationEvent(delta, usage if is_over else None, finish_reason)
            if not is_over:
                raise EngineUnavailableError("the engine ended its answer early")
        except EngineError:
            # Whatever listens at this address later may be another engine.
            self._info = None
            raise
        finally:
            if not is_over:
                self._abort_soon(rid)

    async def abort(self, rid: str) -> None:
        """Ask the engine to stop a generation; harmless when it is over or the engine is away."""
        try:
            await self._http.send("/abort_request", {"rid": rid}, self._probe_timeout_s)
        except EngineUnavailableError as error:
            logger.info("abort not delivered rid=%s reason=%s", rid, error)

    def _abort_soon(self, rid: str) -> None:
        # A task of its own: the caller is being cancelled and could not await.
        task = asyncio.create_task(self.abort(rid))
        self._abort_tasks.add(task)
        task.add_done_callback(self._abort_tasks.discard)


def _read(payload: dict[str, Any]) -> tuple[str, Usage, str | None]:
    """Give text, usage and finish reason of one event of ``/generate``."""
    if "error" in payload:
        raise EngineRequestError(f"the engine refuses the request: {payload['error']}")
    try:
        meta = payload["meta_info"]
        finish = meta["finish_reason"]
        if finish is not None and finish["type"] == "abort":
            message = f"the engine gave the request up: {finish.get('message') or 'aborted'}"
            raise (EngineUnavailableError(message) if finish.get("status_code") == 503 else EngineRequestError(message))
        usage = Usage(meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"])
        return payload["text"], usage, finish and finish["type"]
    except (KeyError, TypeError) as error:
        raise EngineRequestError(f"an event of the engine lacks {error}") from error
