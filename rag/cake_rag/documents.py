"""Records that travel through the service: documents, chunks, passages, citations, answers.

Ranges are half-open character ranges ``[start, end)`` of ``Document.text`` (Unicode code points).
"""

from dataclasses import dataclass, field
from enum import StrEnum


class DocumentStatus(StrEnum):
    """Where a document stands on its way to being answerable."""

    STORED = "stored"
    INDEXED = "indexed"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"


class AnswerMode(StrEnum):
    """What the model read: the whole document, or passages retrieved from it."""

    DOCUMENT = "document"
    PASSAGES = "passages"


@dataclass(frozen=True, slots=True)
class Page:
    """One page (PDF) or the whole text (other formats). ``number`` counts from 1."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """What parsing gives: text, pages, the true media type, and notes for the person who uploaded it."""

    text: str
    media_type: str
    pages: tuple[Page, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document. ``id`` is ``doc_`` plus 32 hex digits of the SHA-256 of the uploaded bytes."""

    id: str
    name: str
    media_type: str
    size_bytes: int
    num_chars: int
    num_pages: int
    status: DocumentStatus
    created_at: str
    num_tokens: int | None = None
    num_chunks: int = 0
    notes: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """An indexed piece of a document; the chunks of a document cover it exactly, without gap or overlap."""

    index: int
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrieved chunk with its cosine similarity to the question, -1..1."""

    document_id: str
    document_name: str
    page: int
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Citation:
    """A verbatim span of a document that supports one sentence of an answer.

    ``answer_start``/``answer_end`` are the sentence's range in ``Answer.text``; ``quote`` equals
    ``document.text[start:end]``; ``score`` is in 0..1.
    """

    document_id: str
    document_name: str
    page: int
    start: int
    end: int
    quote: str
    score: float
    answer_start: int
    answer_end: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one generation. ``cached_tokens`` of ``prompt_tokens`` came from the engine's radix tree."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with what supports it.

    ``declined`` means that no sentence of the model's answer is supported by the document: ``text`` then says
    so, and ``unsupported_text`` holds what the model wrote.
    """

    text: str
    declined: bool
    mode: AnswerMode
    document_ids: tuple[str, ...]
    citations: tuple[Citation, ...]
    usage: Usage
    ttft_s: float
    total_s: float
    passages: tuple[Passage, ...] = ()
    unsupported_text: str | None = None
    dropped_quotes: int = 0
    finish_reason: str = "stop"
    notes: tuple[str, ...] = field(default=())
