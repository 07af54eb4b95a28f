"""The passages that are nearest to a question."""

import logging
from collections.abc import Sequence
from threading import RLock

import numpy as np

from cake_rag.chunk import chunk_text
from cake_rag.documents import Chunk, Page, Passage
from cake_rag.embed import WINDOW_SIZE, Embedder
from cake_rag.errors import DocumentNotFoundError, QuestionRejectedError, StoreError
from cake_rag.index import VectorIndex
from cake_rag.store import Store

logger = logging.getLogger(__name__)


class Retriever:
    """Keeps the index in step with the store, and searches it. Safe to share between threads.

    The store is the truth. Whatever a crash left between the two is mended at construction: vectors without
    a chunk are dropped, chunks without a vector are embedded. On one core 14 chunks of 800 characters are
    embedded in a second (2026-12, shared x86 server), so the 30,000 chunks of the largest text of 20 million
    characters take 35 minutes, and 60,000 chunks 70.
    """

    def __init__(self, store: Store, index: VectorIndex, embedder: Embedder) -> None:
        """Bring the index in step with the store.

        Raises:
            StoreError: If the index is of another model than the embedder, or cannot be written.
        """
        if (index.model_id, index.dim) != (embedder.model_id, embedder.dim):
            raise StoreError(
                f"index {index.path} is of {index.model_id} with {index.dim} components, the embedder is "
                f"{embedder.model_id} with {embedder.dim}; remove the index to have it rebuilt"
            )
        self._store = store
        self._index = index
        self._embedder = embedder
        self._lock = RLock()
        self._reconcile()

    def _reconcile(self) -> None:
        wanted, present = set(self._store.vector_ids()), set(self._index.ids().tolist())
        stale, missing = present - wanted, sorted(wanted - present)
        if not stale and not missing:
            return
        logger.warning("index=%s stale=%d missing=%d action=rebuild", self._index.path, len(stale), len(missing))
        self._index.remove(sorted(stale))
        for first in range(0, len(missing), WINDOW_SIZE):
            ids = missing[first : first + WINDOW_SIZE]
            texts = [self._store.chunk(id)[1].text for id in ids]
            self._index.add(np.array(ids, dtype=np.int64), self._embedder.embed(texts))
        self._index.save()

    def index_document(self, id: str) -> int:
        """Chunk, embed and index a parsed document; doing it again is fine.

        Returns:
            The number of chunks.

        Raises:
            DocumentNotFoundError: If the document is unknown, or was deleted meanwhile.
            StoreError: If the store or the index cannot be written.
        """
        chunks = self._store.chunks(id)
        if not chunks:
            self._store.put_chunks(id, chunk_text(self._store.text(id), self._store.pages(id)))
            chunks = self._store.chunks(id)
        visible = [(vector_id, chunk.text) for vector_id, chunk in chunks if chunk.text.strip()]
        for first in range(0, len(visible), WINDOW_SIZE):
            window = visible[first : first + WINDOW_SIZE]
            vectors = self._embedder.embed([text for _, text in window])
            self._add([vector_id for vector_id, _ in window], vectors, id)
        with self._lock:
            self._drop_stale()
            self._index.save()
        return len(chunks)

    def _drop_stale(self) -> None:
        """Drop vectors whose chunk is gone, as when a document was chunked again."""
        stale = set(self._index.ids().tolist()) - set(self._store.vector_ids())
        self._index.remove(sorted(stale))

    def _add(self, ids: Sequence[int], vectors: np.ndarray, document_id: str) -> None:
        """Add what the store still has and the index has not; no document is removed meanwhile."""
        with self._lock:
            wanted = set(self._store.vector_ids([document_id]))
            present = set(self._index.ids().tolist())
            rows = [row for row, id in enumerate(ids) if id in wanted and id not in present]
            self._index.add(np.array([ids[row] for row in rows], dtype=np.int64), vectors[rows])

    def remove_document(self, id: str) -> None:
        """Delete a document from the store and its vectors from the index.

        Raises:
            DocumentNotFoundError: If the document is unknown.
            StoreError: If the store or the index cannot be written.
        """
        with self._lock:
            self._index.remove(self._store.delete(id))
            self._index.save()

    def search(self, question: str, k: int = 8, document_ids: Sequence[str] | None = None) -> list[Passage]:
        """Give the ``k`` passages most similar to ``question``, best first.

        Args:
            question: At least one visible character.
            k: >= 1.
            document_ids: If given, only passages of these documents; an empty list gives no passage.

        Raises:
            QuestionRejectedError: If the question is blank.
            DocumentNotFoundError: If one of ``document_ids`` is unknown.
            ValueError: If ``k`` is below 1.
        """
        if not question.strip():
            raise QuestionRejectedError("the question has no visible character")
        if k < 1:
            raise ValueError(f"k is {k}, allowed is 1 or more")
        allowed = None if document_ids is None else self._store.vector_ids(document_ids)
        hits = self._index.search(self._embedder.embed([question])[0], k, allowed)
        passages = [self._passage(hit.id, hit.score) for hit in hits]
        return [passage for passage in passages if passage is not None]

    def _passage(self, vector_id: int, score: float) -> Passage | None:
        """Give the passage, or None if its document was deleted since the index was asked."""
        try:
            document_id, chunk = self._store.chunk(vector_id)
            name = self._store.get(document_id).name
            pages = self._store.pages(document_id)
        except DocumentNotFoundError:
            return None
        number = _page_number(pages, chunk)
        return Passage(document_id, name, number, chunk.start, chunk.end, chunk.text, score)


def _page_number(pages: Sequence[Page], chunk: Chunk) -> int:
    return next(page.number for page in pages if page.start <= chunk.start < page.end)
