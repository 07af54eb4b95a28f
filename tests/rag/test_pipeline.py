import asyncio
from dataclasses import replace

import pytest

from cake_rag.config import RagConfig
from cake_rag.documents import AnswerMode, DocumentStatus
from cake_rag.embed import Embedder
from cake_rag.errors import (
    DocumentNotFoundError,
    EmptyDocumentError,
    EngineUnavailableError,
)
from cake_rag.pipeline import Pipeline
from cake_testing.engines import FakeEngine
from cake_testing.pipelines import LONG_TEXT, QUESTION, opened, ready
from cake_testing.service import LIGHTHOUSE


async def test_a_document_is_stored_then_ingested_until_it_is_ready(pipeline: Pipeline):
    document, created = await pipeline.ingest("lighthouse.txt", LIGHTHOUSE.encode())
    ingested = await pipeline.run_ingest(document.id)

    assert created
    assert document.status is DocumentStatus.STORED
    assert document.num_chars == len(LIGHTHOUSE)
    assert ingested.status is DocumentStatus.READY
    assert ingested.num_tokens
    assert ingested.num_chunks


async def test_ingestion_warms_the_engine_with_exactly_what_every_prompt_starts_with(
    pipeline: Pipeline, engine: FakeEngine
):
    document_id = await ready(pipeline)
    await pipeline.answer(QUESTION, [document_id])
    await pipeline.answer("When was it built?", [document_id])

    warm, first, second = (request["input_ids"] for request in engine.generated)
    assert first[: len(warm)] == warm
    assert second[: len(warm)] == warm
    assert engine.generated[0]["sampling_params"]["max_new_tokens"] == 1


async def test_a_question_is_answered_from_the_warm_document(pipeline: Pipeline, engine: FakeEngine):
    document_id = await ready(pipeline)

    answer = await pipeline.answer(QUESTION, [document_id])

    assert answer.usage.cached_tokens == len(engine.generated[0]["input_ids"])
    assert answer.mode is AnswerMode.DOCUMENT
    assert not answer.declined


async def test_a_document_that_does_not_fit_is_ready_without_warming_and_says_so(
    pipeline: Pipeline, engine: FakeEngine
):
    document_id = await ready(pipeline, LONG_TEXT)

    document = await pipeline.get(document_id)
    assert document.status is DocumentStatus.READY
    assert document.num_tokens is not None
    assert document.num_tokens > engine.behaviour.context_tokens
    assert "answered from retrieved passages" in document.notes[-1]
    assert engine.generated == []


async def test_a_failed_document_may_be_uploaded_again(pipeline: Pipeline):
    document, _ = await pipeline.ingest("a.txt", LIGHTHOUSE.encode())
    await pipeline.fail(document.id, "the disk is full")

    again, created = await pipeline.ingest("a.txt", LIGHTHOUSE.encode())

    assert created
    assert (again.status, again.error) == (DocumentStatus.STORED, None)


async def test_the_same_bytes_are_stored_once(pipeline: Pipeline):
    first, _ = await pipeline.ingest("a.txt", LIGHTHOUSE.encode())

    second, created = await pipeline.ingest("b.txt", LIGHTHOUSE.encode())

    assert not created
    assert second == first


async def test_the_same_bytes_at_the_same_time_are_stored_once(pipeline: Pipeline):
    uploads = [pipeline.ingest(f"{number}.txt", LIGHTHOUSE.encode()) for number in range(5)]

    results = await asyncio.gather(*uploads)

    assert sorted(created for _, created in results) == [False, False, False, False, True]
    assert len({document.id for document, _ in results}) == 1


async def test_bytes_that_are_no_document_leave_nothing_behind(pipeline: Pipeline):
    with pytest.raises(EmptyDocumentError):
        await pipeline.ingest("a.txt", b" \n ")

    assert await pipeline.documents(10) == []


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\papers\\a.pdf", "a.pdf"),
        ("a\x00\n\u202eb.txt", "ab.txt"),
        ("x" * 300 + ".txt", "x" * 196 + ".txt"),
        ("", "untitled"),
        ("..", "untitled"),
        ("a\ud800.txt", "a.txt"),
    ],
)
async def test_names_are_kept_without_path_and_invisible_characters(pipeline: Pipeline, name: str, kept: str):
    document, _ = await pipeline.ingest(name, LIGHTHOUSE.encode())

    assert document.name == kept


async def test_ingestion_waits_for_an_engine_that_is_away_and_loses_nothing(
    config: RagConfig, embedder: Embedder, engine: FakeEngine
):
    async with opened(replace(config, engine_url="http://127.0.0.1:9"), embedder) as pipeline:
        document, _ = await pipeline.ingest("a.txt", LIGHTHOUSE.encode())
        with pytest.raises(EngineUnavailableError):
            await pipeline.run_ingest(document.id)
        assert (await pipeline.get(document.id)).status is DocumentStatus.INDEXED

    async with opened(config, embedder) as pipeline:
        unfinished = await pipeline.unfinished()
        finished = await pipeline.run_ingest(document.id)

    assert unfinished == [document.id]
    assert finished.status is DocumentStatus.READY


async def test_a_refused_warm_up_fails_the_document_with_the_engines_reason(pipeline: Pipeline, engine: FakeEngine):
    engine.behaviour.refuse_generate = (400, "no such thing")
    document, _ = await pipeline.ingest("a.txt", LIGHTHOUSE.encode())

    failed = await pipeline.run_ingest(document.id)

    assert failed.status is DocumentStatus.FAILED
    assert failed.error is not None
    assert "no such thing" in failed.error


async def test_documents_answers_and_tokens_survive_a_restart(
    config: RagConfig, embedder: Embedder, engine: FakeEngine
):
    async with opened(config, embedder) as pipeline:
        document_id = await ready(pipeline)

    async with opened(config, embedder) as pipeline:
        answer = await pipeline.answer(QUESTION, [document_id])

    assert answer.usage.cached_tokens == len(engine.generated[0]["input_ids"])


async def test_a_deleted_document_is_gone(pipeline: Pipeline):
    document_id = await ready(pipeline)

    await pipeline.delete(document_id)

    with pytest.raises(DocumentNotFoundError):
        await pipeline.get(document_id)
    with pytest.raises(DocumentNotFoundError):
        await pipeline.answer(QUESTION)
