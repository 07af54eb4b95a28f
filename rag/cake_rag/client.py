"""The service as its commands see it: a typed, blocking HTTP client."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2

from cake_rag.answering import AnswerEvent, AskEvent, Stage, StatusEvent, TokenEvent
from cake_rag.documents import Answer, AnswerMode, Citation, Document, DocumentStatus, Passage, Usage
from cake_rag.engine import EngineState

URL_VARIABLE = "CAKE_API_URL"
DEFAULT_URL = "http://127.0.0.1:8080"

# An answer's stream is never silent once it has begun, but it begins only when the engine has told its limits,
# and that waits for a running prefill.
_ASK_TIMEOUT_S = 600.0

R = TypeVar("R")


class ServiceError(RuntimeError):
    """The service cannot be reached, or what answers is not the service."""


class ServiceProblemError(ServiceError):
    """The service answered with a problem document.

    Attributes:
        status: HTTP status code.
        code: The problem's stable word, such as ``document-not-found``.
    """

    def __init__(self, problem: Mapping[str, Any]) -> None:
        """Take title, detail, status and code of a problem document."""
        super().__init__(f"{problem.get('title', 'the request failed')}: {problem.get('detail', 'no reason given')}")
        self.status = int(problem.get("status", 0))
        self.code = str(problem.get("code", ""))


@dataclass(frozen=True, slots=True)
class Upload:
    """An uploaded document, and whether the same bytes were stored before."""

    document: Document
    deduplicated: bool


class ServiceClient:
    """Requests to one service; a context manager."""

    def __init__(self, url: str | None = None, timeout_s: float = 30.0) -> None:
        """Prepare a client.

        Args:
            url: Base URL; None means the variable ``CAKE_API_URL``, else ``http://127.0.0.1:8080``.
            timeout_s: Longest silence of the service, uploads and answers apart.
        """
        self.url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        self._client = httpx2.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> "ServiceClient":
        """Give the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self._client.close()

    def readiness(self) -> EngineState:
        """Give whether the service can answer questions.

        Raises:
            ServiceError: If the service cannot be reached.
        """
        with self._reported():
            response = self._client.get("/readyz")
        return _record(EngineState, self._json(response, allowed=(200, 503)))

    def upload(self, path: Path) -> Upload:
        """Upload a file.

        Raises:
            OSError: If the file cannot be read.
            ServiceError: If the service cannot be reached, or refuses the file.
        """
        with path.open("rb") as file, self._reported():
            response = self._client.post("/v1/documents", files={"file": (path.name, file)}, timeout=None)
        body = self._json(response)
        return Upload(_document(body), bool(body["deduplicated"]))

    def document(self, document_id: str) -> Document:
        """Give a document; raises ``ServiceError`` if there is none."""
        with self._reported():
            return _document(self._json(self._client.get(f"/v1/documents/{_segment(document_id)}")))

    def documents(self) -> Iterator[Document]:
        """Give all documents, newest first; raises ``ServiceError`` if the service cannot be reached."""
        cursor: str | None = None
        while True:
            with self._reported():
                response = self._client.get("/v1/documents", params={"cursor": cursor} if cursor else {})
            body = self._json(response)
            yield from map(_document, body["documents"])
            cursor = body["next_cursor"]
            if cursor is None:
                return

    def delete(self, document_id: str) -> None:
        """Delete a document; raises ``ServiceError`` if there is none."""
        with self._reported():
            response = self._client.delete(f"/v1/documents/{_segment(document_id)}")
        if response.status_code != 204:
            self._json(response)

    def ask(
        self, question: str, document_ids: list[str] | None = None, max_tokens: int | None = None
    ) -> Iterator[AskEvent]:
        """Give the events of an answer.

        Raises:
            ServiceProblemError: If the question is refused, or the answer fails.
            ServiceError: If the service cannot be reached or goes away.
        """
        body = {"question": question, "document_ids": document_ids, "max_tokens": max_tokens, "stream": True}
        with (
            self._reported(),
            self._client.stream("POST", "/v1/questions", json=body, timeout=_ASK_TIMEOUT_S) as response,
        ):
            if response.status_code != 200:
                response.read()
                self._json(response)
            for event in httpx2.EventSource(response):
                parsed = _event(event.event, json.loads(event.data))
                if parsed is not None:
                    yield parsed
                if event.event == "done":
                    return
        raise ServiceError(f"{self.url} ended its answer early")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise ServiceError(f"no service at {self.url}: {type(error).__name__} {error}".strip()) from error

    def _json(self, response: httpx2.Response, allowed: tuple[int, ...] = (200, 202)) -> dict[str, Any]:
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise ServiceError(f"{self.url} is not this service: it answers {response.status_code} without JSON")
        if response.status_code not in allowed:
            raise ServiceProblemError(body)
        return body


def _segment(document_id: str) -> str:
    """Give an id as one path segment, so that no character of it means anything to the URL."""
    return quote(document_id, safe="", errors="replace")


def _event(name: str, data: dict[str, Any]) -> AskEvent | None:
    if name == "status":
        return StatusEvent(Stage(data["stage"]), data["elapsed_s"])
    if name == "token":
        return TokenEvent(data["text"])
    if name == "answer":
        return AnswerEvent(_answer(data))
    if name == "error":
        raise ServiceProblemError(data)
    return None


def _document(data: dict[str, Any]) -> Document:
    return _record(Document, data | {"status": DocumentStatus(data["status"]), "notes": tuple(data["notes"])})


def _answer(data: dict[str, Any]) -> Answer:
    known: dict[str, Any] = {
        "mode": AnswerMode(data["mode"]),
        "document_ids": tuple(data["document_ids"]),
        "citations": tuple(_record(Citation, item) for item in data["citations"]),
        "passages": tuple(_record(Passage, item) for item in data["passages"]),
        "usage": _record(Usage, data["usage"]),
        "notes": tuple(data["notes"]),
    }
    return _record(Answer, data | known)


def _record(record: type[R], data: Mapping[str, Any]) -> R:
    """Give a record; fields that a newer service adds are left out."""
    names = {field.name for field in fields(record)}  # type: ignore[arg-type]  # R is a dataclass here
    return record(**{name: value for name, value in data.items() if name in names})
