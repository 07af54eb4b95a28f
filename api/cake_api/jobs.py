"""Ingestion in the background: one document at a time, resumed after a restart."""

import asyncio
import logging

from cake_rag.errors import DocumentNotFoundError, EngineUnavailableError
from cake_rag.pipeline import Pipeline

logger = logging.getLogger(__name__)


class IngestQueue:
    """Takes stored documents to ``ready``. Which ones wait is in the store, so nothing is lost by a crash."""

    def __init__(self, pipeline: Pipeline, retry_s: float = 2.0) -> None:
        """Prepare; ``retry_s`` is the pause before a document whose engine was away is tried again."""
        self._pipeline = pipeline
        self._retry_s = retry_s
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._known: set[str] = set()
        self._worker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin with the documents that an earlier run left unfinished."""
        for document_id in await self._pipeline.unfinished():
            self.put(document_id)
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop; the document under way is finished by the next run."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def put(self, document_id: str) -> None:
        """Let a document be ingested, once, however often it is put."""
        if document_id not in self._known:
            self._known.add(document_id)
            self._waiting.put_nowait(document_id)

    async def _work(self) -> None:
        while True:
            document_id = await self._waiting.get()
            try:
                await self._ingest(document_id)
            finally:
                self._known.discard(document_id)

    async def _ingest(self, document_id: str) -> None:
        is_waiting = False
        while True:
            try:
                await self._pipeline.run_ingest(document_id)
                return
            except DocumentNotFoundError:
                logger.info("ingestion dropped, the document was deleted document=%s", document_id)
                return
            except EngineUnavailableError as error:
                if not is_waiting:
                    logger.warning("ingestion waits for the engine document=%s reason=%s", document_id, error)
                    is_waiting = True
                await asyncio.sleep(self._retry_s)
            except Exception as error:
                # The boundary of a job: one document must not stop those behind it.
                logger.exception("ingestion failed document=%s", document_id)
                await self._fail(document_id, f"internal error, {type(error).__name__}")
                return

    async def _fail(self, document_id: str, reason: str) -> None:
        try:
            await self._pipeline.fail(document_id, reason)
        except Exception:
            # It stays unfinished in the store, and the next start tries again.
            logger.exception("cannot be marked as failed document=%s", document_id)
