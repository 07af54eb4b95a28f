"""Sentence boundaries as character ranges, by rules and without a model.

The spans come in order and do not overlap, begin and end with a visible character, and leave out white space
alone. Chunks and citations are cut along them, so a quote is always a verbatim piece of its document.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_SENTENCE_CHARS = 600


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never the end of a sentence: a name or a number follows.
_TITLES = _words(
    "mr mrs ms dr prof rev hon gen col capt cmdr lt sgt sen rep gov pres messrs mme mlle st mt ft "
    "vs cf e.g i.e viz ca approx resp incl esp fig figs eq eqs ref refs sec sect ch chap vol vols ed eds pp "
    "art para nr dipl ing univ dept assn bros al"
)
# The end of a sentence only where a word follows that begins one.
_MAYBE_FINAL = _words(
    "etc inc ltd co corp llc plc jr sr ph.d m.d b.a m.a b.sc m.sc a.m p.m a.d b.c u.s u.k u.n e.u d.c bc ad "
    "ave blvd rd jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun"
)
# Abbreviations only where a number follows: "No. 5", "p. 12".
_BEFORE_NUMBER = _words("no nos p pt sec art ver")
_STARTERS = _words(
    "the a an in on at it its he she they we i you his her their our this that these those there here "
    "however "
    "but and or so if when while where why how what who which as for from to with after before since "
    "although because then thus therefore moreover furthermore finally also both each all some many most "
    "no not "
    "yes one by under during until once"
)

_PARAGRAPH_BREAK = re.compile(r"\n[^\S\n]*\n\s*|\f\s*")
_LINE_STARTS_ITEM = re.compile(
    r"\s*(?:#{1,6}\s|[-*+•▪‣◦–]\s|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]\s|\||>|=+$|-{3,})"
)
_LINE_STARTS_UPPER = re.compile(r"\s*[\"'“‘«(\[]*[A-Z0-9À-ÖØ-Þ]")
# The look-behind and the possessive quantifiers keep a run of a million full stops linear.
_TERMINATOR = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]*_]*+(?:\[\d{1,3}\])*+(?=\s|\Z)|[。！？｡؟।۔]++[\"'”’」』）)\]]*+"
)
_WORD_BEFORE = re.compile(r"[^\W_](?:[^\W_]|[.'’-](?=[^\W_]))*\Z")
_WORD_AFTER = re.compile(r"\s*[\"'“‘«(\[*_]*([^\W_]*)")
_LONGEST_ABBREVIATION = 24


class Span(NamedTuple):
    """A half-open character range ``[start, end)``."""

    start: int
    end: int


def split_sentences(text: str) -> list[Span]:
    r"""Give the sentences of ``text`` in order.

    A sentence ends at ``. ! ? …`` before white space unless the word is an abbreviation, an initial, a list
    number, or a lower-case word follows; at CJK, Arabic and Indic full stops; at a blank line or form feed;
    before a heading, list item, quote or table row; and after a heading-like short line.

    Args:
        text: Any text; newlines are ``\n``.

    Returns:
        Disjoint spans without outer white space, each at most ``MAX_SENTENCE_CHARS`` long (a longer sentence
        is cut at a line end, else a semicolon or comma, else a space). Every visible character is in one.
    """
    spans: list[Span] = []
    for start, end in _paragraphs(text):
        for block_start, block_end in _blocks(text, start, end):
            for sentence_start, sentence_end in _sentences(text, block_start, block_end):
                spans.extend(_bounded(text, sentence_start, sentence_end))
    return spans


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for gap in _PARAGRAPH_BREAK.finditer(text):
        yield start, gap.start()
        start = gap.end()
    yield start, len(text)


def _blocks(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a paragraph before list items and after lines that are short for it and followed by a new start."""
    if text.find("\n", start, end) < 0:
        yield start, end
        return
    lines = text[start:end].split("\n")
    longest = max(map(len, lines))
    block_start = position = start
    previous = ""
    for line in lines:
        is_new = _LINE_STARTS_ITEM.match(line) is not None or previous.lstrip().startswith(("#", "|"))
        if not is_new and len(previous) < 0.6 * longest:
            is_new = _LINE_STARTS_UPPER.match(line) is not None
        if is_new and position > block_start:
            yield block_start, position
            block_start = position
        position += len(line) + 1
        previous = line
    yield block_start, end


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    if text.startswith("|", start):
        # A table row is one piece, whatever full stops its cells have.
        yield start, end
        return
    position = start
    # endpos makes \Z match at `end`, so a full stop there needs no white space behind it.
    for mark in _TERMINATOR.finditer(text, start, end):
        if _ends_sentence(text, position, mark, end):
            yield position, mark.end()
            position = mark.end()
    yield position, end


def _ends_sentence(text: str, start: int, mark: re.Match[str], end: int) -> bool:
    follower = _WORD_AFTER.match(text, mark.end(), min(end, mark.end() + 80))
    next_word = follower.group(1) if follower else ""
    if mark.group()[0] in "。！？｡؟।۔":
        return True
    if next_word[:1].islower():
        return False
    if not mark.group().startswith(".") or mark.group().startswith(".."):
        return True
    word_match = _WORD_BEFORE.search(text, max(start, mark.start() - _LONGEST_ABBREVIATION), mark.start())
    if word_match is None:
        return True
    word = word_match.group()
    lowered = word.lower()
    if word.isdigit() and len(word) <= 3 and not text[start : word_match.start()].strip():
        return False
    if lowered in _TITLES or (len(word) == 1 and word.isupper() and word != "I"):
        return False
    if lowered in _BEFORE_NUMBER and next_word[:1].isdigit():
        return False
    if lowered in _MAYBE_FINAL or ("." in word and all(len(part) == 1 for part in word.split("."))):
        return next_word[:1].isupper() and next_word.lower() in _STARTERS
    return True


def _bounded(text: str, start: int, end: int) -> Iterator[Span]:
    """Strip white space and cut what is longer than the limit."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    while end - start > MAX_SENTENCE_CHARS:
        cut = _soft_cut(text, start, start + MAX_SENTENCE_CHARS)
        stop = cut
        while stop > start and text[stop - 1].isspace():
            stop -= 1
        yield Span(start, stop)
        start = cut
        while start < end and text[start].isspace():
            start += 1
    if start < end:
        yield Span(start, end)


def _soft_cut(text: str, start: int, limit: int) -> int:
    """Give the best cut in the second half of ``[start, limit]``: after a line end, ``;``, ``,``, a space."""
    middle = (start + limit) // 2
    for separator in ("\n", ";", ",", " "):
        found = text.rfind(separator, middle, limit)
        if found >= 0:
            return found + 1
    return limit
