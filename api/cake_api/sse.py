"""Server-sent events of one answer, and work that stops when its client leaves."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from cake_api.problems import ClientGoneError, problem_body
from cake_api.schemas import AnswerModel, StatusModel, TokenModel
from cake_rag.answering import AskEvent, StatusEvent, TokenEvent
from cake_rag.errors import RagError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class AnswerStream(EventSourceResponse):
    """Sends events, and closes their source as soon as the client leaves, which aborts the generation."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        """Stream ``events``."""
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


async def answer_events(
    first: AskEvent, rest: AsyncGenerator[AskEvent, None], request: Request
) -> AsyncGenerator[bytes, None]:
    """Give an answer's events: ``status``, ``token``, ``answer``, ``usage``; or ``error``; then ``done``.

    Args:
        first: The event that showed that the question can be asked.
        rest: The events after it; closed with this generator.
        request: For request id and settings.
    """
    async with aclosing(rest):
        try:
            for line in _lines(first):
                yield line
            async for event in rest:
                for line in _lines(event):
                    yield line
        except Exception as error:
            # The status line is sent, so this is where a failure becomes a message.
            if not isinstance(error, RagError):
                logger.exception("answer failed request_id=%s", request.state.request_id)
            body = problem_body(
                error,
                request.app.state.settings,
                request_id=request.state.request_id,
                instance=request.url.path,
            )
            yield _line("error", body)
        yield _line("done", {})


async def until_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Give the result of ``work``, or cancel it when the client leaves.

    Raises:
        ClientGoneError: If the client left first.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_client_leaves(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError("the client closed its connection before the answer")
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()


async def _client_leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _lines(event: AskEvent) -> Iterator[bytes]:
    if isinstance(event, StatusEvent):
        yield _line("status", StatusModel.model_validate(event))
    elif isinstance(event, TokenEvent):
        yield _line("token", TokenModel.model_validate(event))
    else:
        answer = AnswerModel.model_validate(event.answer)
        yield _line("answer", answer)
        yield _line("usage", answer.usage)


def _line(name: str, data: BaseModel | dict[str, Any]) -> bytes:
    text = data.model_dump_json() if isinstance(data, BaseModel) else json.dumps(data, ensure_ascii=False)
    return format_sse_event(event=name, data_str=text)
