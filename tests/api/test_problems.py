import inspect
import logging

import httpx2
import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from cake_api.problems import PROBLEMS, problem_body, row_of
from cake_api.settings import Settings
from cake_rag import errors
from cake_rag.pipeline import Pipeline
from cake_testing.engines import FakeEngine, wait_until
from cake_testing.service import ready_document, upload

SETTINGS = Settings.model_construct()
LEAVES = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if error not in (errors.RagError, errors.EngineError)
]


@pytest.mark.parametrize("error", LEAVES, ids=lambda error: error.__name__)
def test_every_error_of_the_document_side_has_a_row(error: type[Exception]):
    assert error in PROBLEMS


def test_codes_are_unique():
    codes = [row.code for row in PROBLEMS.values()]

    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.EmptyDocumentError("e"), 422, "empty-document"),
        (errors.EncryptedDocumentError("e"), 422, "encrypted-document"),
        (errors.MalformedDocumentError("e"), 422, "malformed-document"),
        (errors.NoTextLayerError("e"), 422, "no-text-layer"),
        (errors.UnsupportedFormatError("e"), 415, "unsupported-format"),
        (errors.DocumentTooLargeError("e"), 413, "document-too-large"),
        (errors.DocumentRejectedError("e"), 422, "document-rejected"),
        (errors.DocumentNotFoundError("e"), 404, "document-not-found"),
        (errors.DocumentNotReadyError("e"), 409, "document-not-ready"),
        (errors.DocumentFailedError("e"), 409, "document-failed"),
        (errors.QuestionRejectedError("e"), 422, "question-rejected"),
        (errors.StoreError("e"), 500, "store-unusable"),
        (errors.EngineUnavailableError("e"), 503, "engine-unavailable"),
        (errors.EngineRequestError("e"), 502, "engine-refused"),
        (errors.RagError("e"), 500, "internal-error"),
        (RuntimeError("e"), 500, "internal-error"),
        (HTTPException(404), 404, "route-not-found"),
        (HTTPException(405), 405, "method-not-allowed"),
        (HTTPException(400), 400, "bad-request"),
        (HTTPException(418), 418, "http-error"),
        (RequestValidationError([]), 422, "invalid-request"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_has_its_status_and_code(error: Exception, status: int, code: str):
    assert (row_of(error).status, row_of(error).code) == (status, code)


def test_a_problem_has_the_members_of_rfc_9457_and_ours():
    error = errors.DocumentNotFoundError("no document has the id x")

    body = problem_body(error, SETTINGS, request_id="r1", instance="/v1/documents/x")

    assert body == {
        "type": "urn:cake-sglang:problem:document-not-found",
        "title": "There is no such document",
        "status": 404,
        "detail": "no document has the id x",
        "instance": "/v1/documents/x",
        "code": "document-not-found",
        "request_id": "r1",
    }


def test_a_limit_is_named_with_its_variable():
    error = errors.DocumentTooLargeError("the text has 9 characters")

    body = problem_body(error, SETTINGS, request_id="r1", instance="/")

    assert body["limits"]["CAKE_API_MAX_DOCUMENT_CHARS"] == 20_000_000


def test_an_unexpected_error_is_not_shown_to_the_client():
    body = problem_body(RuntimeError("secret path"), SETTINGS, request_id="r1", instance="/")

    assert "secret" not in str(body)


def test_an_unexpected_error_is_logged_and_answered_with_a_problem(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(Pipeline, "documents", fail)

    response = client.get("/v1/documents", headers={"X-Request-ID": "r9"})

    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.json()["code"], response.json()["request_id"]) == ("internal-error", "r9")
    assert response.headers["x-request-id"] == "r9"
    wait_until(lambda: any(record.exc_info and "r9" in record.getMessage() for record in caplog.records))


def test_the_log_holds_no_text_of_documents_or_questions(
    client: httpx2.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    document_id = ready_document(client, "The password of the vault is swordfish.")
    client.post("/v1/questions", json={"question": "What is the zebrafish?", "document_ids": [document_id]})
    upload(client, b"\x00\x01binary swordfish\xff\xfe" * 20)

    wait_until(lambda: sum("path=/v1/" in record.getMessage() for record in caplog.records) >= 4)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "request method=POST path=/v1/questions status=200" in text
    assert "swordfish" not in text
    assert "zebrafish" not in text


def test_a_path_cannot_write_a_line_of_its_own_into_the_log(client: httpx2.Client, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="cake_api")

    client.get("/healthz%0Arequest%20method=GET")

    # The line is written after the response has left.
    wait_until(lambda: any("healthz" in record.getMessage() for record in caplog.records))
    [line] = [record.getMessage() for record in caplog.records if "healthz" in record.getMessage()]
    assert "path=/healthz%0Arequest%20method%3DGET status=404" in line
