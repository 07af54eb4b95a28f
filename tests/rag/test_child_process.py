"""Child processes: their failures are told in their own words, and nothing of theirs is left running."""

import os
import sys
import time
from pathlib import Path

import pytest

from cake_rag.child_process import ChildFailedError, ChildProcess


def child(tmp_path: Path, code: str, prefix: str | None = None) -> ChildProcess:
    command = [sys.executable, "-c", code]
    return ChildProcess("worker", command, log_path=tmp_path / "log", environ=os.environ, error_prefix=prefix)


def test_a_child_that_says_why_it_ends_is_quoted_in_one_line(tmp_path: Path) -> None:
    worker = child(tmp_path, "print('loading'); print('worker: port 1 is taken'); raise SystemExit(1)", "worker: ")
    worker.start()
    with pytest.raises(ChildFailedError) as raised:
        worker.wait_until(lambda: False, timeout_s=20)
    assert str(raised.value) == "worker: port 1 is taken"


def test_a_child_that_ends_without_a_word_shows_the_end_of_its_log(tmp_path: Path) -> None:
    worker = child(tmp_path, "[print('line', i) for i in range(20)]; raise SystemExit(3)", "worker: ")
    worker.start()
    with pytest.raises(ChildFailedError, match=r"worker ended with status 3; the end of .*log:(?s:.*)line 19"):
        worker.wait_until(lambda: False, timeout_s=20)


def test_a_child_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    worker = child(tmp_path, "import time; time.sleep(60)")
    worker.start()
    with pytest.raises(ChildFailedError, match="worker is not ready after 0 s"):
        worker.wait_until(lambda: False, timeout_s=0.1)
    worker.stop()
    assert worker.exit_status() is not None


def test_stopping_a_child_stops_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('PATH', 'w').write(str(p.pid))\n"
        "time.sleep(60)"
    ).replace("PATH", str(tmp_path / "pid"))
    worker = child(tmp_path, code)
    worker.start()
    worker.wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text() != "", timeout_s=20)
    grandchild = int((tmp_path / "pid").read_text())
    worker.stop()
    until = time.monotonic() + 10
    while time.monotonic() < until and _alive(grandchild):
        time.sleep(0.05)
    assert not _alive(grandchild)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
