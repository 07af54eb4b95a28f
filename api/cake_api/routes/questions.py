"""Questions: answered as JSON, or as server-sent events."""

from typing import Any

from fastapi import APIRouter, Request, Response

from cake_api.dependencies import PipelineDep
from cake_api.schemas import AnswerModel, QuestionModel, problem_responses
from cake_api.sse import AnswerStream, answer_events, until_client_leaves

router = APIRouter(prefix="/v1/questions", tags=["questions"])

_STREAM_EXAMPLE = (
    'event: status\ndata: {"stage":"prefilling","elapsed_s":0.01}\n\n'
    'event: token\ndata: {"text":"The keeper"}\n\n'
    'event: answer\ndata: {"text":"The keeper\'s daughter lit the lamp.","citations":[]}\n\n'
    'event: usage\ndata: {"prompt_tokens":812,"cached_tokens":780,"completion_tokens":9}\n\n'
    "event: done\ndata: {}\n\n"
)
_ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` the events status, token, answer, usage (or error), done",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _STREAM_EXAMPLE}},
    }
}


@router.post(
    "",
    operation_id="ask_question",
    summary="Ask a question",
    response_model=AnswerModel,
    responses=_ANSWERED | problem_responses(400, 404, 409, 413, 422, 502, 503),
)
async def ask_question(question: QuestionModel, request: Request, pipeline: PipelineDep) -> AnswerModel | Response:
    """Answer a question from stored documents, with verbatim citations.

    The generation is aborted when the client leaves.
    """
    asked = (question.question, question.document_ids, question.max_tokens)
    if not question.stream:
        answer = await until_client_leaves(request, pipeline.answer(*asked))
        return AnswerModel.model_validate(answer)
    events = pipeline.ask(*asked)
    first = await anext(events)
    return AnswerStream(answer_events(first, events, request))
