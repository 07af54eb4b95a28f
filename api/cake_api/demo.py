"""The example: a document in, two questions answered from it, one declined; and the verdict of a smoke test."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

INGEST_SECONDS = 900.0
ANSWER_SECONDS = 900.0


class DemoError(RuntimeError):
    """The example cannot be run: a file is missing, or the service refused it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with what is known about its answer. ``gold`` None: the document does not answer it."""

    text: str
    gold: str | None = None
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """A document and the questions to ask about it."""

    document: Path
    questions: tuple[Question, ...]


def load_example(document: Path, questions: Sequence[str]) -> Example:
    """Find the questions for a document: those given, else those of the ``.json`` file beside it.

    Raises:
        DemoError: If the document is missing, or no question is known for it.
    """
    if not document.is_file():
        raise DemoError(f"document {document} does not exist")
    if questions:
        return Example(document, tuple(Question(text) for text in questions))
    recorded = document.with_suffix(".json")
    if not recorded.is_file():
        raise DemoError(f"no question given, and {recorded} does not exist; give QUESTION=... or --question")
    rows = json.loads(recorded.read_text(encoding="utf-8"))["questions"]
    return Example(document, tuple(Question(row["question"], row["gold"], True) for row in rows))


class Demo:
    """Runs an example against a running service and keeps what smoke needs to judge."""

    def __init__(self, url: str, say: Callable[[str], None] = print) -> None:
        """Talk to the service at ``url``; ``say`` takes each line for the person."""
        self._http = httpx2.Client(base_url=url, timeout=ANSWER_SECONDS)
        self._say = say
        self.answers: list[tuple[Question, dict[str, Any]]] = []
        self.document: dict[str, Any] = {}
        self.ingest_s = 0.0

    def run(self, example: Example) -> None:
        """Ingest the document and ask every question.

        Raises:
            DemoError: If the service refuses the document or a question.
        """
        self.document = self._ingest(example.document)
        for question in example.questions:
            answer = self._checked(
                self._http.post(
                    "/v1/questions", json={"question": question.text, "document_ids": [self.document["id"]]}
                )
            )
            self.answers.append((question, answer))
            self._show(question, answer)

    def _ingest(self, path: Path) -> dict[str, Any]:
        started = time.monotonic()
        with path.open("rb") as file:
            document = self._checked(self._http.post("/v1/documents", files={"file": (path.name, file)}))
        last = ""
        while document["status"] not in ("ready", "failed"):
            elapsed = time.monotonic() - started
            if elapsed > INGEST_SECONDS:
                raise DemoError(f"{path.name} is still {document['status']} after {INGEST_SECONDS:.0f} s")
            if document["status"] != last:
                last = document["status"]
                self._say(f"document {path.name}: {last}, {elapsed:.0f} s")
            time.sleep(0.3)
            document = self._checked(self._http.get(f"/v1/documents/{document['id']}"))
        if document["status"] == "failed":
            raise DemoError(f"{path.name} was refused: {document['error']}")
        self.ingest_s = time.monotonic() - started
        self._say(
            f"document {path.name}: ready after {self.ingest_s:.1f} s, {document['num_tokens']} tokens, "
            f"{document['num_chunks']} chunks"
        )
        return document

    @staticmethod
    def _checked(response: httpx2.Response) -> dict[str, Any]:
        body = response.json()
        if response.status_code >= 400:
            raise DemoError(f"the service answered {response.status_code}: {body.get('detail', body)}")
        return body

    def _show(self, question: Question, answer: dict[str, Any]) -> None:
        usage = answer["usage"]
        self._say(f"\nQ: {question.text}")
        self._say(f"A: {answer['text']}")
        for citation in answer["citations"]:
            self._say(
                f'   "{citation["quote"]}"\n   {citation["document_name"]}, page {citation["page"]}, '
                f"characters {citation['start']}-{citation['end']}, support {citation['score']:.2f}"
            )
        self._say(
            f"   first token {answer['ttft_s']:.2f} s, whole answer {answer['total_s']:.2f} s; "
            f"{usage['cached_tokens']} of {usage['prompt_tokens']} prompt tokens came from the cache "
            f"(mode {answer['mode']})"
        )

    def verdict(self) -> tuple[bool, dict[str, Any]]:
        """Judge the answers against what is recorded beside the example; gives the verdict and its figures."""
        tokens = self.document["num_tokens"]
        failures = []
        for number, (question, answer) in enumerate(self.answers, start=1):
            if question.checked and question.gold is None and not answer["declined"]:
                failures.append(f"question {number} should be declined")
            if question.gold is not None and not any(
                question.gold in c["quote"] for c in answer["citations"]
            ):
                failures.append(f"no cited span of question {number} holds {question.gold!r}")
            if number > 1 and answer["usage"]["cached_tokens"] < tokens:
                failures.append(
                    f"question {number} reused {answer['usage']['cached_tokens']} tokens of a document of {tokens}"
                )
        figures: dict[str, Any] = {"document_tokens": tokens, "ingest_s": round(self.ingest_s, 2)}
        for number, (_, answer) in enumerate(self.answers, start=1):
            figures[f"cached_tokens_{number}"] = answer["usage"]["cached_tokens"]
            figures[f"ttft_{number}_s"] = round(answer["ttft_s"], 3)
        figures["failures"] = failures
        return not failures, figures
