"""Pure ASGI middleware: request id, access log, body limit, the last handler of errors.

No ``BaseHTTPMiddleware``: it buffers event streams and swallows their cancellation.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cake_api.problems import BodyTooLargeError, problem_response

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-ID"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestContext:
    """Gives every request an id, one line in the log (never text of a document), and an answer."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap ``app``."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            # The boundary of a request: nothing above would turn this into a problem document.
            logger.exception("request failed request_id=%s", request_id)
            if not status:
                await problem_response(Request(scope), error)(scope, receive, send_with_id)
        finally:
            logger.info(
                "request method=%s path=%s status=%d seconds=%.3f request_id=%s",
                *(scope["method"], quote(scope["path"]), status, time.monotonic() - started, request_id),
            )


@dataclass(frozen=True, slots=True)
class BodyRule:
    """The largest body of a request, and the settings that bound it."""

    max_bytes: int
    settings: tuple[str, ...] = ()


class BodyLimit:
    """Refuses a body over its limit: before it is read if its length is announced, else while it is."""

    def __init__(self, app: ASGIApp, rule_of: Callable[[str], BodyRule]) -> None:
        """Wrap ``app``; ``rule_of`` gives the rule for a path."""
        self._app = app
        self._rule_of = rule_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rule = self._rule_of(scope["path"])
        limit = rule.max_bytes
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > limit:
            error = BodyTooLargeError(f"the body has {int(announced)} bytes, expected at most {limit}", rule.settings)
            await problem_response(Request(scope), error)(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise BodyTooLargeError(f"the body has more than the {limit} bytes allowed", rule.settings)
            return message

        await self._app(scope, receive_limited, send)
