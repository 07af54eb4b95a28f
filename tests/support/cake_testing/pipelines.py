"""A pipeline on a fake engine, and the texts and questions of its tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cake_rag.config import RagConfig
from cake_rag.embed import Embedder
from cake_rag.pipeline import Pipeline
from cake_testing.service import LIGHTHOUSE

QUESTION = "Who lit the lamp on the night of the storm?"
LONG_TEXT = "\n\n".join(
    f"Chapter {number}. The {word} sailed in {1800 + number} with {number + 20} men and came home empty."
    for number, word in enumerate(["Albatross", "Brigantine", "Curlew", "Dolphin", "Eider", "Falcon"] * 20)
)


@asynccontextmanager
async def opened(config: RagConfig, embedder: Embedder) -> AsyncIterator[Pipeline]:
    """Give a pipeline, and close it."""
    pipeline = await Pipeline.open(config, embedder)
    try:
        yield pipeline
    finally:
        await pipeline.aclose()


async def ready(pipeline: Pipeline, text: str = LIGHTHOUSE, name: str = "lighthouse.txt") -> str:
    """Give the id of a document that can be asked."""
    document, _ = await pipeline.ingest(name, text.encode())
    await pipeline.run_ingest(document.id)
    return document.id
