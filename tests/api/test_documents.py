import logging
from pathlib import Path

import httpx2
import pytest

from cake_testing.engines import FakeEngine, wait_until
from cake_testing.service import LIGHTHOUSE, ready_document, upload, wait_for_status


def test_an_upload_is_accepted_and_ingested_in_the_background(client: httpx2.Client):
    response = upload(client)
    body = response.json()

    assert response.status_code == 202
    assert response.headers["location"] == f"/v1/documents/{body['id']}"
    assert (body["name"], body["media_type"], body["deduplicated"]) == ("lighthouse.txt", "text/plain", False)
    ready = wait_for_status(client, body["id"], "ready")
    assert ready["num_tokens"] > 0
    assert ready["num_chars"] == len(LIGHTHOUSE)


def test_the_same_bytes_again_give_the_same_document(client: httpx2.Client):
    first = upload(client).json()

    response = upload(client, name="other.txt")

    assert response.status_code == 200
    assert response.json()["deduplicated"]
    assert (response.json()["id"], response.json()["name"]) == (first["id"], "lighthouse.txt")
    assert response.headers["location"] == f"/v1/documents/{first['id']}"


def test_a_name_that_lies_about_the_content_is_noted(client: httpx2.Client):
    body = upload(client, b"<!DOCTYPE html><html><body><p>Seven sailors were saved.</p></body></html>", "a.pdf").json()

    assert body["media_type"] == "text/html"
    assert body["notes"] == ["the name ends in .pdf, the content is HTML and was read as such"]


def test_documents_are_listed_newest_first_in_pages(client: httpx2.Client):
    ids = [upload(client, f"Document number {number}.", f"{number}.txt").json()["id"] for number in range(5)]

    first = client.get("/v1/documents", params={"limit": 2}).json()
    second = client.get("/v1/documents", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    third = client.get("/v1/documents", params={"limit": 2, "cursor": second["next_cursor"]}).json()

    pages = [[document["id"] for document in page["documents"]] for page in (first, second, third)]
    assert pages == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]
    assert third["next_cursor"] is None


def test_a_full_last_page_has_no_cursor(client: httpx2.Client):
    upload(client)

    assert client.get("/v1/documents", params={"limit": 1}).json()["next_cursor"] is None


def test_a_deleted_document_is_gone(client: httpx2.Client):
    document_id = ready_document(client)

    response = client.delete(f"/v1/documents/{document_id}")

    assert (response.status_code, response.content) == (204, b"")
    assert client.get(f"/v1/documents/{document_id}").status_code == 404
    assert client.delete(f"/v1/documents/{document_id}").status_code == 404
    assert client.get("/v1/documents").json()["documents"] == []


def test_a_deleted_document_can_be_uploaded_again(client: httpx2.Client):
    document_id = ready_document(client)
    client.delete(f"/v1/documents/{document_id}")

    assert ready_document(client) == document_id


def test_documents_survive_a_restart(service, engine: FakeEngine):
    with service() as client:
        document_id = ready_document(client)

    with service() as client:
        [document] = client.get("/v1/documents").json()["documents"]

    assert (document["id"], document["status"]) == (document_id, "ready")


def test_ingestion_goes_on_after_a_restart(service, engine: FakeEngine):
    engine.behaviour.prefill_gate.clear()
    with service() as client:
        document_id = upload(client).json()["id"]
        wait_for_status(client, document_id, "warming")
    engine.behaviour.prefill_gate.set()

    with service() as client:
        wait_for_status(client, document_id, "ready")


def test_stopping_the_service_aborts_the_warm_up_in_the_engine(service, engine: FakeEngine):
    engine.behaviour.prefill_gate.clear()
    with service() as client:
        document_id = upload(client).json()["id"]
        wait_until(engine.generation_started.is_set)
        wait_for_status(client, document_id, "warming")

    assert engine.aborted == [engine.generated[0]["rid"]]


def test_ingestion_waits_for_an_engine_that_starts_later(service, engine: FakeEngine):
    with FakeEngine() as late:
        port = late.port
    with service(engine_url=f"http://127.0.0.1:{port}") as client:
        document_id = upload(client).json()["id"]
        wait_for_status(client, document_id, "indexed")
        with FakeEngine(port):
            wait_for_status(client, document_id, "ready")


def test_a_document_that_fails_does_not_stop_those_behind_it(client: httpx2.Client, engine: FakeEngine):
    engine.behaviour.refuse_generate = (400, "no such thing")
    bad = upload(client, "The first document.").json()["id"]
    failed = wait_for_status(client, bad, "failed")
    engine.behaviour.refuse_generate = None

    ready_document(client, "The second document.")

    assert "no such thing" in failed["error"]


def test_a_failed_document_can_be_uploaded_again(client: httpx2.Client, engine: FakeEngine):
    engine.behaviour.refuse_generate = (400, "no such thing")
    document_id = upload(client).json()["id"]
    wait_for_status(client, document_id, "failed")
    engine.behaviour.refuse_generate = None

    again = upload(client)

    assert (again.status_code, again.json()["deduplicated"]) == (202, False)
    wait_for_status(client, document_id, "ready")


def test_a_document_deleted_while_it_is_ingested_stays_deleted_without_an_error(
    client: httpx2.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture
):
    engine.behaviour.prefill_gate.clear()
    document_id = upload(client).json()["id"]
    wait_for_status(client, document_id, "warming")

    client.delete(f"/v1/documents/{document_id}")
    engine.behaviour.prefill_gate.set()

    ready_document(client, "Another document.")
    assert len(client.get("/v1/documents").json()["documents"]) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_document_that_does_not_fit_says_so_in_its_notes(client: httpx2.Client):
    document_id = ready_document(client, "The sea is deep and cold in winter. " * 300)

    [note] = client.get(f"/v1/documents/{document_id}").json()["notes"]

    assert "answered from retrieved passages" in note


def test_uploaded_names_lose_their_path(client: httpx2.Client, tmp_path: Path):
    assert upload(client, name="../../../etc/passwd").json()["name"] == "passwd"


@pytest.mark.parametrize("limit", [0, 201, "x"])
def test_a_page_size_out_of_range_is_refused(client: httpx2.Client, limit: object):
    response = client.get("/v1/documents", params={"limit": str(limit)})

    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "query.limit"
