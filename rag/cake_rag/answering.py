"""What happens between a question and its cited answer, as a stream of events."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum

from cake_rag.citation import CitationFinder
from cake_rag.config import RagConfig
from cake_rag.documents import Answer, Usage
from cake_rag.engine import EngineClient, Sampling
from cake_rag.errors import EngineRequestError
from cake_rag.planning import Plan

logger = logging.getLogger(__name__)


class Stage(StrEnum):
    """Where an answer stands."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    GENERATING = "generating"
    CITING = "citing"


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """A stage has begun, or still lasts; sent at least every ``RagConfig.heartbeat_s`` seconds of silence."""

    stage: Stage
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New text of the draft, which the citation check may still change."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """The verified answer; the last event."""

    answer: Answer


AskEvent = StatusEvent | TokenEvent | AnswerEvent


class Answerer:
    """Sends plans to the engine and finds the citations of what comes back."""

    def __init__(self, config: RagConfig, engine: EngineClient, citations: CitationFinder) -> None:
        """Prepare; at most ``config.max_concurrent_questions`` plans are with the engine at one time."""
        self._engine = engine
        self._citations = citations
        self._heartbeat_s = config.heartbeat_s
        self._slots = asyncio.Semaphore(config.max_concurrent_questions)
        self._workers: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Abort what is under way."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def answer(self, plan: Plan) -> AsyncGenerator[AskEvent, None]:
        """Give the events of one answer. Close the iterator early to abort the generation.

        Raises:
            EngineUnavailableError: If the engine is away or goes away.
            EngineRequestError: If the engine refuses the request.
        """
        started = time.monotonic()
        events: asyncio.Queue[AskEvent | None] = asyncio.Queue()
        stage = Stage.QUEUED
        yield StatusEvent(stage, 0.0)
        worker = asyncio.create_task(self._work(plan, started, events.put_nowait))
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)
        # An error is marked as seen even if nobody waits for it any more.
        worker.add_done_callback(lambda task: task.cancelled() or task.exception())
        worker.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while True:
                try:
                    event = await asyncio.wait_for(events.get(), self._heartbeat_s)
                except TimeoutError:
                    event = StatusEvent(stage, _since(started))
                if event is None:
                    break
                if isinstance(event, StatusEvent):
                    stage = event.stage
                yield event
            await worker
        finally:
            worker.cancel()

    async def _work(self, plan: Plan, started: float, emit: Callable[[AskEvent], None]) -> None:
        rid = f"ask-{uuid.uuid4().hex}"
        sampling = Sampling(plan.answer_tokens)
        draft: list[str] = []
        usage: Usage | None = None
        finish_reason = "stop"
        ttft_s = 0.0
        async with self._slots:
            emit(StatusEvent(Stage.PREFILLING, _since(started)))
            sent = time.monotonic()
            async with aclosing(self._engine.generate(plan.input_ids, sampling, rid)) as events:
                async for event in events:
                    if not ttft_s:
                        ttft_s = _since(sent)
                        emit(StatusEvent(Stage.GENERATING, _since(started)))
                    if event.text:
                        draft.append(event.text)
                        emit(TokenEvent(event.text))
                    usage = event.usage or usage
                    finish_reason = event.finish_reason or finish_reason
        if usage is None:
            raise EngineRequestError("the engine reports no token counts")
        emit(StatusEvent(Stage.CITING, _since(started)))
        text = "".join(draft).strip()
        result = await asyncio.to_thread(self._citations.find, plan.question, text, plan.sources)
        answer = Answer(
            text=result.text,
            declined=result.declined,
            mode=plan.mode,
            document_ids=plan.document_ids,
            citations=result.citations,
            usage=usage,
            ttft_s=ttft_s,
            total_s=_since(started),
            passages=plan.passages,
            unsupported_text=" ".join(result.unsupported) or None,
            dropped_quotes=result.dropped_quotes,
            finish_reason=finish_reason,
            notes=plan.notes,
        )
        logger.info(
            "answered rid=%s mode=%s declined=%s citations=%d prompt_tokens=%d cached_tokens=%d "
            "completion_tokens=%d ttft_s=%.2f total_s=%.2f",
            *(rid, answer.mode, answer.declined, len(answer.citations), usage.prompt_tokens),
            *(usage.cached_tokens, usage.completion_tokens, ttft_s, answer.total_s),
        )
        emit(AnswerEvent(answer))


def _since(start: float) -> float:
    return round(time.monotonic() - start, 3)
