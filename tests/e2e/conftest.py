"""The real engine and the real service, started once, after unmodified SGLang: one server at a time."""

import os
from collections.abc import Iterator

import httpx2
import pytest

from cake_api.supervisor import child_environment, running_stack
from cake_eval.engine_process import free_port, running_engine
from cake_testing.stack import Service, greedy_samples


@pytest.fixture(scope="session")
def stock_samples(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    with running_engine(tmp_path_factory.mktemp("stock"), plugin=False) as server:
        return greedy_samples(server)


@pytest.fixture(scope="session")
def service(stock_samples: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    work = tmp_path_factory.mktemp("service")
    with (
        running_stack(
            host="127.0.0.1",
            port=free_port(),
            engine_port=free_port(),
            engine_options=[],
            logs=work / "logs",
            environ=child_environment(os.environ, work / "data"),
        ) as stack,
        httpx2.Client(base_url=stack.url, timeout=600) as http,
    ):
        yield Service(stack, http, work / "data")
