"""Engine and service as two child processes of one command: started in order, watched, stopped together."""

import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from cake_rag.child_process import ChildProcess

ENGINE_START_SECONDS = 600.0
SERVICE_START_SECONDS = 120.0
MAX_ENGINE_RESTARTS = 3
QUIET_SECONDS = 10.0
"""Longest silence on a terminal-less output while something is loading."""


class PortInUseError(RuntimeError):
    """A port that the service needs is taken."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What was started."""

    url: str
    engine_start_s: float
    engine: ChildProcess
    service: ChildProcess

    def wait(self) -> int:
        """Keep both running until the service ends or the engine cannot be kept alive; gives a status.

        A dead engine is started again, ``MAX_ENGINE_RESTARTS`` times; until it is ready the service answers 503.
        """
        restarts = 0
        while True:
            for child in (self.engine, self.service):
                status = child.exit_status()
                if status is None:
                    continue
                print(f"up: {child.name} ended with status {status}; {child.log_tail()}", file=sys.stderr, flush=True)
                if child is self.service or restarts >= MAX_ENGINE_RESTARTS:
                    return status or 1
                restarts += 1
                child.stop()
                child.start()
                print(f"up: engine started again ({restarts} of {MAX_ENGINE_RESTARTS})", file=sys.stderr, flush=True)
            time.sleep(1)


class Progress:
    """Says what is happening and for how long; one line that renews itself on a terminal."""

    def __init__(self) -> None:
        """Start silent."""
        self._last = 0.0

    def waiting(self, what: str) -> Callable[[float], None]:
        """Give a callback for ``ChildProcess.wait_until``."""
        self._last = 0.0

        def show(elapsed_s: float) -> None:
            if sys.stdout.isatty():
                print(f"\rup: {what}, {elapsed_s:.0f} s ", end="", flush=True)
            elif elapsed_s - self._last >= QUIET_SECONDS:
                self._last = elapsed_s
                print(f"up: {what}, {elapsed_s:.0f} s", flush=True)

        return show

    def done(self, text: str) -> None:
        """Say that a step is finished."""
        start = "\r" if sys.stdout.isatty() else ""
        print(f"{start}up: {text}          " if start else f"up: {text}", flush=True)


def require_free_port(host: str, port: int, what: str) -> None:
    """Check a port before anything is started.

    Raises:
        PortInUseError: If it cannot be bound.
    """
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise PortInUseError(
            f"port {port} for the {what} cannot be used on {host}: {error.strerror or error}; "
            f"choose another with --{'engine-' if what == 'engine' else ''}port"
        ) from error


def answers(url: str, path: str) -> bool:
    """Say whether a GET gives 200."""
    try:
        return httpx2.get(url + path, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


@contextmanager
def running_stack(
    *,
    host: str,
    port: int,
    engine_port: int,
    engine_options: Sequence[str],
    logs: Path,
    environ: Mapping[str, str],
) -> Iterator[Stack]:
    """Start engine and service, wait until both are ready, stop both at the end.

    Raises:
        PortInUseError: If a port is taken.
        cake_rag.child_process.ChildFailedError: If one of them ends or does not become ready.
    """
    if port == engine_port:
        raise PortInUseError(f"port {port} is given to both the service and the engine")
    require_free_port("127.0.0.1", engine_port, "engine")
    require_free_port(host, port, "service")
    command = [sys.executable, "-m", "cake_sglang.cli"]
    engine_url, url = f"http://127.0.0.1:{engine_port}", f"http://{host}:{port}"
    engine = ChildProcess(
        "engine",
        [*command, "engine", "--port", str(engine_port), *engine_options],
        log_path=logs / "engine.log",
        environ=environ,
        error_prefix="cake-sglang engine: ",
    )
    service = ChildProcess(
        "service",
        [*command, "up", "--host", host, "--port", str(port)],
        log_path=logs / "service.log",
        error_prefix="up: ",
        environ={**environ, "CAKE_API_ENGINE_URL": engine_url},
    )
    progress = Progress()
    try:
        print(f"up: starting the service (log: {service.log_path})", flush=True)
        service.start()
        service.wait_until(
            lambda: answers(url, "/healthz"),
            timeout_s=SERVICE_START_SECONDS,
            on_wait=progress.waiting("service: starting"),
        )
        progress.done(f"service up at {url}, starting the engine (log: {engine.log_path})")
        engine.start()
        engine_start_s = engine.wait_until(
            lambda: answers(url, "/readyz"),
            timeout_s=ENGINE_START_SECONDS,
            on_wait=progress.waiting("engine: preparing and loading the model"),
        )
        progress.done(f"engine ready after {engine_start_s:.0f} s")
        yield Stack(url, engine_start_s, engine, service)
    finally:
        service.stop()
        engine.stop()


def child_environment(environ: Mapping[str, str], data_dir: Path) -> dict[str, str]:
    """Give the children's environment: ours, with the data folder and unbuffered output."""
    return {**environ, "CAKE_API_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1"}
