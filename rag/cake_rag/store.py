"""Documents on disk: SQLite for records and text, content-addressed files for the uploaded bytes.

The order of writes makes every crash harmless: bytes are on disk before the record that names them, and a
record is gone before its bytes are. Bytes without a record are removed when the store opens.
"""

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from cake_rag.blobs import BlobFolder
from cake_rag.documents import Chunk, Document, DocumentStatus, Page, ParsedDocument
from cake_rag.errors import DocumentNotFoundError, StoreError
from cake_rag.store_schema import COLUMNS, SCHEMA, SCHEMA_VERSION, from_row, to_row

DATABASE_NAME = "documents.sqlite3"
_UNFINISHED = (DocumentStatus.STORED, DocumentStatus.INDEXED, DocumentStatus.WARMING)


def document_id(data: bytes) -> str:
    """Give the id of the document with these bytes: ``doc_`` and 32 hex digits of their SHA-256."""
    return f"doc_{hashlib.sha256(data).hexdigest()[:32]}"


class Store:
    """All that is known about the documents, except their vectors.

    Safe to share between threads; a write is on disk when its method returns. Every method may raise
    ``StoreError`` if the database fails, and every method with an id ``DocumentNotFoundError``.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the store.

        Args:
            path: Folder of the store; it is created if absent.

        Raises:
            StoreError: If the folder or database cannot be used, or was written by a newer version.
        """
        self._lock = RLock()
        self._database = path / DATABASE_NAME
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._blobs = BlobFolder(path / "blobs")
        except OSError as error:
            raise StoreError(f"cannot use {path}: {error.strerror}") from error
        with self._reported():
            self._connection = sqlite3.connect(
                self._database, timeout=10.0, isolation_level=None, check_same_thread=False
            )
        try:
            with self._reported():
                self._prepare()
        except StoreError:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self._database} has schema version {version}, this program reads up to {SCHEMA_VERSION}; "
                f"upgrade cake-sglang or choose another data folder"
            )
        if version == 0:
            self._connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        rows = self._connection.execute("SELECT sha256 FROM documents")
        self._blobs.remove_all_except({sha256 for (sha256,) in rows})

    def close(self) -> None:
        """Close the database; the store is of no use afterwards."""
        with self._lock:
            self._connection.close()

    def put_document(
        self, document: Document, data: bytes, parsed: ParsedDocument | None = None
    ) -> tuple[Document, bool]:
        """Store a document with its bytes.

        Args:
            document: The record; its id is ``document_id(data)``.
            data: The uploaded bytes.
            parsed: Its text, if parsed already; then record and text are stored in one step.

        Returns:
            The stored record, and whether it is new. The same bytes give the record that exists, unless its
            ingestion failed: then it is replaced.

        Raises:
            ValueError: If the id is not that of ``data``.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        if document.id != f"doc_{sha256[:32]}":
            raise ValueError(f"document id is {document.id}, the bytes' id is doc_{sha256[:32]}")
        with self._lock:
            existing = self._find(document.id)
            if existing is not None and existing.status is not DocumentStatus.FAILED:
                return existing, False
            self._blobs.write(sha256, data)
            row = (*to_row(document), sha256)
            with self._transaction():
                self._connection.execute("DELETE FROM documents WHERE id = ?", (document.id,))
                self._connection.execute(
                    f"INSERT INTO documents ({COLUMNS}, sha256) VALUES ({', '.join('?' * len(row))})", row
                )
                if parsed is not None:
                    self._write_parsed(document.id, parsed)
            return self.get(document.id), True

    def set_parsed(self, id: str, parsed: ParsedDocument) -> None:
        """Store the text, pages, media type and notes; what was derived from an earlier text is removed."""
        with self._transaction():
            self._require(id)
            self._write_parsed(id, parsed)

    def set_status(
        self, id: str, status: DocumentStatus, error: str | None = None, num_tokens: int | None = None
    ) -> None:
        """Set the status and error; ``num_tokens`` stays as it is if None."""
        with self._transaction():
            self._require(id)
            self._connection.execute(
                "UPDATE documents SET status = ?, error = ?, num_tokens = coalesce(?, num_tokens) WHERE id = ?",
                (status.value, error, num_tokens, id),
            )

    def get(self, id: str) -> Document:
        """Give the record of a document."""
        found = self._find(id)
        if found is None:
            raise DocumentNotFoundError(f"no document has the id {id}")
        return found

    def list(self, limit: int, after: str | None = None) -> list[Document]:
        """Give up to ``limit`` documents, newest first, from behind the document ``after``."""
        if limit < 1:
            raise ValueError(f"limit is {limit}, allowed is 1 or more")
        before_seq = 2**62
        if after is not None:
            (before_seq,) = self._require(after)
        rows = self._rows(
            f"SELECT {COLUMNS} FROM documents WHERE seq < ? ORDER BY seq DESC LIMIT ?", (before_seq, limit)
        )
        return [from_row(row) for row in rows]

    def unfinished(self) -> Sequence[str]:
        """Give the ids of documents whose ingestion neither ended nor failed, oldest first."""
        marks = ", ".join("?" * len(_UNFINISHED))
        rows = self._rows(f"SELECT id FROM documents WHERE status IN ({marks}) ORDER BY seq", _UNFINISHED)
        return [id for (id,) in rows]

    def text(self, id: str) -> str:
        """Give the parsed text; empty before ``set_parsed``."""
        self._require(id)
        rows = self._rows("SELECT text FROM texts WHERE document_id = ?", (id,))
        return rows[0][0] if rows else ""

    def data(self, id: str) -> bytes:
        """Give the uploaded bytes."""
        with self._lock:
            self._require(id)
            ((sha256,),) = self._rows("SELECT sha256 FROM documents WHERE id = ?", (id,))
            return self._blobs.read(sha256)

    def pages(self, id: str) -> Sequence[Page]:
        """Give the pages in order; empty before ``set_parsed``."""
        self._require(id)
        rows = self._rows('SELECT number, start, "end" FROM pages WHERE document_id = ? ORDER BY number', (id,))
        return [Page(*row) for row in rows]

    def put_chunks(self, id: str, chunks: Sequence[Chunk]) -> Sequence[int]:
        """Store the chunks in place of any earlier ones; give their vector ids, which are never reused."""
        with self._transaction():
            self._require(id)
            self._connection.execute("DELETE FROM chunks WHERE document_id = ?", (id,))
            self._connection.executemany(
                'INSERT INTO chunks (document_id, position, start, "end", text, is_blank) VALUES (?, ?, ?, ?, ?, ?)',
                [(id, chunk.index, chunk.start, chunk.end, chunk.text, not chunk.text.strip()) for chunk in chunks],
            )
            self._connection.execute("UPDATE documents SET num_chunks = ? WHERE id = ?", (len(chunks), id))
            rows = self._connection.execute("SELECT id FROM chunks WHERE document_id = ? ORDER BY position", (id,))
            return [vector_id for (vector_id,) in rows]

    def chunks(self, id: str) -> Sequence[tuple[int, Chunk]]:
        """Give the chunks in order with their vector ids."""
        self._require(id)
        rows = self._rows(
            'SELECT id, position, start, "end", text FROM chunks WHERE document_id = ? ORDER BY position',
            (id,),
        )
        return [(row[0], Chunk(*row[1:])) for row in rows]

    def chunk(self, vector_id: int) -> tuple[str, Chunk]:
        """Give a chunk and the id of its document."""
        rows = self._rows('SELECT document_id, position, start, "end", text FROM chunks WHERE id = ?', (vector_id,))
        if not rows:
            raise DocumentNotFoundError(f"no chunk has the vector id {vector_id}")
        return rows[0][0], Chunk(*rows[0][1:])

    def vector_ids(self, document_ids: Sequence[str] | None = None) -> Sequence[int]:
        """Give the ids of all chunks with a visible character, of these documents or of all, ascending."""
        if document_ids is None:
            rows = self._rows("SELECT id FROM chunks WHERE NOT is_blank ORDER BY id")
            return [vector_id for (vector_id,) in rows]
        found: set[int] = set()
        for id in set(document_ids):
            self._require(id)
            rows = self._rows("SELECT id FROM chunks WHERE document_id = ? AND NOT is_blank", (id,))
            found.update(vector_id for (vector_id,) in rows)
        return sorted(found)

    def put_tokens(self, id: str, model_id: str, ids: Sequence[int]) -> None:
        """Store the document's token ids for one model, in place of earlier ones."""
        with self._transaction():
            self._require(id)
            self._connection.execute(
                "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?)", (id, model_id, array("i", ids).tobytes())
            )

    def tokens(self, id: str, model_id: str) -> Sequence[int] | None:
        """Give the document's token ids for one model, or None if they are not stored."""
        self._require(id)
        rows = self._rows("SELECT ids FROM tokens WHERE document_id = ? AND model_id = ?", (id, model_id))
        return array("i", rows[0][0]).tolist() if rows else None

    def delete(self, id: str) -> Sequence[int]:
        """Remove a document with all that belongs to it; give the vector ids to drop from the index.

        Freed database pages are overwritten and the write-ahead log is emptied: no text is left on disk.
        """
        with self._lock:
            with self._transaction():
                self._require(id)
                row = self._connection.execute("SELECT sha256 FROM documents WHERE id = ?", (id,)).fetchone()
                rows = self._connection.execute("SELECT id FROM chunks WHERE document_id = ?", (id,)).fetchall()
                self._connection.execute("DELETE FROM documents WHERE id = ?", (id,))
            self._blobs.remove(row[0])
            self._rows("PRAGMA wal_checkpoint(TRUNCATE)")
        return [vector_id for (vector_id,) in rows]

    def _find(self, id: str) -> Document | None:
        rows = self._rows(f"SELECT {COLUMNS} FROM documents WHERE id = ?", (id,))
        return from_row(rows[0]) if rows else None

    def _require(self, id: str) -> tuple[int]:
        rows = self._rows("SELECT seq FROM documents WHERE id = ?", (id,))
        if not rows:
            raise DocumentNotFoundError(f"no document has the id {id}")
        return rows[0]

    def _write_parsed(self, id: str, parsed: ParsedDocument) -> None:
        for table in ("texts", "pages", "chunks", "tokens"):
            self._connection.execute(f"DELETE FROM {table} WHERE document_id = ?", (id,))
        self._connection.execute("INSERT INTO texts VALUES (?, ?)", (id, parsed.text))
        self._connection.executemany(
            "INSERT INTO pages VALUES (?, ?, ?, ?)",
            [(id, page.number, page.start, page.end) for page in parsed.pages],
        )
        self._connection.execute(
            "UPDATE documents SET media_type = ?, num_chars = ?, num_pages = ?, num_chunks = 0, notes = ? WHERE id = ?",
            (parsed.media_type, len(parsed.text), len(parsed.pages), json.dumps(parsed.notes), id),
        )

    def _rows(self, sql: str, parameters: Sequence[str | int] = ()) -> Sequence[tuple]:
        with self._lock, self._reported():
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._reported():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"database {self._database} failed: {error}; if it is damaged, restore it from a backup or "
                f"move the folder away and upload the documents again"
            ) from error
