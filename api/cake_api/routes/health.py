"""Alive, and ready: two different questions."""

from fastapi import APIRouter, Response

from cake_api.dependencies import PipelineDep, SettingsDep
from cake_api.schemas import HealthModel, ReadinessModel

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="health", summary="Is the process alive?")
async def health() -> HealthModel:
    """Answer as long as the process runs; asks nobody."""
    return HealthModel()


@router.get(
    "/readyz",
    operation_id="readiness",
    summary="Can questions be answered?",
    responses={503: {"model": ReadinessModel, "description": "Not now; `reason` says why"}},
)
async def readiness(response: Response, pipeline: PipelineDep, settings: SettingsDep) -> ReadinessModel:
    """Give the engine's state; never runs a generation."""
    state = await pipeline.state()
    if state.state != "ready":
        response.status_code = 503
        response.headers["Retry-After"] = str(settings.retry_after_s)
    return ReadinessModel.model_validate(state)
