"""The verdict of a smoke test: every condition can fail it."""

from pathlib import Path
from typing import Any

import pytest

from cake_api.demo import Demo, DemoError, Question, load_example


def answer(*, quote: str = "", declined: bool = False, cached: int = 100) -> dict[str, Any]:
    citations = [{"quote": quote}] if quote else []
    return {"citations": citations, "declined": declined, "usage": {"cached_tokens": cached}, "ttft_s": 0.5}


def verdict(*answers: tuple[Question, dict[str, Any]]) -> tuple[bool, dict[str, Any]]:
    demo = Demo("http://127.0.0.1:1")
    demo.document = {"num_tokens": 90}
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
def test_each_broken_condition_is_a_failure(row: tuple[Question, dict[str, Any]], failure: str) -> None:
    ok, figures = verdict((GOLD, answer(quote="Ann")), row)
    assert not ok
    assert figures["failures"] == [failure]


def test_a_missing_document_or_question_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="absent.md does not exist"):
        load_example(tmp_path / "absent.md", [])
    (tmp_path / "a.md").write_text("x")
    with pytest.raises(DemoError, match=r"no question given, and .*a.json does not exist"):
        load_example(tmp_path / "a.md", [])
    assert load_example(tmp_path / "a.md", ["Why?"]).questions == (Question("Why?"),)
