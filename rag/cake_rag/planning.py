"""What the model reads for a question: one whole document, or retrieved passages."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cake_rag.citation import Source
from cake_rag.config import PASSAGE_SEPARATOR, RagConfig
from cake_rag.documents import AnswerMode, Document, DocumentStatus, Passage
from cake_rag.engine import EngineClient
from cake_rag.errors import (
    DocumentFailedError,
    DocumentNotFoundError,
    DocumentNotReadyError,
    QuestionRejectedError,
)
from cake_rag.prompt import PromptFrame, clean_question
from cake_rag.retrieve import Retriever
from cake_rag.store import Store


@dataclass(frozen=True, slots=True)
class Plan:
    """A question that is ready to be sent: its prompt, and what the model reads in it."""

    question: str
    input_ids: list[int]
    answer_tokens: int
    mode: AnswerMode
    document_ids: tuple[str, ...]
    sources: tuple[Source, ...]
    passages: tuple[Passage, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Frame:
    """A question before it is decided what the model reads. ``room``: tokens left for that."""

    question: str
    question_ids: list[int]
    answer_tokens: int
    room: int
    prompt: PromptFrame
    notes: tuple[str, ...]

    def plan(
        self, mode: AnswerMode, ids: Sequence[int], sources: tuple[Source, ...], documents: Sequence[Document]
    ) -> Plan:
        return Plan(
            question=self.question,
            input_ids=self.prompt.prompt(ids, self.question_ids),
            answer_tokens=self.answer_tokens,
            mode=mode,
            document_ids=tuple(document.id for document in documents),
            sources=sources,
            notes=self.notes,
        )


class Planner:
    """Chooses documents and passages, and makes the prompt."""

    def __init__(self, config: RagConfig, engine: EngineClient, store: Store, retriever: Retriever) -> None:
        """Join the parts."""
        self._config = config
        self._engine = engine
        self._store = store
        self._retriever = retriever
        self.known_capacity: int | None = None

    async def capacity(self) -> int:
        """Give the tokens of the largest document that is read whole, beside an empty question.

        ``known_capacity`` keeps what was given last, for callers that must not wait for the engine.

        Raises:
            EngineUnavailableError: If the engine is away.
            EngineRequestError: If no prompt can be made for the engine's model.
        """
        context = (await self._engine.info()).max_context_tokens
        prompt = await self._engine.frame(self._config.system_text)
        self.known_capacity = prompt.room(context, 0, self._config.answer_tokens)
        return self.known_capacity

    async def plan(self, question: str, document_ids: Sequence[str] | None, max_tokens: int | None) -> Plan:
        """Give the plan for a question; arguments and errors as in ``Pipeline.ask``."""
        text = clean_question(question, self._config.max_question_chars)
        answer_tokens = self._answer_tokens(max_tokens)
        notes: tuple[str, ...] = ()
        if document_ids is None:
            documents = [await self._best_document(text)]
            notes = (f"No document was named; retrieval chose {documents[0].name!r}.",)
        elif document_ids:
            documents = [await self._askable(document_id) for document_id in dict.fromkeys(document_ids)]
        else:
            raise QuestionRejectedError("document_ids is empty, expected at least one id, or leave it out")
        frame = await self._frame(text, answer_tokens, notes)
        if len(documents) > 1:
            reason = f"{len(documents)} documents were named: the answer was read from the passages listed."
            return await self._passages_plan(replace(frame, notes=(*notes, reason)), documents)
        ids = await self.document_ids(documents[0].id)
        if len(ids) > frame.room:
            reason = (
                f"The document has {len(ids)} tokens and {frame.room} fit into the model's context beside "
                "question and answer: the answer was read from the passages listed."
            )
            return await self._passages_plan(replace(frame, notes=(*notes, reason)), documents)
        return await self._whole_document_plan(frame, documents[0], ids)

    async def document_ids(self, document_id: str) -> Sequence[int]:
        """Give the document's token ids for the engine's tokenizer, from the store where it has them.

        Raises:
            DocumentNotFoundError: If there is no such document.
            EngineUnavailableError: If the engine is away.
            EngineRequestError: If the engine refuses the text.
        """
        tokenizer_id = (await self._engine.info()).tokenizer_id
        ids = await asyncio.to_thread(self._store.tokens, document_id, tokenizer_id)
        if ids is None:
            text = await asyncio.to_thread(self._store.text, document_id)
            ids = await self._engine.tokenize(text)
            await asyncio.to_thread(self._store.put_tokens, document_id, tokenizer_id, ids)
        return ids

    async def _frame(self, question: str, answer_tokens: int, notes: tuple[str, ...]) -> _Frame:
        context = (await self._engine.info()).max_context_tokens
        prompt = await self._engine.frame(self._config.system_text)
        asked = self._config.question_template.replace("{question}", question)
        question_ids = await self._engine.tokenize(asked)
        room = prompt.room(context, len(question_ids), answer_tokens)
        if room <= 0:
            raise QuestionRejectedError(
                f"the question takes {len(question_ids)} tokens and the answer up to {answer_tokens}, which "
                f"leaves no room for a document in the model's context of {context} tokens"
            )
        return _Frame(question, question_ids, answer_tokens, room, prompt, notes)

    async def _whole_document_plan(self, frame: _Frame, document: Document, ids: Sequence[int]) -> Plan:
        text = await asyncio.to_thread(self._store.text, document.id)
        pages = await asyncio.to_thread(self._store.pages, document.id)
        source = Source(document.id, document.name, text, pages)
        return frame.plan(AnswerMode.DOCUMENT, ids, (source,), [document])

    async def _passages_plan(self, frame: _Frame, documents: Sequence[Document]) -> Plan:
        order = [document.id for document in documents]
        passages, ids = await self._fitting_passages(frame, order)
        pages = {item: await asyncio.to_thread(self._store.pages, item) for item in order}
        sources = tuple(
            Source(item.document_id, item.document_name, item.text, pages[item.document_id], item.start)
            for item in passages
        )
        return replace(frame.plan(AnswerMode.PASSAGES, ids, sources, documents), passages=passages)

    async def _fitting_passages(self, frame: _Frame, order: Sequence[str]) -> tuple[tuple[Passage, ...], list[int]]:
        """Give the best passages that fit, in reading order, and their token ids."""
        found = await asyncio.to_thread(self._retriever.search, frame.question, self._config.num_passages, order)
        kept: list[tuple[Passage, list[int]]] = []
        room = frame.room
        for passage in sorted(found, key=lambda item: -item.score):
            ids = await self._engine.tokenize(passage.text + PASSAGE_SEPARATOR)
            if len(ids) <= room:
                kept.append((passage, ids))
                room -= len(ids)
        if not kept:
            raise QuestionRejectedError(
                f"no passage fits into the {frame.room} tokens that question and answer leave of the context"
            )
        kept.sort(key=lambda item: (order.index(item[0].document_id), item[0].start))
        return tuple(passage for passage, _ in kept), [token for _, ids in kept for token in ids]

    async def _best_document(self, question: str) -> Document:
        if not await asyncio.to_thread(self._store.list, 1):
            raise DocumentNotFoundError("no document is stored, upload one first")
        found = await asyncio.to_thread(self._retriever.search, question, self._config.num_passages)
        for passage in sorted(found, key=lambda item: -item.score):
            document = await asyncio.to_thread(self._store.get, passage.document_id)
            if document.status is DocumentStatus.READY:
                return document
        raise DocumentNotReadyError("no document is ready yet, ask again later")

    async def _askable(self, document_id: str) -> Document:
        document = await asyncio.to_thread(self._store.get, document_id)
        if document.status is DocumentStatus.FAILED:
            raise DocumentFailedError(f"document {document_id} failed to be ingested: {document.error}")
        if document.status is not DocumentStatus.READY:
            raise DocumentNotReadyError(f"document {document_id} is {document.status}, expected ready")
        return document

    def _answer_tokens(self, max_tokens: int | None) -> int:
        limit = self._config.max_answer_tokens
        if max_tokens is None:
            return self._config.answer_tokens
        if not 1 <= max_tokens <= limit:
            raise QuestionRejectedError(f"max_tokens is {max_tokens}, expected 1..{limit}")
        return max_tokens
