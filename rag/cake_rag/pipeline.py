"""The story of a document and of a question. Read first.

A document: bytes -> ``parse`` -> ``Store`` -> vectors -> token ids -> warm in the engine's radix tree.
A question: whole document or passages -> token-exact prompt -> engine -> citations -> ``Answer``.
"""

import asyncio
import logging
import unicodedata
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime

from cake_rag.answering import Answerer, AnswerEvent, AskEvent
from cake_rag.citation import CitationFinder
from cake_rag.config import RagConfig
from cake_rag.documents import Answer, Document, DocumentStatus
from cake_rag.embed import Embedder
from cake_rag.engine import EngineClient, EngineState, Sampling
from cake_rag.errors import DocumentNotFoundError, EngineError, EngineRequestError
from cake_rag.index import VectorIndex
from cake_rag.ingest import ParseLimits, parse
from cake_rag.planning import Planner
from cake_rag.retrieve import Retriever
from cake_rag.store import Store, document_id

logger = logging.getLogger(__name__)

_MAX_NAME_CHARS = 200


class Pipeline:
    """Everything the service does. Blocking work runs in threads, so the event loop stays responsive."""

    def __init__(
        self,
        config: RagConfig,
        *,
        engine: EngineClient,
        store: Store,
        retriever: Retriever,
        citations: CitationFinder,
    ) -> None:
        """Join the parts; ``open`` makes them from ``config``."""
        self.config = config
        self.engine = engine
        self._store = store
        self._retriever = retriever
        self._planner = Planner(config, engine, store, retriever)
        self._answerer = Answerer(config, engine, citations)
        self._limits = ParseLimits(config.max_upload_bytes, config.max_document_chars, config.max_document_pages)
        # One upload is parsed at a time: that bounds the memory, and makes the same bytes one document.
        self._parse_lock = asyncio.Lock()

    @classmethod
    async def open(cls, config: RagConfig, embedder: Embedder | None = None) -> "Pipeline":
        """Open the stored state under ``config.data_dir``; the engine need not be up.

        Args:
            config: Settings.
            embedder: Given by callers that already hold one.

        Raises:
            StoreError: If the database, the index or the embedding files are unusable.
        """
        return await asyncio.to_thread(cls._open, config, embedder)

    @classmethod
    def _open(cls, config: RagConfig, embedder: Embedder | None) -> "Pipeline":
        config.data_dir.mkdir(parents=True, exist_ok=True)
        embedder = embedder or Embedder(config.embed_threads)
        store = Store(config.data_dir)
        index = VectorIndex.open(config.data_dir / "vectors.faiss", embedder.dim, embedder.model_id)
        return cls(
            config,
            engine=EngineClient.from_config(config),
            store=store,
            retriever=Retriever(store, index, embedder),
            citations=CitationFinder(embedder),
        )

    async def aclose(self) -> None:
        """Abort what is under way, then close the engine's connections and the database."""
        await self._answerer.aclose()
        await self.engine.aclose()
        await asyncio.to_thread(self._store.close)

    async def state(self) -> EngineState:
        """Give the engine's state; everything else was checked by ``open``."""
        state = await self.engine.ready()
        if state.state == "ready" and self._planner.known_capacity is None:
            with suppress(EngineError):
                await self._planner.capacity()
        return state

    async def ingest(self, name: str, data: bytes) -> tuple[Document, bool]:
        """Parse and store a document; ``run_ingest`` makes it answerable.

        Args:
            name: File name, for people; the content alone decides the format.
            data: The file.

        Returns:
            The document, and whether it was created: False when the same bytes were stored before.

        Raises:
            DocumentRejectedError: If the bytes cannot become a document. Nothing is stored then.
        """
        id = await asyncio.to_thread(document_id, data)
        known = await self._usable(id)
        if known is not None:
            return known, False
        async with self._parse_lock:
            # The same bytes may have been stored while this upload waited.
            known = await self._usable(id)
            if known is not None:
                return known, False
            stored, created = await asyncio.to_thread(self._store_parsed, id, _clean_name(name), data)
        logger.info("stored document=%s created=%s bytes=%d", id, created, len(data))
        return self._annotated(stored), created

    async def run_ingest(self, id: str) -> Document:
        """Take a stored document to ``ready`` or ``failed``, from wherever it stopped before.

        Raises:
            DocumentNotFoundError: If it is deleted meanwhile.
            EngineUnavailableError: If the engine is away; the document keeps its stage, call again later.
        """
        document = await self.get(id)
        try:
            if document.status is DocumentStatus.STORED:
                await self._index(document.id)
            if document.status not in (DocumentStatus.READY, DocumentStatus.FAILED):
                await self._warm(id)
        except EngineRequestError as error:
            logger.warning("ingestion failed document=%s reason=%s", id, error)
            await self.fail(id, str(error))
        return await self.get(id)

    async def fail(self, id: str, reason: str) -> None:
        """Mark a document as failed; the same bytes may be uploaded again."""
        await asyncio.to_thread(self._store.set_status, id, DocumentStatus.FAILED, error=reason)

    async def unfinished(self) -> list[str]:
        """Give the ids of documents that ``run_ingest`` has still to finish, for example after a restart."""
        return list(await asyncio.to_thread(self._store.unfinished))

    async def get(self, id: str) -> Document:
        """Give a document.

        Raises:
            DocumentNotFoundError: If there is none with this id.
        """
        return self._annotated(await asyncio.to_thread(self._store.get, id))

    async def documents(self, limit: int, after: str | None = None) -> list[Document]:
        """Give up to ``limit`` documents, newest first, those behind the document ``after``.

        Raises:
            DocumentNotFoundError: If ``after`` is not a document.
        """
        return [self._annotated(item) for item in await asyncio.to_thread(self._store.list, limit, after)]

    async def delete(self, id: str) -> None:
        """Delete a document with its bytes, text, chunks, vectors and token ids.

        Raises:
            DocumentNotFoundError: If there is none with this id.
        """
        await asyncio.to_thread(self._retriever.remove_document, id)
        logger.info("deleted document=%s", id)

    async def ask(
        self, question: str, document_ids: Sequence[str] | None = None, max_tokens: int | None = None
    ) -> AsyncGenerator[AskEvent, None]:
        """Give the events of an answer; the first one comes when the question was found askable.

        Args:
            question: 1..``config.max_question_chars`` characters.
            document_ids: What to read; None lets retrieval choose the best document.
            max_tokens: Longest answer, 1..``config.max_answer_tokens``; None means ``config.answer_tokens``.

        Raises:
            QuestionRejectedError: If question or ``max_tokens`` is out of range, or no document
                fits beside them.
            DocumentNotFoundError: If a document is unknown, or none is stored.
            DocumentNotReadyError: If a document is not ready; DocumentFailedError if it never will be.
            EngineUnavailableError: If the engine is away or goes away.
            EngineRequestError: If the engine refuses the request.
        """
        plan = await self._planner.plan(question, document_ids, max_tokens)
        async with aclosing(self._answerer.answer(plan)) as events:
            async for event in events:
                yield event

    async def answer(
        self, question: str, document_ids: Sequence[str] | None = None, max_tokens: int | None = None
    ) -> Answer:
        """Give the verified answer; arguments and errors as in ``ask``."""
        async with aclosing(self.ask(question, document_ids, max_tokens)) as events:
            async for event in events:
                if isinstance(event, AnswerEvent):
                    return event.answer
        raise EngineRequestError("the engine gave no answer")

    def _store_parsed(self, id: str, name: str, data: bytes) -> tuple[Document, bool]:
        parsed = parse(data, name, self._limits)
        document = Document(
            id=id,
            name=name,
            media_type=parsed.media_type,
            size_bytes=len(data),
            num_chars=len(parsed.text),
            num_pages=len(parsed.pages),
            status=DocumentStatus.STORED,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            notes=parsed.notes,
        )
        return self._store.put_document(document, data, parsed)

    async def _index(self, id: str) -> None:
        await asyncio.to_thread(self._retriever.index_document, id)
        await asyncio.to_thread(self._store.set_status, id, DocumentStatus.INDEXED)

    async def _warm(self, id: str) -> None:
        capacity = await self._planner.capacity()
        ids = await self._planner.document_ids(id)
        if len(ids) <= capacity:
            await self._set_status(id, DocumentStatus.WARMING, len(ids))
            prefix = (await self.engine.frame(self.config.system_text)).document_prefix(ids)
            async with aclosing(self.engine.generate(prefix, Sampling(1), f"warm-{uuid.uuid4().hex}")) as events:
                async for event in events:
                    if event.usage:
                        logger.info("warmed document=%s usage=%s", id, event.usage)
        await self._set_status(id, DocumentStatus.READY, len(ids))

    async def _set_status(self, id: str, status: DocumentStatus, num_tokens: int) -> None:
        await asyncio.to_thread(self._store.set_status, id, status, num_tokens=num_tokens)

    async def _usable(self, id: str) -> Document | None:
        """Give the document with this id, unless there is none or its ingestion failed."""
        try:
            document = await self.get(id)
        except DocumentNotFoundError:
            return None
        return None if document.status is DocumentStatus.FAILED else document

    def _annotated(self, document: Document) -> Document:
        capacity = self._planner.known_capacity
        if capacity is None or document.num_tokens is None or document.num_tokens <= capacity:
            return document
        note = (
            f"The document has {document.num_tokens} tokens and the model reads at most {capacity} at once: "
            "it is answered from retrieved passages, and was not prefilled."
        )
        return replace(document, notes=(*document.notes, note))


def _clean_name(name: str) -> str:
    """Give the last part of a path, printable, at most 200 characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    visible = "".join(char for char in last if unicodedata.category(char)[0] != "C").strip()
    return visible[-_MAX_NAME_CHARS:] if visible.strip(".") else "untitled"
