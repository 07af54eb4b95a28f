"""A document's text cut into the pieces that are embedded and retrieved."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from cake_rag.documents import Chunk, Page
from cake_rag.sentences import split_sentences

MIN_TARGET_CHARS = 50
# From the CJK radicals on, a character is about one token of the embedder; Latin text has about four a token.
_FIRST_DENSE_CHAR = "⺀"
_DENSE_CHARS = re.compile(f"[{_FIRST_DENSE_CHAR}-\U0003ffff]")
_DENSE_SHARE = 0.3
_CHARS_PER_TOKEN = 4
_LONGEST_GAP = 40


def chunk_text(text: str, pages: Sequence[Page], target_chars: int = 800) -> list[Chunk]:
    """Cut ``text`` into chunks that cover it exactly and never cross a page.

    A cut is placed after the last paragraph in the second half of the allowed length, else after the last
    sentence, else after the last white space, else at the limit. White space between two chunks belongs to
    the first. Text of mostly dense script (CJK, Hangul) gets chunks of a quarter of the length, because the
    embedder reads at most 256 tokens.

    Args:
        text: The document's text.
        pages: Contiguous ranges that cover ``text``; empty pages are allowed.
        target_chars: Most characters in a chunk, >= 50. 800 Latin characters are about 200 tokens.

    Returns:
        Chunks in order; joined they are ``text``. A chunk may be all white space (a blank page).

    Raises:
        ValueError: If ``pages`` does not cover ``text`` exactly, or ``target_chars`` is too small.
    """
    if target_chars < MIN_TARGET_CHARS:
        raise ValueError(f"target_chars is {target_chars}, allowed is {MIN_TARGET_CHARS} or more")
    _check_pages(text, pages)
    chunks: list[Chunk] = []
    for page in pages:
        page_text = text[page.start : page.end]
        limit = _limit(page_text, target_chars)
        for start, end in _cuts(page_text, limit):
            chunks.append(Chunk(len(chunks), page.start + start, page.start + end, page_text[start:end]))
    return chunks


def _check_pages(text: str, pages: Sequence[Page]) -> None:
    position = 0
    for page in pages:
        if page.start != position or page.end < page.start:
            raise ValueError(f"page {page.number} is [{page.start}, {page.end}), expected start {position}")
        position = page.end
    if position != len(text):
        raise ValueError(f"pages cover {position} of {len(text)} characters")


def _limit(page_text: str, target_chars: int) -> int:
    sample = page_text[:4000]
    if len(_DENSE_CHARS.findall(sample)) > _DENSE_SHARE * len(sample):
        return max(MIN_TARGET_CHARS, target_chars // _CHARS_PER_TOKEN)
    return target_chars


def _cuts(text: str, limit: int) -> Iterator[tuple[int, int]]:
    sentence_starts = [span.start for span in split_sentences(text)]
    paragraph_starts = [start for start in sentence_starts if _begins_paragraph(text, start)]
    position = 0
    while len(text) - position > limit:
        low, high = position + limit // 2, position + limit
        cut = (
            _last_between(paragraph_starts, low, high)
            or _last_between(sentence_starts, low, high)
            or _after_last_space(text, low, high)
            or high
        )
        yield position, cut
        position = cut
    if position < len(text):
        yield position, len(text)


def _begins_paragraph(text: str, start: int) -> bool:
    before = text[max(0, start - _LONGEST_GAP) : start]
    gap = before[len(before.rstrip()) :]
    return gap.count("\n") > 1 or "\f" in gap


def _last_between(starts: Sequence[int], low: int, high: int) -> int | None:
    index = bisect_right(starts, high) - 1
    return starts[index] if index >= 0 and starts[index] > low else None


def _after_last_space(text: str, low: int, high: int) -> int | None:
    for position in range(high, low, -1):
        if text[position - 1].isspace():
            return position
    return None
