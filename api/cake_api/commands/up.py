"""``cake-sglang up``: the HTTP service; with ``--with-engine`` also its engine, and an example to begin with."""

import argparse
import fcntl
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

from cake_api.demo import Demo, DemoError, load_example
from cake_api.supervisor import PortInUseError, Stack, child_environment, running_stack
from cake_rag.child_process import ChildFailedError
from cake_rag.client import ServiceError

SHUTDOWN_SECONDS = 10
"""An open answer stream is cut after this."""
DEFAULT_EXAMPLE = Path("examples") / "patriotes-of-37.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped; 0 after a good smoke test, 1 after a failure, 130 after Ctrl-C."""
    options = _parser().parse_args(argv)
    if not options.with_engine:
        return _serve(options)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _serve_with_engine(options)
    except KeyboardInterrupt:
        print("\nup: stopped", flush=True)
        return 130
    except (PortInUseError, ChildFailedError, DemoError, ServiceError, OSError) as error:
        print(f"up: {error}", file=sys.stderr)
        if options.smoke:
            print(json.dumps({"ok": False, "failures": [str(error)]}), flush=True)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cake-sglang up", description=__doc__)
    parser.add_argument("--host", help="address of the service (default: CAKE_API_HOST or 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port of the service (default: CAKE_API_PORT or 8080)")
    group = parser.add_argument_group("with an engine of its own")
    group.add_argument("--with-engine", action="store_true", help="start the engine too, then run the example")
    group.add_argument("--engine-port", type=int, default=30000, help="port of the engine (default: %(default)s)")
    group.add_argument("--model", help="folder, .gguf file or Hugging Face id (default: the embedded model)")
    group.add_argument(
        "--data-dir", type=Path, help="folder of documents and index (default: ~/.local/share/cake-sglang)"
    )
    group.add_argument("--example-document", type=Path, default=DEFAULT_EXAMPLE, help="default: %(default)s")
    group.add_argument("--question", action="append", default=[], help="instead of the example's questions")
    group.add_argument("--no-example", action="store_true", help="ingest and ask nothing")
    group.add_argument("--smoke", action="store_true", help="judge the example's answers, print JSON, stop")
    return parser


def _serve(options: argparse.Namespace) -> int:
    import uvicorn
    from pydantic import ValidationError

    from cake_api.app import create_app
    from cake_api.settings import Settings

    try:
        given = {name: getattr(options, name) for name in ("host", "port") if getattr(options, name) is not None}
        settings = Settings(**given)
        app = create_app(settings)
    except ValidationError as error:
        for row in error.errors():
            name = "_".join(["CAKE_API", *(str(part) for part in row["loc"])]).upper()
            print(
                f"up: {name} is {row['input']!r}: {row['msg']}" if row["loc"] else f"up: {row['msg']}", file=sys.stderr
            )
        return 1
    except ValueError as error:
        print(f"up: {error}", file=sys.stderr)
        return 1
    try:
        lock = lock_data_dir(settings.data_dir)
    except OSError as error:
        print(f"up: data folder {settings.data_dir} cannot be used: {error.strerror or error}", file=sys.stderr)
        return 1
    if lock is None:
        print(f"up: data folder {settings.data_dir} is used by another running service", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # one line for every call to the engine
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return 0


def lock_data_dir(folder: Path) -> TextIO | None:
    """Take a data folder for this process until it ends; None when another process has it.

    Raises:
        OSError: If the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _serve_with_engine(options: argparse.Namespace) -> int:
    example = None
    if not options.no_example:
        example = load_example(options.example_document, options.question)
    with tempfile.TemporaryDirectory(prefix="cake-smoke-") as scratch:
        state = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "cake-sglang"
        data_dir = options.data_dir or (Path(scratch) / "data" if options.smoke else state)
        with running_stack(
            host=options.host or "127.0.0.1",
            port=options.port or 8080,
            engine_port=options.engine_port,
            engine_options=["--model", options.model] if options.model else [],
            logs=state / "logs" if not options.smoke else Path(".run"),
            environ=child_environment(os.environ, data_dir),
        ) as stack:
            demo = Demo(stack.url, say=lambda line: print(line, flush=True))
            if example is not None:
                demo.run(example)
            if options.smoke:
                return _judge(demo, stack)
            print(
                f"\nup: the service is at {stack.url} (API: {stack.url}/docs); Ctrl-C stops everything",
                flush=True,
            )
            return stack.wait()


def _judge(demo: Demo, stack: Stack) -> int:
    ok, figures = demo.verdict()
    print(json.dumps({"ok": ok, "engine_start_s": round(stack.engine_start_s, 1), **figures}), flush=True)
    return 0 if ok else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
