from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cake_api.app import create_app
from cake_api.settings import Settings
from cake_rag.embed import Embedder
from cake_testing.engines import FakeEngine
from cake_testing.servers import ServedApp
from cake_testing.service import ANSWER

Service = Callable[..., AbstractContextManager[httpx2.Client]]


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as fake:
        fake.behaviour.reply = lambda _: ANSWER
        yield fake


@pytest.fixture
def service(tmp_path: Path, engine: FakeEngine, embedder: Embedder) -> Service:
    """Give a function that starts the service on this test's data folder; again is a restart."""

    @contextmanager
    def start(**changes: Any) -> Iterator[httpx2.Client]:
        values: dict[str, Any] = {
            "data_dir": tmp_path / "data",
            "engine_url": engine.url,
            "heartbeat_s": 0.1,
        }
        app = create_app(Settings(**values | changes), embedder)
        with (
            ServedApp(app) as served,
            httpx2.Client(base_url=served.url, timeout=60.0, trust_env=False) as client,
        ):
            yield client

    return start


@pytest.fixture
def client(service: Service) -> Iterator[httpx2.Client]:
    with service() as started:
        yield started
