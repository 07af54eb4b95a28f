import json
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from cake_api.openapi import openapi_text

COMMITTED = Path(__file__).resolve().parents[2] / "api" / "openapi.json"
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def document() -> dict:
    return json.loads(openapi_text())


def operations(document: dict) -> list[tuple[str, dict]]:
    return [
        (f"{method} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_committed_openapi_document_is_what_the_code_gives():
    """When it fails: ``python -m cake_api.openapi``, and look at the difference."""
    assert COMMITTED.read_text(encoding="utf-8") == openapi_text()


def test_the_openapi_document_is_valid(document: dict):
    validate(document)


def test_the_routes_are_these(document: dict):
    assert {name: operation["operationId"] for name, operation in operations(document)} == {
        "post /v1/documents": "upload_document",
        "get /v1/documents": "list_documents",
        "get /v1/documents/{document_id}": "get_document",
        "delete /v1/documents/{document_id}": "delete_document",
        "post /v1/questions": "ask_question",
        "get /healthz": "health",
        "get /readyz": "readiness",
    }


def test_every_refusal_is_documented_as_a_problem(document: dict):
    refusals = [
        (name, status, set(response["content"]))
        for name, operation in operations(document)
        for status, response in operation["responses"].items()
        if status[0] in "45" and name != "get /readyz"
    ]

    assert refusals
    assert all(media_types == {PROBLEM} for _, _, media_types in refusals), refusals


def test_a_question_is_documented_with_examples_and_both_forms_of_answer(document: dict):
    operation = document["paths"]["/v1/questions"]["post"]

    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert document["components"]["schemas"]["QuestionModel"]["examples"]
    assert document["components"]["schemas"]["QuestionModel"]["additionalProperties"] is False
