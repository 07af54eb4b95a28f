import asyncio
from contextlib import aclosing
from dataclasses import replace

from cake_rag.answering import AnswerEvent, Stage, StatusEvent, TokenEvent
from cake_rag.config import RagConfig
from cake_rag.embed import Embedder
from cake_rag.pipeline import Pipeline
from cake_testing.engines import FakeEngine, wait_until
from cake_testing.pipelines import QUESTION, opened, ready
from cake_testing.service import ANSWER, LIGHTHOUSE


async def test_citations_are_verbatim_spans_of_the_document(pipeline: Pipeline):
    document_id = await ready(pipeline)

    answer = await pipeline.answer(QUESTION, [document_id])

    [citation] = answer.citations
    assert LIGHTHOUSE[citation.start : citation.end] == citation.quote
    assert "keeper's daughter lit the lamp" in citation.quote
    assert answer.text[citation.answer_start : citation.answer_end] == ANSWER


async def test_what_the_document_does_not_support_is_declined_and_shown_apart(pipeline: Pipeline, engine: FakeEngine):
    engine.behaviour.reply = lambda _: "Napoleon paid nine thousand guilders for tulips."
    document_id = await ready(pipeline)

    answer = await pipeline.answer("What did Napoleon buy?", [document_id])

    assert answer.declined
    assert answer.unsupported_text == "Napoleon paid nine thousand guilders for tulips."
    assert answer.citations == ()


async def test_an_empty_answer_is_declined(pipeline: Pipeline, engine: FakeEngine):
    document_id = await ready(pipeline)
    engine.behaviour.reply = lambda _: " "

    assert (await pipeline.answer(QUESTION, [document_id])).declined


async def test_events_come_in_order_and_end_with_the_answer(pipeline: Pipeline):
    document_id = await ready(pipeline)

    events = [event async for event in pipeline.ask(QUESTION, [document_id])]

    stages = [event.stage for event in events if isinstance(event, StatusEvent)]
    assert list(dict.fromkeys(stages)) == [Stage.QUEUED, Stage.PREFILLING, Stage.GENERATING, Stage.CITING]
    assert "".join(event.text for event in events if isinstance(event, TokenEvent)) == ANSWER
    assert isinstance(events[-1], AnswerEvent)


async def test_a_long_prefill_is_filled_with_status_events(pipeline: Pipeline, engine: FakeEngine):
    document_id = await ready(pipeline)
    engine.behaviour.prefill_gate.clear()

    async with aclosing(pipeline.ask(QUESTION, [document_id])) as events:
        seen = [await anext(events) for _ in range(5)]

    assert [event.stage for event in seen if isinstance(event, StatusEvent)] == [
        Stage.QUEUED,
        *[Stage.PREFILLING] * 4,
    ]


async def test_leaving_an_answer_aborts_its_generation(pipeline: Pipeline, engine: FakeEngine):
    document_id = await ready(pipeline)
    engine.behaviour.prefill_gate.clear()
    async with aclosing(pipeline.ask(QUESTION, [document_id])) as events:
        while not engine.generation_started.is_set() or len(engine.generated) < 2:
            await anext(events)

    await asyncio.to_thread(wait_until, engine.abort_seen.is_set)
    assert engine.aborted == [engine.generated[-1]["rid"]]


async def test_questions_beyond_the_limit_wait_their_turn(config: RagConfig, embedder: Embedder, engine: FakeEngine):
    async with opened(replace(config, max_concurrent_questions=1), embedder) as pipeline:
        document_id = await ready(pipeline)
        engine.behaviour.prefill_gate.clear()
        async with aclosing(pipeline.ask(QUESTION, [document_id])) as first:
            while len(engine.generated) < 2:
                await anext(first)
            async with aclosing(pipeline.ask(QUESTION, [document_id])) as second:
                waiting = [await anext(second) for _ in range(3)]

    assert {event.stage for event in waiting if isinstance(event, StatusEvent)} == {Stage.QUEUED}
    assert len(engine.generated) == 2
