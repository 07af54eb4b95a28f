"""Requests that the service's tests share, and the document that they are about."""

import json
import time
from typing import Any

import httpx2

LIGHTHOUSE = (
    "The lighthouse of Skerry Rock was built in 1854 by the engineer Alan Brodie. "
    "The keeper's daughter lit the lamp on the night of the great storm. "
    "Seven sailors were saved before the morning came. "
    "The lamp burned whale oil until 1880, when paraffin took its place."
)
ANSWER = "The keeper's daughter lit the lamp on the night of the great storm."


def upload(client: httpx2.Client, data: bytes | str = LIGHTHOUSE, name: str = "lighthouse.txt") -> httpx2.Response:
    content = data.encode() if isinstance(data, str) else data
    return client.post("/v1/documents", files={"file": (name, content)})


def ready_document(client: httpx2.Client, data: bytes | str = LIGHTHOUSE, name: str = "lighthouse.txt") -> str:
    document_id = upload(client, data, name).json()["id"]
    wait_for_status(client, document_id, "ready")
    return document_id


def wait_for_status(client: httpx2.Client, document_id: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while (body := client.get(f"/v1/documents/{document_id}").json())["status"] != status:
        assert body["status"] != "failed" or status == "failed", body
        assert time.monotonic() < deadline, body
        time.sleep(0.02)
    return body


def events(client: httpx2.Client, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    with client.stream("POST", "/v1/questions", json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        return [(event.event, json.loads(event.data)) for event in httpx2.EventSource(response)]
