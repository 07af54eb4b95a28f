import json
import time
from threading import Thread

import httpx2

from cake_testing.engines import FakeEngine, wait_until
from cake_testing.service import ANSWER, LIGHTHOUSE, events, ready_document, upload, wait_for_status

QUESTION = "Who lit the lamp on the night of the storm?"


def ask(client: httpx2.Client, **body: object) -> httpx2.Response:
    return client.post("/v1/questions", json={"question": QUESTION} | body)


def test_an_answer_is_cited_verbatim(client: httpx2.Client):
    document_id = ready_document(client)

    body = ask(client, document_ids=[document_id]).json()

    [citation] = body["citations"]
    assert (body["text"], body["declined"], body["mode"]) == (ANSWER, False, "document")
    assert citation["document_id"] == document_id
    assert LIGHTHOUSE[citation["start"] : citation["end"]] == citation["quote"]
    assert citation["page"] == 1


def test_a_second_question_reports_the_documents_tokens_as_cached(client: httpx2.Client):
    document_id = ready_document(client)
    tokens = client.get(f"/v1/documents/{document_id}").json()["num_tokens"]

    usages = [ask(client, question=text, document_ids=[document_id]).json()["usage"] for text in (QUESTION, "When?")]

    assert all(usage["cached_tokens"] >= tokens for usage in usages)
    assert all(usage["cached_tokens"] < usage["prompt_tokens"] for usage in usages)


def test_an_unsupported_answer_is_declined(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.reply = lambda _: "Napoleon bought nine thousand tulips in Haarlem."

    body = ask(client, question="What did Napoleon buy?", document_ids=[document_id]).json()

    assert (body["declined"], body["citations"]) == (True, [])
    assert body["unsupported_text"] == "Napoleon bought nine thousand tulips in Haarlem."


def test_without_document_ids_the_best_document_is_chosen(client: httpx2.Client):
    lighthouse = ready_document(client)
    ready_document(client, "Bread is made of flour, water, yeast and salt.", "bread.txt")

    assert ask(client).json()["document_ids"] == [lighthouse]


def test_a_document_that_does_not_fit_is_answered_from_listed_passages(client: httpx2.Client):
    text = " ".join(f"Ship number {number} sailed in the year {1800 + number}." for number in range(300))
    document_id = ready_document(client, text)

    body = ask(client, question="When did ship number 77 sail?", document_ids=[document_id]).json()

    assert body["mode"] == "passages"
    assert all(text[item["start"] : item["end"]] == item["text"] for item in body["passages"])


def test_max_tokens_bounds_the_answer(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)

    ask(client, document_ids=[document_id], max_tokens=3)

    assert engine.generated[-1]["sampling_params"]["max_new_tokens"] == 3


def test_a_stream_gives_status_tokens_answer_usage_and_done(client: httpx2.Client):
    document_id = ready_document(client)

    seen = events(client, {"question": QUESTION, "document_ids": [document_id]})

    names = [name for name, _ in seen]
    assert list(dict.fromkeys(names)) == ["status", "token", "answer", "usage", "done"]
    assert names[-3:] == ["answer", "usage", "done"]
    assert "".join(data["text"] for name, data in seen if name == "token") == ANSWER
    answer = next(data for name, data in seen if name == "answer")
    assert answer["text"] == ANSWER
    assert answer["usage"] == next(data for name, data in seen if name == "usage")


def test_a_stream_may_not_be_stored_or_buffered(client: httpx2.Client):
    document_id = ready_document(client)
    body = {"question": QUESTION, "document_ids": [document_id], "stream": True}

    with client.stream("POST", "/v1/questions", json=body) as response:
        response.read()

    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


def test_a_stream_is_never_silent_while_the_engine_prefills(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.prefill_gate.clear()
    body = {"question": QUESTION, "document_ids": [document_id], "stream": True}

    with client.stream("POST", "/v1/questions", json=body) as response:
        stream = iter(httpx2.EventSource(response))
        stages = [json.loads(next(stream).data)["stage"] for _ in range(5)]

    assert stages == ["queued", *["prefilling"] * 4]


def test_leaving_a_stream_aborts_the_generation(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.prefill_gate.clear()
    body = {"question": QUESTION, "document_ids": [document_id], "stream": True}

    with client.stream("POST", "/v1/questions", json=body) as response:
        next(iter(httpx2.EventSource(response)))
        wait_until(lambda: len(engine.generated) == 2)

    wait_until(engine.abort_seen.is_set)
    assert engine.aborted == [engine.generated[-1]["rid"]]


def test_leaving_before_a_json_answer_aborts_the_generation(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.prefill_gate.clear()
    leaving = httpx2.Client(base_url=client.base_url, timeout=0.3, trust_env=False)

    try:
        ask(leaving, document_ids=[document_id])
    except httpx2.ReadTimeout:
        leaving.close()

    wait_until(engine.abort_seen.is_set)
    assert engine.aborted == [engine.generated[-1]["rid"]]


def test_an_engine_killed_in_mid_answer_ends_the_stream_with_a_problem(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.die_after_tokens = 3

    seen = events(client, {"question": QUESTION, "document_ids": [document_id]})

    assert [name for name, _ in seen][-2:] == ["error", "done"]
    problem = seen[-2][1]
    assert (problem["status"], problem["code"], problem["retry_after_s"]) == (503, "engine-unavailable", 5)


def test_an_engine_killed_in_mid_answer_gives_503_with_retry_advice(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.die_after_tokens = 3

    response = ask(client, document_ids=[document_id])

    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert response.json()["code"] == "engine-unavailable"


def test_a_killed_engine_costs_no_document_and_answers_come_back_with_it(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.die_after_tokens = 3
    assert ask(client, document_ids=[document_id]).status_code == 503
    engine.behaviour.die_after_tokens = None

    assert ask(client, document_ids=[document_id]).json()["text"] == ANSWER


def test_an_engine_that_is_down_is_known_before_a_stream_begins(service, engine: FakeEngine):
    with service() as client:
        document_id = ready_document(client)
        engine.stop()

        response = ask(client, document_ids=[document_id], stream=True)

    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"


def test_a_document_under_way_is_a_conflict_with_retry_advice(client: httpx2.Client, engine: FakeEngine):
    engine.behaviour.prefill_gate.clear()
    document_id = upload(client).json()["id"]
    wait_for_status(client, document_id, "warming")

    response = ask(client, document_ids=[document_id])

    assert response.status_code == 409
    assert response.json()["code"] == "document-not-ready"
    assert response.headers["retry-after"] == "5"
    engine.behaviour.prefill_gate.set()


def test_a_failed_document_is_a_conflict_with_its_reason(client: httpx2.Client, engine: FakeEngine):
    engine.behaviour.refuse_generate = (400, "no such thing")
    document_id = upload(client).json()["id"]
    wait_for_status(client, document_id, "failed")

    response = ask(client, document_ids=[document_id])

    assert (response.status_code, response.json()["code"]) == (409, "document-failed")
    assert "no such thing" in response.json()["detail"]
    assert "retry-after" not in response.headers


def test_the_service_answers_others_while_a_question_runs(client: httpx2.Client, engine: FakeEngine):
    document_id = ready_document(client)
    engine.behaviour.prefill_gate.clear()
    asking = Thread(target=ask, args=(client,), kwargs={"document_ids": [document_id]})
    asking.start()
    wait_until(lambda: len(engine.generated) == 2)

    started = time.monotonic()
    assert client.get("/healthz").status_code == 200
    elapsed_s = time.monotonic() - started
    engine.behaviour.prefill_gate.set()
    asking.join()

    assert elapsed_s < 5.0
