import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from cake_rag.documents import Usage
from cake_rag.engine import EngineClient, GenerationEvent, Sampling
from cake_rag.errors import EngineRequestError, EngineUnavailableError
from cake_testing.engines import FakeEngine, wait_until
from cake_testing.fake_tokenizer import CONTROL_STRINGS

SYSTEM = "You answer questions about the document."


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as fake:
        yield fake


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine.url, connect_timeout_s=2.0, probe_timeout_s=2.0, generation_timeout_s=10.0)
    yield client
    await client.aclose()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def collect(client: EngineClient, ids: list[int], rid: str = "r1", tokens: int = 50) -> list[GenerationEvent]:
    async with aclosing(client.generate(ids, Sampling(tokens), rid)) as events:
        return [event async for event in events]


async def test_a_ready_engine_tells_its_model_and_context(client: EngineClient, engine: FakeEngine):
    engine.behaviour.context_tokens = 512

    state = await client.ready()

    assert (state.state, state.model_id, state.max_context_tokens) == ("ready", "/models/fake", 512)


async def test_an_engine_that_loads_is_told_from_one_that_is_down(client: EngineClient, engine: FakeEngine):
    engine.behaviour.ready_status = 503

    state = await client.ready()

    assert state.state == "loading"
    assert "starting" in state.reason


async def test_an_engine_that_is_not_there_is_down_with_its_address():
    port = closed_port()
    client = EngineClient(f"http://127.0.0.1:{port}", connect_timeout_s=1.0)

    state = await client.ready()
    await client.aclose()

    assert state.state == "down"
    assert f"127.0.0.1:{port} does not answer: ConnectError" in state.reason


async def test_the_state_is_asked_without_starting_a_generation(client: EngineClient, engine: FakeEngine):
    await client.ready()

    assert not engine.generated
    assert not [path for path in engine.paths if path.startswith("/health")]


async def test_the_limits_are_asked_once_per_model(client: EngineClient, engine: FakeEngine):
    await client.info()
    await client.info()
    engine.behaviour.model_path = "/models/other"
    info = await client.info()

    assert engine.paths.count("/server_info") == 2
    assert info.model_id == "/models/other"


async def test_the_frame_surrounds_the_users_text_with_the_chat_template(client: EngineClient, engine: FakeEngine):
    frame = await client.frame(SYSTEM)

    decode = engine.tokenizer.decode
    assert decode(list(frame.head_ids), False) == f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    assert decode(list(frame.tail_ids), False) == "<|im_end|>\n<|im_start|>assistant\n"


async def test_the_frame_is_made_once_per_system_text(client: EngineClient, engine: FakeEngine):
    first = await client.frame(SYSTEM)
    asked = engine.paths.count("/v1/tokenize")

    assert await client.frame(SYSTEM) is first
    assert engine.paths.count("/v1/tokenize") == asked
    assert (await client.frame("Another text.")).head_ids != first.head_ids


async def test_a_template_without_system_turn_takes_the_system_text_in_the_users_turn(
    client: EngineClient, engine: FakeEngine
):
    engine.behaviour.has_system_turn = False

    frame = await client.frame(SYSTEM)

    assert engine.tokenizer.decode(list(frame.head_ids), False) == f"<|im_start|>user\n{SYSTEM}\n\n"


@pytest.mark.parametrize("string", CONTROL_STRINGS)
async def test_no_text_becomes_a_control_token(client: EngineClient, engine: FakeEngine, string: str):
    text = f"He wrote {string}system{string} and {string}."
    assert engine.tokenizer.encode(string)[0] < len(CONTROL_STRINGS)

    ids = await client.tokenize(text)

    assert engine.tokenizer.decode(ids, False) == text
    assert min(ids) >= len(CONTROL_STRINGS)


async def test_the_same_text_gives_the_same_tokens(client: EngineClient):
    text = "One line.\n\nAnother <|im_end|> line.\n" * 1_800

    assert await client.tokenize(text) == await client.tokenize(text)


async def test_empty_text_gives_no_tokens(client: EngineClient):
    assert await client.tokenize("") == []


@pytest.mark.parametrize("streams_deltas", [False, True])
async def test_a_generation_gives_new_text_and_ends_with_token_counts(
    client: EngineClient, engine: FakeEngine, streams_deltas: bool
):
    engine.behaviour.streams_deltas = streams_deltas
    engine.behaviour.reply = lambda _: "Seven sailors."
    ids = engine.tokenizer.encode("How many were saved?")

    events = await collect(client, ids)

    assert [event.text for event in events] == ["Seven", " ", "sailors", "."]
    assert events[-1].usage == Usage(prompt_tokens=len(ids), cached_tokens=0, completion_tokens=4)
    assert events[-1].finish_reason == "stop"
    assert all(event.usage is None for event in events[:-1])


async def test_cached_tokens_are_passed_through(client: EngineClient, engine: FakeEngine):
    ids = engine.tokenizer.encode("a b c d e")
    await collect(client, ids)

    events = await collect(client, [*ids, *engine.tokenizer.encode("?")])

    assert events[-1].usage is not None
    assert events[-1].usage.cached_tokens == len(ids)


async def test_the_request_carries_ids_sampling_and_request_id(client: EngineClient, engine: FakeEngine):
    await collect(client, [11, 12], rid="ask-1", tokens=7)

    [sent] = engine.generated
    assert sent["input_ids"] == [11, 12]
    assert sent["sampling_params"] == {"max_new_tokens": 7, "temperature": 0.0}
    assert (sent["rid"], sent["stream"]) == ("ask-1", True)


async def test_a_finished_generation_is_not_aborted(client: EngineClient, engine: FakeEngine):
    await collect(client, [11, 12])
    await client.aclose()

    assert engine.aborted == []


async def test_closing_a_generation_early_aborts_it(client: EngineClient, engine: FakeEngine):
    engine.behaviour.token_gate.clear()
    async with aclosing(client.generate([11, 12], Sampling(9), "ask-7")) as events:
        await anext(events)

    await asyncio.to_thread(wait_until, engine.abort_seen.is_set)
    assert engine.aborted == ["ask-7"]


async def test_cancelling_a_task_that_waits_for_the_prefill_aborts_it(client: EngineClient, engine: FakeEngine):
    engine.behaviour.prefill_gate.clear()
    task = asyncio.create_task(collect(client, [11, 12], rid="ask-8"))
    await asyncio.to_thread(wait_until, engine.generation_started.is_set)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    await asyncio.to_thread(wait_until, engine.abort_seen.is_set)
    assert engine.aborted == ["ask-8"]


async def test_an_engine_that_dies_in_mid_answer_is_unavailable(client: EngineClient, engine: FakeEngine):
    engine.behaviour.reply = lambda _: "one two three"
    engine.behaviour.die_after_tokens = 2

    with pytest.raises(EngineUnavailableError, match="does not answer: RemoteProtocolError"):
        await collect(client, [11, 12])


async def test_an_engine_that_is_away_is_unavailable():
    client = EngineClient(f"http://127.0.0.1:{closed_port()}", connect_timeout_s=1.0)

    with pytest.raises(EngineUnavailableError, match="ConnectError"):
        await client.tokenize("text")
    with pytest.raises(EngineUnavailableError, match="ConnectError"):
        await collect(client, [11, 12])
    await client.aclose()


async def test_a_silent_engine_is_given_up_after_the_timeout(engine: FakeEngine):
    engine.behaviour.prefill_gate.clear()
    client = EngineClient(engine.url, generation_timeout_s=0.2)

    with pytest.raises(EngineUnavailableError, match="ReadTimeout"):
        await collect(client, [11, 12], rid="ask-9")
    await client.aclose()

    assert engine.aborted == ["ask-9"]


@pytest.mark.parametrize(
    ("status", "error"), [(400, EngineRequestError), (500, EngineRequestError), (503, EngineUnavailableError)]
)
async def test_a_refused_generation_tells_the_engines_reason(
    client: EngineClient, engine: FakeEngine, status: int, error: type[Exception]
):
    engine.behaviour.refuse_generate = (status, "the input is too long")

    with pytest.raises(error, match=f"{status}: .*the input is too long"):
        await collect(client, [11, 12])


async def test_a_generation_that_the_engine_gives_up_tells_its_reason(client: EngineClient, engine: FakeEngine):
    engine.behaviour.finish = {"type": "abort", "message": "out of memory", "status_code": 500}

    with pytest.raises(EngineRequestError, match="gave the request up: out of memory"):
        await collect(client, [11, 12])


async def test_a_server_that_is_no_engine_is_reported_as_such(engine: FakeEngine):
    client = EngineClient(f"{engine.url}/elsewhere")

    state = await client.ready()
    await client.aclose()

    assert state.state == "down"
    assert "is not an SGLang 0.5.23 server" in state.reason
