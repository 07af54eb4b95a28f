"""Tables of the document store, and a document record as a row."""

import json

from cake_rag.documents import Document, DocumentStatus

SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE documents (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    num_chars INTEGER NOT NULL,
    num_pages INTEGER NOT NULL,
    status TEXT NOT NULL,
    created_at TEXT NOT NULL,
    num_tokens INTEGER,
    num_chunks INTEGER NOT NULL,
    notes TEXT NOT NULL,
    error TEXT,
    sha256 TEXT NOT NULL
);
CREATE TABLE texts (
    document_id TEXT PRIMARY KEY REFERENCES documents(id) ON DELETE CASCADE,
    text TEXT NOT NULL
);
CREATE TABLE pages (
    document_id TEXT NOT NULL REFERENCES documents(id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL,
    PRIMARY KEY (document_id, number)
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document_id TEXT NOT NULL REFERENCES documents(id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    start INTEGER NOT NULL,
    "end" INTEGER NOT NULL,
    text TEXT NOT NULL,
    is_blank INTEGER NOT NULL,
    UNIQUE (document_id, position)
);
CREATE TABLE tokens (
    document_id TEXT NOT NULL REFERENCES documents(id) ON DELETE CASCADE,
    model_id TEXT NOT NULL,
    ids BLOB NOT NULL,
    PRIMARY KEY (document_id, model_id)
) WITHOUT ROWID;
"""
COLUMNS = (
    "id, name, media_type, size_bytes, num_chars, num_pages, status, created_at, num_tokens, num_chunks, notes, error"
)


def to_row(document: Document) -> tuple[str | int | None, ...]:
    """Give the values of ``COLUMNS``."""
    return (
        document.id,
        document.name,
        document.media_type,
        document.size_bytes,
        document.num_chars,
        document.num_pages,
        document.status.value,
        document.created_at,
        document.num_tokens,
        document.num_chunks,
        json.dumps(document.notes),
        document.error,
    )


def from_row(row: tuple) -> Document:
    """Give the record of a row of ``COLUMNS``."""
    *leading, status, created_at, num_tokens, num_chunks, notes, error = row
    return Document(
        *leading,
        status=DocumentStatus(status),
        created_at=created_at,
        num_tokens=num_tokens,
        num_chunks=num_chunks,
        notes=tuple(json.loads(notes)),
        error=error,
    )
