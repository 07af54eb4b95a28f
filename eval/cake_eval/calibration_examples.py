"""Answers with known support, made from XQuAD: right, foreign, copied, and wrong ones.

XQuAD (SQuAD's development set in part): github.com/google-deepmind/xquad, CC BY-SA 4.0. One item: "How many
points did the Panthers defense surrender?" with answer "308" in a paragraph of the article Super_Bowl_50.
"""

import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cake_rag.sentences import split_sentences

SUPPORTED_KINDS = ("right_short", "right_sentence", "right_copied", "right_reworded")
UNSUPPORTED_KINDS = (
    "foreign_short",
    "foreign_sentence",
    "foreign_copied",
    "removed_short",
    "removed_sentence",
    "removed_copied",
    "wrong_short",
    "wrong_sentence",
    "wrong_copied",
    "wrong_altered",
)
REWORDED_SHARE = 0.2
LONG_DOCUMENT_ARTICLES = 8

_WH_PHRASE = re.compile(
    r"\b(how (many|much|long|old|often|far)|(what|which)( (was|were|is|are|did))?"
    r"|whom?|when|where|how|why)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question; its short answer starts at ``answer_start`` of paragraph number ``paragraph``."""

    text: str
    answer: str
    paragraph: int
    answer_start: int


@dataclass(frozen=True, slots=True)
class Article:
    """Paragraphs and questions of one article."""

    title: str
    paragraphs: tuple[str, ...]
    questions: tuple[Question, ...]

    @property
    def text(self) -> str:
        """The paragraphs with an empty line between them."""
        return "\n\n".join(self.paragraphs)

    def text_without(self, paragraph: int) -> str:
        """The text without one paragraph."""
        return "\n\n".join(text for number, text in enumerate(self.paragraphs) if number != paragraph)


@dataclass(frozen=True, slots=True)
class Example:
    """An answer to judge. ``answer`` None stands for the document's sentence most similar to the question.

    ``support`` is the part of ``document`` that supports the answer, as text, or None if nothing does.
    """

    kind: str
    question: str
    answer: str | None
    document: str
    support: str | None


def read_articles(path: Path) -> tuple[Article, ...]:
    """Read a gzip file in SQuAD format."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        data = json.load(file)["data"]
    return tuple(_article(record) for record in data)


def make_examples(articles: Sequence[Article], per_article: int, seed: int = 0) -> Iterator[Example]:
    """Yield all kinds of examples for up to ``per_article`` questions of each article.

    Every second question is asked of a long document: ``LONG_DOCUMENT_ARTICLES`` articles in a row. The
    document of a foreign question never has its article.
    """
    rng = random.Random(seed)
    ring = list(articles) * 2
    for number, article in enumerate(articles):
        chosen = rng.sample(article.questions, min(per_article, len(article.questions)))
        for turn, question in enumerate(chosen):
            length = LONG_DOCUMENT_ARTICLES if turn % 2 else 1
            others = [other.text for other in ring[number + 1 : number + length]]
            foreign = "\n\n".join(other.text for other in ring[number + 1 : number + 1 + length])
            document = "\n\n".join([article.text, *others])
            removed = "\n\n".join([article.text_without(question.paragraph), *others])
            yield from _right(question, article, document, foreign, rng)
            yield from _without_support("foreign", question, question.answer, foreign)
            yield from _without_support("removed", question, question.answer, removed)
            yield from _wrong(question, article, document, rng)


def as_sentence(question: str, answer: str) -> str:
    """Put ``answer`` in the place of the question's wh-phrase: "308 points did the Panthers surrender."."""
    body = question.strip().rstrip("?").strip()
    sentence, count = _WH_PHRASE.subn(lambda _: answer, body, count=1)
    if not count:
        sentence = f"{body}: {answer}"
    return sentence[0].upper() + sentence[1:] + "."


def _article(record: dict) -> Article:
    questions = tuple(
        Question(qa["question"], qa["answers"][0]["text"], number, qa["answers"][0]["answer_start"])
        for number, paragraph in enumerate(record["paragraphs"])
        for qa in paragraph["qas"]
    )
    return Article(record["title"], tuple(paragraph["context"] for paragraph in record["paragraphs"]), questions)


def _right(question: Question, article: Article, document: str, foreign: str, rng: random.Random) -> Iterator[Example]:
    support = _sentence_at(article.paragraphs[question.paragraph], question.answer_start)
    sentence = as_sentence(question.text, question.answer)
    reworded = _reword(support, question.answer, foreign, rng)
    for kind, answer in zip(SUPPORTED_KINDS, (question.answer, sentence, support, reworded), strict=True):
        yield Example(kind, question.text, answer, document, support)


def _without_support(name: str, question: Question, answer: str, document: str) -> Iterator[Example]:
    yield Example(f"{name}_short", question.text, answer, document, None)
    yield Example(f"{name}_sentence", question.text, as_sentence(question.text, answer), document, None)
    yield Example(f"{name}_copied", question.text, None, document, None)


def _wrong(question: Question, article: Article, document: str, rng: random.Random) -> Iterator[Example]:
    """Yield the answer to another question of the article, and a sentence without the right answer."""
    wrong = [
        other.answer
        for other in article.questions
        if other.answer not in question.answer and question.answer not in other.answer
    ]
    sentences = [
        text[span.start : span.end]
        for text in article.paragraphs
        for span in split_sentences(text)
        if question.answer not in text[span.start : span.end]
    ]
    if wrong:
        answer = rng.choice(wrong)
        yield Example("wrong_short", question.text, answer, document, None)
        yield Example("wrong_sentence", question.text, as_sentence(question.text, answer), document, None)
        support = _sentence_at(article.paragraphs[question.paragraph], question.answer_start)
        altered = support.replace(question.answer, answer)
        if altered != support:
            yield Example("wrong_altered", question.text, altered, document, None)
    if sentences:
        yield Example("wrong_copied", question.text, rng.choice(sentences), document, None)


def _reword(support: str, answer: str, foreign: str, rng: random.Random) -> str:
    """Put unrelated words in the place of ``REWORDED_SHARE`` of the lower-case words outside the answer.

    It stands for a free rendering: names, numbers and the answer itself stay.
    """
    strangers = re.findall(r"\b[a-z]{4,}\b", foreign)
    kept = set(re.findall(r"\w+", answer))

    def swap(match: re.Match[str]) -> str:
        word = match.group()
        return rng.choice(strangers) if word not in kept and rng.random() < REWORDED_SHARE else word

    return re.sub(r"\b[a-z]{4,}\b", swap, support)


def _sentence_at(text: str, position: int) -> str:
    for span in split_sentences(text):
        if span.start <= position < span.end:
            return text[span.start : span.end]
    return text
