"""The example: a document in, two questions answered from it, one declined; and the verdict of a smoke test."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cake_rag.answering import AnswerEvent, StatusEvent
from cake_rag.client import ServiceClient
from cake_rag.commands.ask import format_answer
from cake_rag.documents import Answer, DocumentStatus

INGEST_SECONDS = 3600.0
SLOW_SECONDS = 10.0
POLL_SECONDS = 0.3


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
        raise DemoError(f"document {document} does not exist or is not a file")
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
        self._client = ServiceClient(url)
        self._say = say
        self.answers: list[tuple[Question, Answer]] = []
        self.document_tokens = 0
        self.ingest_s = 0.0

    def run(self, example: Example) -> None:
        """Ingest the document and ask every question.

        Raises:
            DemoError: If the document cannot be ingested, or an answer does not come.
            cake_rag.client.ServiceError: If the service refuses the document or a question.
        """
        document_id = self._ingest(example.document)
        for question in example.questions:
            self._say(f"\nQ: {question.text}")
            answer = self._ask(question.text, document_id)
            self.answers.append((question, answer))
            self._say(f"A: {format_answer(answer)}")

    def _ask(self, question: str, document_id: str) -> Answer:
        for event in self._client.ask(question, [document_id]):
            if isinstance(event, AnswerEvent):
                return event.answer
            if isinstance(event, StatusEvent) and event.elapsed_s >= SLOW_SECONDS:
                self._say(f"   {event.stage}, {event.elapsed_s:.0f} s")
        raise DemoError(f"no answer to {question!r}")

    def _ingest(self, path: Path) -> str:
        started = time.monotonic()
        document = self._client.upload(path).document
        shown, last = "", started
        while document.status not in (DocumentStatus.READY, DocumentStatus.FAILED):
            now = time.monotonic()
            if now - started > INGEST_SECONDS:
                raise DemoError(f"{path.name} is still {document.status} after {INGEST_SECONDS:.0f} s")
            if document.status != shown or now - last > SLOW_SECONDS:
                shown, last = document.status, now
                self._say(f"document {path.name}: {shown}, {now - started:.0f} s")
            time.sleep(POLL_SECONDS)
            document = self._client.document(document.id)
        if document.status is DocumentStatus.FAILED:
            raise DemoError(f"{path.name} was refused: {document.error}")
        self.ingest_s = time.monotonic() - started
        self.document_tokens = document.num_tokens or 0
        self._say(
            f"document {path.name}: ready after {self.ingest_s:.1f} s, {document.num_tokens} tokens, "
            f"{document.num_chunks} chunks, id {document.id}"
        )
        return document.id

    def verdict(self) -> tuple[bool, dict[str, Any]]:
        """Judge the answers against what is recorded beside the example; gives the verdict and its figures."""
        tokens = self.document_tokens
        failures = []
        for number, (question, answer) in enumerate(self.answers, start=1):
            if question.checked and question.gold is None and not answer.declined:
                failures.append(f"question {number} should be declined")
            if question.gold is not None and not any(question.gold in c.quote for c in answer.citations):
                failures.append(f"no cited span of question {number} holds {question.gold!r}")
            if number > 1 and answer.usage.cached_tokens < tokens:
                failures.append(
                    f"question {number} reused {answer.usage.cached_tokens} tokens of a document of {tokens}"
                )
        figures: dict[str, Any] = {"document_tokens": tokens, "ingest_s": round(self.ingest_s, 2)}
        for number, (_, answer) in enumerate(self.answers, start=1):
            figures[f"cached_tokens_{number}"] = answer.usage.cached_tokens
            figures[f"ttft_{number}_s"] = round(answer.ttft_s, 3)
        figures["failures"] = failures
        return not failures, figures
