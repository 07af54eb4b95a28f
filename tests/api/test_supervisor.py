"""The two children of ``up``: a dead engine comes back, the service's end is the end, and folders have one owner."""

import os
import sys
from pathlib import Path

import pytest

from cake_api.commands.up import lock_data_dir
from cake_api.supervisor import MAX_ENGINE_RESTARTS, PortInUseError, Stack, running_stack
from cake_rag.child_process import ChildProcess


def child(tmp_path: Path, name: str, code: str) -> ChildProcess:
    started = ChildProcess(name, [sys.executable, "-c", code], log_path=tmp_path / f"{name}.log", environ=os.environ)
    started.start()
    return started


def test_a_dead_engine_is_started_again_a_bounded_number_of_times(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    engine = child(tmp_path, "engine", f"open({str(runs)!r}, 'a').write('x'); raise SystemExit(7)")
    service = child(tmp_path, "service", "import time; time.sleep(120)")
    try:
        assert Stack("http://127.0.0.1:1", 0.0, engine, service).wait() == 7
        assert runs.read_text() == "x" * (1 + MAX_ENGINE_RESTARTS)
        assert service.exit_status() is None
    finally:
        service.stop()


def test_the_end_of_the_service_ends_the_wait(tmp_path: Path) -> None:
    engine = child(tmp_path, "engine", "import time; time.sleep(120)")
    service = child(tmp_path, "service", "raise SystemExit(5)")
    try:
        assert Stack("http://127.0.0.1:1", 0.0, engine, service).wait() == 5
    finally:
        engine.stop()


def test_one_port_for_both_is_refused_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(PortInUseError, match="port 18099 is given to both the service and the engine"),
        running_stack(
            host="127.0.0.1", port=18099, engine_port=18099, engine_options=[], logs=tmp_path, environ=os.environ
        ),
    ):
        pass


def test_a_data_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first = lock_data_dir(tmp_path / "data")
    assert first is not None
    assert lock_data_dir(tmp_path / "data") is None
    first.close()
    second = lock_data_dir(tmp_path / "data")
    assert second is not None
    second.close()
