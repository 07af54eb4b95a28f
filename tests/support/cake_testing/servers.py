"""The service over real loopback HTTP, in a thread."""

from threading import Thread
from types import TracebackType

import uvicorn
from starlette.types import ASGIApp

from cake_testing.engines import wait_until


class ServedApp:
    """Serves an ASGI app, lifespan included, on a free port; a context manager."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, ws="none", lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, daemon=True)

    @property
    def url(self) -> str:
        [server] = self._server.servers
        host, port = server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    def __enter__(self) -> "ServedApp":
        self._thread.start()
        wait_until(lambda: self._server.started or not self._thread.is_alive(), 60.0)
        if not self._server.started:
            raise RuntimeError("the application did not start, see the log")
        return self

    def __exit__(
        self, type_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(30.0)
