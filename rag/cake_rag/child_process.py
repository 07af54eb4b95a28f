"""A child process with a log file, a readiness probe, and an orderly end: the engine, or the service itself."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 20.0
POLL_SECONDS = 0.5


class ChildFailedError(RuntimeError):
    """A child process ended, or did not become ready in time; the message carries the end of its log."""


class ChildProcess:
    """One child in a process group of its own, so that stopping it stops what it started."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        environ: Mapping[str, str],
        error_prefix: str | None = None,
    ) -> None:
        """Describe the child; nothing runs until ``start``.

        Args:
            name: Name for messages.
            command: Program and arguments.
            log_path: File that takes its output; overwritten.
            environ: Its whole environment.
            error_prefix: How the child's own one-line errors begin; such a line replaces the end of the log.
        """
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self.environ = dict(environ)
        self._error_prefix = error_prefix
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the child."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environ,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The child's process id; 0 before ``start``."""
        return self._process.pid if self._process else 0

    def exit_status(self) -> int | None:
        """Give the exit status, or None while the child runs or before it was started."""
        return self._process.poll() if self._process else None

    def wait_until(
        self,
        probe: Callable[[], bool],
        *,
        timeout_s: float,
        on_wait: Callable[[float], None] = lambda elapsed_s: None,
    ) -> float:
        """Wait until ``probe`` says yes; gives the seconds waited.

        Raises:
            ChildFailedError: If the child ends first, or the time is over.
        """
        started = time.monotonic()
        while True:
            elapsed = time.monotonic() - started
            status = self.exit_status()
            if status is not None:
                ended = f"{self.name} ended with status {status}; {self.log_tail()}"
                raise ChildFailedError(self._own_error() or ended)
            if probe():
                return elapsed
            if elapsed > timeout_s:
                raise ChildFailedError(f"{self.name} is not ready after {timeout_s:.0f} s; {self.log_tail()}")
            on_wait(elapsed)
            time.sleep(POLL_SECONDS)

    def _own_error(self) -> str | None:
        """Give the child's last one-line error without its prefix, or None."""
        if self._error_prefix is None:
            return None
        log = self.log_path.read_text(encoding="utf-8", errors="replace")
        own = [line for line in log.splitlines() if line.startswith(self._error_prefix)]
        return f"{self.name}: {own[-1].removeprefix(self._error_prefix)}" if own else None

    def log_tail(self, num_lines: int = 6) -> str:
        """Give the log's last lines, for a message."""
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return f"no log at {self.log_path}"
        last = "\n  ".join(line[:300] for line in lines[-num_lines:])
        return f"the end of {self.log_path}:\n  {last}"

    def stop(self) -> None:
        """Ask the child's process group to end, then insist; safe to call twice."""
        if self._process is None:
            return
        for number, wait_s in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
        self._process.poll()
