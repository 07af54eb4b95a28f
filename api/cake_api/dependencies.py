"""What routes are given."""

from typing import Annotated

from fastapi import Depends, Request

from cake_api.jobs import IngestQueue
from cake_api.settings import Settings
from cake_rag.pipeline import Pipeline


def _pipeline(request: Request) -> Pipeline:
    return request.app.state.pipeline


def _ingest_queue(request: Request) -> IngestQueue:
    return request.app.state.ingest_queue


def _settings(request: Request) -> Settings:
    return request.app.state.settings


PipelineDep = Annotated[Pipeline, Depends(_pipeline)]
IngestQueueDep = Annotated[IngestQueue, Depends(_ingest_queue)]
SettingsDep = Annotated[Settings, Depends(_settings)]
