"""Requests to the engine, with every failure mapped to one of this package's errors."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2

from cake_rag.errors import EngineError, EngineRequestError, EngineUnavailableError


class EngineHttp:
    """JSON in, JSON or server-sent events out."""

    def __init__(self, base_url: str, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        """Prepare a client; nothing is sent yet. ``read_timeout_s`` is the longest silence of the engine."""
        self.base_url = base_url.rstrip("/")
        # A proxy of the environment must not see requests to the engine.
        self._client = httpx2.AsyncClient(
            base_url=self.base_url,
            timeout=httpx2.Timeout(read_timeout_s, connect=connect_timeout_s),
            limits=httpx2.Limits(max_connections=None),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def status(self, path: str, timeout_s: float) -> int:
        """Give the status code of a GET request.

        Raises:
            EngineUnavailableError: If there is no answer within ``timeout_s`` seconds.
        """
        try:
            return (await self._client.get(path, timeout=timeout_s)).status_code
        except httpx2.TransportError as error:
            raise self._away(error) from error

    async def get(self, path: str) -> dict[str, Any]:
        """Give the JSON object at ``path``.

        Raises:
            EngineUnavailableError: If the engine is away or answers 503.
            EngineRequestError: If the answer is anything but a JSON object.
        """
        try:
            return self._json(await self._client.get(path))
        except httpx2.TransportError as error:
            raise self._away(error) from error

    async def post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        """Give the JSON object that answers ``body``; errors as in ``get``."""
        try:
            return self._json(await self._client.post(path, json=body))
        except httpx2.TransportError as error:
            raise self._away(error) from error

    async def send(self, path: str, body: dict[str, object], timeout_s: float) -> None:
        """Post ``body`` and ignore what the engine says to it.

        Raises:
            EngineUnavailableError: If the engine is away.
        """
        try:
            await self._client.post(path, json=body, timeout=timeout_s)
        except httpx2.TransportError as error:
            raise self._away(error) from error

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, object]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Give the JSON objects of an event stream, up to ``[DONE]``; errors as in ``get``."""
        try:
            async with self._client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise self._refusal(response)
                async with aclosing(self._payloads(response)) as payloads:
                    yield payloads
        except httpx2.SSEError as error:
            raise EngineRequestError(f"the engine does not answer with an event stream: {error}") from error
        except httpx2.TransportError as error:
            raise self._away(error) from error

    async def _payloads(self, response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
        async for event in httpx2.EventSource(response):
            if event.data == "[DONE]":
                return
            yield _object(event.data, "an event of the engine")

    def _json(self, response: httpx2.Response) -> dict[str, Any]:
        if response.status_code != 200:
            raise self._refusal(response)
        return _object(response.text, str(response.url))

    def _away(self, error: httpx2.TransportError) -> EngineUnavailableError:
        reason = f"{type(error).__name__} {error}".strip()
        return EngineUnavailableError(f"the engine at {self.base_url} does not answer: {reason}")

    def _refusal(self, response: httpx2.Response) -> EngineError:
        message = f"the engine answers {response.status_code}: {response.text[:300]}"
        return EngineUnavailableError(message) if response.status_code == 503 else EngineRequestError(message)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise EngineRequestError(f"{where} is not JSON") from error
    if not isinstance(body, dict):
        raise EngineRequestError(f"{where} is {type(body).__name__}, expected an object")
    return body
