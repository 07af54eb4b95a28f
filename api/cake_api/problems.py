"""The single table from error to HTTP answer (RFC 9457, ``application/problem+json``)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cake_api.settings import ENV_PREFIX, Settings
from cake_rag.errors import (
    DocumentFailedError,
    DocumentNotFoundError,
    DocumentNotReadyError,
    DocumentRejectedError,
    DocumentTooLargeError,
    EmptyDocumentError,
    EncryptedDocumentError,
    EngineRequestError,
    EngineUnavailableError,
    MalformedDocumentError,
    NoTextLayerError,
    QuestionRejectedError,
    StoreError,
    UnsupportedFormatError,
)

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "urn:cake-sglang:problem:"
_MAX_VALUE_CHARS = 80


class BodyTooLargeError(HTTPException):
    """The request's body is over its limit. An ``HTTPException``, which FastAPI lets pass while it reads."""

    def __init__(self, detail: str, limits: tuple[str, ...] = ()) -> None:
        """Say what is too large, and which settings bound it."""
        super().__init__(413, detail)
        self.limits = limits


class UnknownCursorError(ValueError):
    """The cursor of a list request belongs to no document."""


class ClientGoneError(Exception):
    """The client closed its connection before the answer; nobody reads this problem but the log."""


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """One row of the table.

    Attributes:
        status: HTTP status code.
        code: Stable word for programs; the last part of the problem's ``type``.
        title: What kind of problem it is, the same for every case.
        retry: Whether the same request may succeed later; sends ``Retry-After``.
        limits: Settings that bound the refused value, shown with their variables.
    """

    status: int
    code: str
    title: str
    retry: bool = False
    limits: tuple[str, ...] = ()


_UPLOAD_LIMITS = ("max_upload_bytes", "max_document_chars", "max_document_pages")
_QUESTION_LIMITS = ("max_question_chars", "max_answer_tokens")

PROBLEMS: Mapping[type[Exception], ProblemRow] = {
    BodyTooLargeError: ProblemRow(413, "body-too-large", "The request is too large"),
    DocumentTooLargeError: ProblemRow(413, "document-too-large", "The document is too large", limits=_UPLOAD_LIMITS),
    EmptyDocumentError: ProblemRow(422, "empty-document", "The document is empty"),
    EncryptedDocumentError: ProblemRow(422, "encrypted-document", "The document needs a password"),
    MalformedDocumentError: ProblemRow(422, "malformed-document", "The document cannot be read"),
    NoTextLayerError: ProblemRow(422, "no-text-layer", "The document holds no text"),
    UnsupportedFormatError: ProblemRow(415, "unsupported-format", "The format is not supported"),
    DocumentRejectedError: ProblemRow(422, "document-rejected", "The document cannot be used"),
    DocumentNotFoundError: ProblemRow(404, "document-not-found", "There is no such document"),
    DocumentFailedError: ProblemRow(409, "document-failed", "The document could not be ingested"),
    DocumentNotReadyError: ProblemRow(409, "document-not-ready", "The document is not ready", retry=True),
    QuestionRejectedError: ProblemRow(
        422, "question-rejected", "The question cannot be asked", limits=_QUESTION_LIMITS
    ),
    UnknownCursorError: ProblemRow(422, "unknown-cursor", "The cursor is unknown"),
    ClientGoneError: ProblemRow(499, "client-gone", "The client closed its connection"),
    EngineUnavailableError: ProblemRow(503, "engine-unavailable", "The engine is not available", retry=True),
    EngineRequestError: ProblemRow(502, "engine-refused", "The engine refused the request"),
    StoreError: ProblemRow(500, "store-unusable", "The stored data cannot be used"),
    RequestValidationError: ProblemRow(422, "invalid-request", "The request is not valid"),
    Exception: ProblemRow(500, "internal-error", "The service failed"),
}
"""Error class to answer; a subclass without a row of its own uses the nearest base class."""

MALFORMED_JSON = ProblemRow(400, "malformed-json", "The body is not valid JSON")

HTTP_PROBLEMS: Mapping[int, ProblemRow] = {
    400: ProblemRow(400, "bad-request", "The request cannot be read"),
    404: ProblemRow(404, "route-not-found", "There is no such route"),
    405: ProblemRow(405, "method-not-allowed", "The route does not take this method"),
    415: ProblemRow(415, "wrong-content-type", "The route does not take this content type"),
}
"""Answers to what the framework itself refuses."""


EXPECTED_CONTENT: Mapping[str, str] = {"/v1/questions": "application/json", "/v1/documents": "multipart/form-data"}
"""What the body of a POST must be."""

_UNREADABLE = "There was an error parsing the body"
"""FastAPI's detail when the JSON decoder itself fails."""


def row_of(error: Exception) -> ProblemRow:
    """Give the row for an error."""
    if isinstance(error, HTTPException) and error.detail == _UNREADABLE:
        return MALFORMED_JSON
    if isinstance(error, HTTPException) and not isinstance(error, BodyTooLargeError):
        fallback = ProblemRow(error.status_code, "http-error", "The request failed")
        return HTTP_PROBLEMS.get(error.status_code, fallback)
    if isinstance(error, RequestValidationError) and _is_malformed_json(error):
        return MALFORMED_JSON
    return next(PROBLEMS[base] for base in type(error).__mro__ if base in PROBLEMS)


def problem_body(error: Exception, settings: Settings, *, request_id: str, instance: str) -> dict[str, Any]:
    """Give the problem document for an error.

    Args:
        error: Any exception.
        settings: For the limits that the problem shows.
        request_id: For the reader of the logs.
        instance: Path of the request.
    """
    row = row_of(error)
    body: dict[str, Any] = {
        "type": f"{_TYPE_PREFIX}{row.code}",
        "title": row.title,
        "status": row.status,
        "detail": _detail(error, row, instance),
        "instance": instance,
        "code": row.code,
        "request_id": request_id,
    }
    if row.retry:
        body["retry_after_s"] = settings.retry_after_s
    limits = error.limits if isinstance(error, BodyTooLargeError) else row.limits
    if limits:
        body["limits"] = {f"{ENV_PREFIX}{name}".upper(): getattr(settings, name) for name in limits}
    if isinstance(error, RequestValidationError) and row is not MALFORMED_JSON:
        body["errors"] = _validation_errors(error)
    return body


def problem_response(request: Request, error: Exception) -> Response:
    """Give the HTTP answer for an error; a handler for Starlette and for the outermost middleware."""
    settings: Settings = request.app.state.settings
    if isinstance(error, RequestValidationError):
        error = _wrong_content_type(request) or error
    row = row_of(error)
    body = problem_body(error, settings, request_id=request.state.request_id, instance=request.url.path)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if row.retry:
        headers["Retry-After"] = str(settings.retry_after_s)
    return JSONResponse(body, row.status, headers, media_type=MEDIA_TYPE)


def _wrong_content_type(request: Request) -> HTTPException | None:
    expected = EXPECTED_CONTENT.get(request.url.path.rstrip("/")) if request.method == "POST" else None
    given = request.headers.get("content-type", "").split(";")[0].strip().lower()
    others = {"application/json": "+json", "multipart/form-data": "form-urlencoded"}
    if expected is None or given == expected or given.endswith(others[expected]):
        return None
    return HTTPException(415, f"the content type is {given[:100] or 'missing'}, expected {expected}")


def _detail(error: Exception, row: ProblemRow, instance: str) -> str:
    if row is PROBLEMS[Exception]:
        return "An unexpected error was logged under this request id."
    if row is MALFORMED_JSON and isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return f"{first['ctx']['error']} at character {first['loc'][-1]}"
    if isinstance(error, RequestValidationError):
        return "; ".join(f"{item['field']}: {item['message']}" for item in _validation_errors(error))
    if isinstance(error, BodyTooLargeError):
        return error.detail
    if row is MALFORMED_JSON:
        return "the body cannot be decoded: it must be UTF-8, nested less than 1,000 deep, integers below 4,300 digits"
    if isinstance(error, HTTPException):
        return error.detail if row.status == 415 else f"{error.detail}: {instance}"
    return str(error) or row.title


def _is_malformed_json(error: RequestValidationError) -> bool:
    return any(item["type"] == "json_invalid" for item in error.errors())


def _validation_errors(error: RequestValidationError | ValidationError) -> list[dict[str, str]]:
    return [
        {
            "field": ".".join(str(part) for part in item["loc"]),
            "message": item["msg"],
            "value": _shown(item.get("input")),
        }
        for item in error.errors()
    ]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}… ({len(text)} characters)"
