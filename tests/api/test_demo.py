"""The verdict of a smoke test: every condition can fail it."""

from pathlib import Path
from typing import Any

import pytest

from cake_api.demo import Demo, DemoError, Question, load_example
from cake_rag.documents import Answer, AnswerMode, Citation, Usage


def answer(*, quote: str = "", declined: bool = False, cached: int = 100) -> Answer:
    cited = (Citation("doc_1", "a", 1, 0, len(quote), quote, 1.0, 0, 1),) if quote else ()
    usage = Usage(prompt_tokens=120, cached_tokens=cached, completion_tokens=3)
    return Answer("A.", declined, AnswerMode.DOCUMENT, ("doc_1",), cited, usage, ttft_s=0.5, total_s=1.0)


def verdict(*answers: tuple[Question, Answer]) -> tuple[bool, dict[str, Any]]:
    demo = Demo("http://127.0.0.1:1")
    demo.document_tokens = 90
    demo.answers = list(answers)
    return demo.verdict()


GOLD = Question("Who?", "Ann", True)
NONE = Question("Where?", None, True)


def test_two_cited_answers_and_a_declined_one_pass() -> None:
    ok, figures = verdict(
        (GOLD, answer(quote="It was Ann.", cached=0)),
        (GOLD, answer(quote="Ann did.")),
        (NONE, answer(declined=True)),
    )
    assert ok and figures["failures"] == []
    assert figures["cached_tokens_2"] == 100 and figures["document_tokens"] == 90


@pytest.mark.parametrize(
    ("row", "failure"),
    [
        ((GOLD, answer(quote="It was Bob.")), "no cited span of question 2 holds 'Ann'"),
        ((NONE, answer(quote="Here.")), "question 2 should be declined"),
        ((GOLD, answer(quote="Ann", cached=89)), "question 2 reused 89 tokens of a document of 90"),
    ],
)
def test_each_broken_condition_is_a_failure(row: tuple[Question, Answer], failure: str) -> None:
    ok, figures = verdict((GOLD, answer(quote="Ann")), row)
    assert not ok
    assert figures["failures"] == [failure]


def test_a_missing_document_or_question_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="absent.md does not exist or is not a file"):
        load_example(tmp_path / "absent.md", [])
    (tmp_path / "a.md").write_text("x")
    with pytest.raises(DemoError, match=r"no question given, and .*a.json does not exist"):
        load_example(tmp_path / "a.md", [])
    assert load_example(tmp_path / "a.md", ["Why?"]).questions == (Question("Why?"),)
