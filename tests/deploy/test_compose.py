"""docker-compose.yml as Compose itself reads it; needs no daemon, builds and starts no container."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cake_testing.deployment import ROOT, compose_config, run_compose

CHOICES = {"cpu": "engine", "gpu": "engine-gpu"}


@pytest.fixture(params=CHOICES)
def services(request: pytest.FixtureRequest) -> dict[str, dict]:
    return compose_config("--profile", request.param)["services"]


@pytest.fixture
def bare_folder(tmp_path: Path) -> Path:
    """The compose file without the .env file beside it."""
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    return tmp_path


def test_plain_up_starts_the_cpu_engine_and_the_service():
    assert set(compose_config()["services"]) == {"engine", "api"}


@pytest.mark.parametrize("profile", CHOICES)
def test_a_profile_starts_its_own_engine_only(profile: str):
    assert set(compose_config("--profile", profile)["services"]) == {CHOICES[profile], "api"}


@pytest.mark.parametrize("profile", CHOICES)
def test_the_environment_chooses_the_engine_too(profile: str):
    services = compose_config(env={"COMPOSE_PROFILES": profile})["services"]
    assert set(services) == {CHOICES[profile], "api"}


def test_without_a_choice_of_engine_compose_refuses_and_names_the_variable(bare_folder: Path):
    result = run_compose("config", folder=bare_folder)
    assert result.returncode != 0
    assert "COMPOSE_PROFILES" in result.stderr
    assert "choose the engine" in result.stderr


def test_the_service_waits_for_the_start_of_whichever_engine_is_chosen(services: dict[str, dict]):
    # Compose drops an absent engine itself (`required: false`) but keeps it in the printed configuration.
    (engine,) = set(services) - {"api"}
    assert services["api"]["depends_on"][engine]["condition"] == "service_started"
    assert all(wait["required"] is False for wait in services["api"]["depends_on"].values())


def test_the_service_finds_either_engine_under_the_name_in_its_url(services: dict[str, dict]):
    (engine,) = set(services) - {"api"}
    aliases = (services[engine]["networks"]["default"] or {}).get("aliases", [])
    assert "engine" in {engine, *aliases}
    assert services["api"]["environment"]["CAKE_API_ENGINE_URL"] == "http://engine:30000"


def test_compose_refuses_both_engines_at_once():
    result = run_compose("--profile", "cpu", "--profile", "gpu", "config")
    assert result.returncode != 0
    assert 'container name "cake-sglang-engine" is already in use' in result.stderr


def test_only_the_service_is_published_and_only_to_this_machine(services: dict[str, dict]):
    published = {name: service.get("ports", []) for name, service in services.items()}
    ports = published.pop("api")
    assert [(port["host_ip"], port["target"]) for port in ports] == [("127.0.0.1", 8080)]
    assert not any(published.values())


def test_one_volume_holds_the_data_of_both_services(services: dict[str, dict]):
    mounts = {name: [(m["type"], m["source"], m["target"]) for m in s["volumes"]] for name, s in services.items()}
    assert set(map(tuple, mounts.values())) == {(("volume", "data", "/data"),)}
    assert list(compose_config()["volumes"]) == ["data"]


def test_every_service_is_confined(services: dict[str, dict]):
    for name, service in services.items():
        assert service["user"] == "10001:10001", name
        assert service["read_only"] is True, name
        assert service["init"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["mem_limit"]) > 0, name
        assert service["restart"] == "unless-stopped", name
        assert service["stop_grace_period"] == "30s", name


def test_the_gpu_engine_reserves_one_nvidia_device_and_the_cpu_engine_none():
    gpu = compose_config("--profile", "gpu")["services"]["engine-gpu"]
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    assert "deploy" not in compose_config("--profile", "cpu")["services"]["engine"]


def test_further_engine_flags_reach_the_command_as_separate_words():
    env = {"CAKE_ENGINE_ARGS": "--model '/data/models/my model.gguf'"}
    command = compose_config(env=env)["services"]["engine"]["command"]
    assert command[-2:] == ["--model", "/data/models/my model.gguf"]


@contextmanager
def server_that_answers(status: int) -> Iterator[tuple[int, list[str]]]:
    """A loopback server with one answer; yields its port and the list of paths that were asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, paths
        finally:
            server.shutdown()
            thread.join()


def probe(service: dict, container_port: int, port: int) -> int:
    """The exit code of a service's own health check, pointed at another port."""
    kind, program, *rest = service["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    command = [word.replace(f":{container_port}/", f":{port}/") for word in rest]
    assert command != rest
    return subprocess.run([sys.executable, *command], capture_output=True, timeout=30).returncode


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_health_checks_follow_readiness(services: dict[str, dict], status: int, healthy: bool):
    (engine,) = set(services) - {"api"}
    for name, port, path in ((engine, 30000, "/ready"), ("api", 8080, "/readyz")):
        with server_that_answers(status) as (free_port, paths):
            assert (probe(services[name], port, free_port) == 0) is healthy
        assert paths == [path]
