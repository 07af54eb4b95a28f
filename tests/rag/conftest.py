from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cake_rag.config import RagConfig
from cake_rag.embed import Embedder
from cake_rag.pipeline import Pipeline
from cake_testing.engines import FakeEngine
from cake_testing.pipelines import opened
from cake_testing.service import ANSWER


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as fake:
        fake.behaviour.reply = lambda _: ANSWER
        yield fake


@pytest.fixture
def config(tmp_path: Path, engine: FakeEngine) -> RagConfig:
    return RagConfig(tmp_path, engine.url, heartbeat_s=0.05, connect_timeout_s=2.0)


@pytest.fixture
async def pipeline(config: RagConfig, embedder: Embedder) -> AsyncIterator[Pipeline]:
    async with opened(config, embedder) as pipeline:
        yield pipeline
