import httpx2
import pytest

from cake_testing.engines import FakeEngine


def test_the_service_is_alive_whatever_the_engine_does(client: httpx2.Client, engine: FakeEngine):
    engine.stop()

    response = client.get("/healthz")

    assert (response.status_code, response.json()) == (200, {"status": "alive"})
    assert engine.paths == []


def test_a_ready_engine_makes_the_service_ready(client: httpx2.Client):
    response = client.get("/readyz")

    assert response.status_code == 200
    assert response.json() == {
        "state": "ready",
        "reason": "ready",
        "model_id": "/models/fake",
        "max_context_tokens": 2048,
    }


def test_readiness_never_runs_a_generation(client: httpx2.Client, engine: FakeEngine):
    client.get("/readyz")

    assert engine.generated == []
    assert not [path for path in engine.paths if path.startswith("/health")]


def test_an_engine_that_loads_makes_the_service_not_ready_and_says_so(client: httpx2.Client, engine: FakeEngine):
    engine.behaviour.ready_status = 503

    response = client.get("/readyz")

    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert response.json()["state"] == "loading"


def test_an_engine_that_is_down_makes_the_service_not_ready_and_says_so(client: httpx2.Client, engine: FakeEngine):
    engine.stop()

    response = client.get("/readyz")

    assert response.status_code == 503
    assert response.json()["state"] == "down"
    assert "does not answer" in response.json()["reason"]


@pytest.mark.parametrize("given", ["abc-123", "A.b_c"])
def test_a_request_id_that_is_given_comes_back(client: httpx2.Client, given: str):
    assert client.get("/healthz", headers={"X-Request-ID": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "<script>"])
def test_a_request_id_that_is_missing_or_odd_is_replaced(client: httpx2.Client, given: str):
    assert len(client.get("/healthz", headers={"X-Request-ID": given}).headers["x-request-id"]) == 32
