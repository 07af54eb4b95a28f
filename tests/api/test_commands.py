import json
from pathlib import Path

import httpx2
import pytest

from cake_rag.commands import ask, docs, status
from cake_testing.engines import FakeEngine
from cake_testing.service import ANSWER, LIGHTHOUSE, ready_document, upload, wait_for_status

QUESTION = "Who lit the lamp on the night of the storm?"


@pytest.fixture
def url(client: httpx2.Client) -> str:
    return str(client.base_url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lighthouse.txt"
    path.write_text(LIGHTHOUSE)
    return path


def test_ask_prints_the_answer_with_its_citation_and_tokens(client, url: str, capsys: pytest.CaptureFixture[str]):
    document_id = ready_document(client)

    code = ask.main([QUESTION, "--doc", document_id, "--url", url])

    captured = capsys.readouterr()
    assert code == 0
    assert captured.out.startswith(ANSWER)
    assert f"[1] “{ANSWER}”" in captured.out
    assert "lighthouse.txt, page 1, characters" in captured.out
    assert "prompt tokens were cached" in captured.out
    assert "prefilling" in captured.err


def test_ask_prints_json_that_programs_can_read(client, url: str, capsys: pytest.CaptureFixture[str]):
    ready_document(client)

    code = ask.main([QUESTION, "--json", "--url", url])

    assert code == 0
    assert json.loads(capsys.readouterr().out)["text"] == ANSWER


def test_ask_shows_what_the_model_wrote_without_support(
    client, url: str, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
):
    ready_document(client)
    engine.behaviour.reply = lambda _: "Napoleon bought nine thousand tulips."

    ask.main(["What did Napoleon buy?", "--url", url])

    assert "The model wrote, without support: Napoleon bought" in capsys.readouterr().out


def test_ask_prints_one_line_for_a_refused_question(client, url: str, capsys: pytest.CaptureFixture[str]):
    code = ask.main(["  ", "--url", url])

    assert code == 1
    assert capsys.readouterr().err == (
        "error: The question cannot be asked: the question is empty, expected 1..4000 characters\n"
    )


def test_ask_tells_an_engine_that_died_from_a_refusal(
    client, url: str, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
):
    ready_document(client)
    engine.behaviour.die_after_tokens = 2

    code = ask.main([QUESTION, "--url", url])

    assert code == 3
    assert "error: The engine is not available" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [lambda url: ask.main(["Who?", "--url", url]), lambda url: status.main(["--url", url])]
)
def test_a_service_that_is_away_gives_one_line_that_says_what_to_do(command, capsys: pytest.CaptureFixture[str]):
    code = command("http://127.0.0.1:9")

    error = capsys.readouterr().err
    assert code == 3
    assert error.startswith("error: no service at http://127.0.0.1:9: ConnectError")
    assert "cake-sglang up" in error
    assert error.count("\n") == 1


def test_another_server_is_not_taken_for_the_service(engine: FakeEngine, capsys: pytest.CaptureFixture[str]):
    code = docs.main(["--url", engine.url, "show", "doc_0"])

    assert code != 0
    assert capsys.readouterr().err.startswith("error: ")


def test_docs_add_waits_until_the_document_can_be_asked(
    client, url: str, file: Path, capsys: pytest.CaptureFixture[str]
):
    code = docs.main(["--url", url, "add", str(file)])

    document_id = capsys.readouterr().out.strip()
    assert code == 0
    assert client.get(f"/v1/documents/{document_id}").json()["status"] == "ready"


def test_docs_add_without_waiting_returns_at_once(
    client, url: str, file: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
):
    engine.behaviour.prefill_gate.clear()

    code = docs.main(["--url", url, "add", "--no-wait", str(file)])

    assert code == 0
    assert capsys.readouterr().out.startswith("doc_")


def test_docs_add_says_that_the_same_bytes_were_stored_before(
    client, url: str, file: Path, capsys: pytest.CaptureFixture[str]
):
    ready_document(client)

    docs.main(["--url", url, "add", str(file)])

    assert "the same bytes were stored before" in capsys.readouterr().err


def test_docs_add_reports_a_failed_ingestion(
    client, url: str, file: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
):
    engine.behaviour.refuse_generate = (400, "no such thing")

    code = docs.main(["--url", url, "add", str(file)])

    assert code == 1
    assert "no such thing" in capsys.readouterr().err


def test_docs_add_reports_a_file_that_is_not_there(url: str, capsys: pytest.CaptureFixture[str]):
    code = docs.main(["--url", url, "add", "/no/such/file"])

    assert code == 1
    assert capsys.readouterr().err == "error: /no/such/file: No such file or directory\n"


def test_docs_list_shows_every_document_over_all_pages(client, url: str, capsys: pytest.CaptureFixture[str]):
    for number in range(53):
        upload(client, f"Document number {number}.", f"{number}.txt")

    code = docs.main(["--url", url, "list"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert len(lines) == 53
    assert lines[0].endswith("52.txt")


def test_docs_show_and_delete(client, url: str, capsys: pytest.CaptureFixture[str]):
    document_id = ready_document(client)

    shown = docs.main(["--url", url, "show", document_id])
    deleted = docs.main(["--url", url, "delete", document_id])
    again = docs.main(["--url", url, "delete", document_id])

    captured = capsys.readouterr()
    assert (shown, deleted, again) == (0, 0, 1)
    assert "name        lighthouse.txt" in captured.out
    assert captured.err == f"error: There is no such document: no document has the id {document_id}\n"


@pytest.mark.parametrize("document_id", ["a?limit=1", "a#b", "a%2Fb?c", "\udcff"])
def test_no_character_of_an_id_means_anything_to_the_url(
    url: str, document_id: str, capsys: pytest.CaptureFixture[str]
):
    assert docs.main(["--url", url, "show", document_id]) == 1
    assert docs.main(["--url", url, "delete", document_id]) == 1

    shown = document_id.replace("\udcff", "?")
    line = f"error: There is no such document: no document has the id {shown}\n"
    assert capsys.readouterr().err == line * 2


def test_an_id_cannot_name_another_route(client: httpx2.Client, url: str):
    ready_document(client)

    assert docs.main(["--url", url, "delete", "../documents"]) == 1
    assert len(client.get("/v1/documents").json()["documents"]) == 1


def test_status_counts_documents_and_names_the_model(
    client, url: str, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
):
    ready_document(client)

    code = status.main(["--url", url])

    out = capsys.readouterr().out
    assert code == 0
    assert "/models/fake, 2048 tokens of context" in out
    assert "1 ready" in out


def test_status_says_why_the_service_is_not_ready(
    client, url: str, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
):
    engine.behaviour.prefill_gate.clear()
    document_id = upload(client).json()["id"]
    wait_for_status(client, document_id, "warming")
    engine.behaviour.ready_status = 503

    code = status.main(["--url", url])

    out = capsys.readouterr().out
    assert code == 3
    assert "engine     loading: " in out
    assert "1 warming" in out


def test_the_url_comes_from_the_environment(
    client, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("CAKE_API_URL", url)

    assert status.main([]) == 0
