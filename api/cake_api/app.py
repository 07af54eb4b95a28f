"""The application: settings in, ASGI app out. Read first."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from cake_api.jobs import IngestQueue
from cake_api.middleware import BodyLimit, BodyRule, RequestContext
from cake_api.problems import PROBLEMS, problem_response
from cake_api.routes import documents, health, questions
from cake_api.schemas import add_problem_schema
from cake_api.settings import Settings
from cake_rag.embed import Embedder
from cake_rag.errors import RagError
from cake_rag.pipeline import Pipeline

_MULTIPART_BYTES = 65_536
_JSON_BYTES = 1_048_576
_ASSETS_URL = "/docs-assets"
_DESCRIPTION = """Ask questions about documents. Answers carry verbatim citations with page and
character span.

A document is prefilled once and kept in the engine's radix tree, so that every further question computes only
its own tokens: see `usage.cached_tokens`. Errors are RFC 9457 problems."""


def create_app(settings: Settings, embedder: Embedder | None = None) -> FastAPI:
    """Give the service; it opens its stored state when it starts, and does not need the engine to start.

    Args:
        settings: Everything that can be configured.
        embedder: Given by callers that already hold one.

    Raises:
        ValueError: If two settings contradict each other.
    """
    config = settings.rag_config()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pipeline = await Pipeline.open(config, embedder)
        ingest_queue = IngestQueue(pipeline)
        app.state.pipeline = pipeline
        app.state.ingest_queue = ingest_queue
        await ingest_queue.start()
        try:
            yield
        finally:
            await ingest_queue.stop()
            await pipeline.aclose()

    app = _Service(
        title="CAKE-SGLang document QA",
        version="0.1.0",
        description=_DESCRIPTION,
        servers=[{"url": "/"}],
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    _add_docs_page(app)
    app.state.settings = settings
    for router in (documents.router, questions.router, health.router):
        app.include_router(router)
    for error in (HTTPException, RequestValidationError, RagError, *PROBLEMS):
        if error is not Exception:
            app.add_exception_handler(error, problem_response)

    upload = BodyRule(settings.max_upload_bytes + _MULTIPART_BYTES, ("max_upload_bytes",))
    other = BodyRule(_JSON_BYTES)
    app.add_middleware(BodyLimit, rule_of=lambda path: upload if path == "/v1/documents" else other)
    app.add_middleware(RequestContext)
    return app


def _add_docs_page(app: FastAPI) -> None:
    """Serve Swagger UI from the installed files of ``fastapi-offline``; FastAPI's own page asks a CDN."""
    app.mount(_ASSETS_URL, StaticFiles(packages=[("fastapi_offline", "static")]), name="docs-assets")

    @app.get("/docs", include_in_schema=False)
    async def docs_page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=f"{app.title}: API",
            swagger_js_url=f"{_ASSETS_URL}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS_URL}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS_URL}/favicon.png",
        )


class _Service(FastAPI):
    """FastAPI whose OpenAPI document knows the problem document."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        add_problem_schema(schema)
        return schema
