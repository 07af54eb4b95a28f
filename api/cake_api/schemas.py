"""What goes in and out as JSON, with examples; out-models mirror the records of ``cake_rag.documents``."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from cake_rag.answering import Stage
from cake_rag.documents import AnswerMode, DocumentStatus

_DOCUMENT_ID = "doc_9f86d081884c7d659a2feaa0c55ad015"

DocumentId = Annotated[
    str,
    Field(description="`doc_` and 32 hex digits of the SHA-256 of the uploaded bytes.", examples=[_DOCUMENT_ID]),
]


class OutModel(BaseModel):
    """Base of what goes out."""

    model_config = ConfigDict(from_attributes=True)


class DocumentModel(OutModel):
    """A stored document."""

    id: DocumentId
    name: str = Field(examples=["lighthouse.txt"])
    media_type: str = Field(description="What the content is, whatever its name says.", examples=["text/plain"])
    size_bytes: int
    num_chars: int
    num_pages: int
    status: DocumentStatus = Field(description="Questions are answered from `ready` on.")
    created_at: str = Field(examples=["2026-01-31T12:00:00.000+00:00"])
    num_tokens: int | None = Field(default=None, description="Tokens for the engine's model, once counted.")
    num_chunks: int
    notes: tuple[str, ...] = Field(description="For people, such as a name that does not suit the content.")
    error: str | None = Field(default=None, description="Why ingestion failed.")


class UploadModel(DocumentModel):
    """A document that was just uploaded."""

    deduplicated: bool = Field(description="True when the same bytes were stored before.")


class DocumentListModel(OutModel):
    """One page of the list of documents, newest first."""

    documents: tuple[DocumentModel, ...]
    next_cursor: str | None = Field(default=None, description="Give it as `cursor` for the next page.")


class QuestionModel(BaseModel):
    """A question about stored documents."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"question": "Who lit the lamp?", "document_ids": [_DOCUMENT_ID]},
                {"question": "Who lit the lamp?", "stream": True, "max_tokens": 48},
            ]
        },
    )

    question: StrictStr = Field(description="1 to CAKE_API_MAX_QUESTION_CHARS characters.")
    document_ids: list[StrictStr] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="What to read. One document that fits is read whole; left out, retrieval chooses one.",
    )
    stream: StrictBool = Field(default=False, description="Answer with server-sent events.")
    max_tokens: StrictInt | None = Field(
        default=None, description="Longest answer in tokens, 1 to CAKE_API_MAX_ANSWER_TOKENS."
    )


class CitationModel(OutModel):
    """A verbatim span of a document that supports one sentence of the answer."""

    document_id: DocumentId
    document_name: str
    page: int = Field(description="Counts from 1.")
    start: int = Field(description="First character of the span in the document's text.")
    end: int = Field(description="The character after the span.")
    quote: str = Field(description="The document's text from `start` to `end`.")
    score: float = Field(description="0 to 1.")
    answer_start: int = Field(description="First character of the supported sentence in the answer's text.")
    answer_end: int = Field(description="The character after that sentence.")


class PassageModel(OutModel):
    """A passage that the model read because the document did not fit."""

    document_id: DocumentId
    document_name: str
    page: int
    start: int
    end: int
    text: str
    score: float = Field(description="Cosine similarity to the question, -1 to 1.")


class UsageModel(OutModel):
    """Tokens of one generation."""

    prompt_tokens: int
    cached_tokens: int = Field(description="Prompt tokens that the engine had not to compute again.")
    completion_tokens: int


class AnswerModel(OutModel):
    """An answer with what supports it."""

    text: str = Field(examples=["The keeper's daughter lit the lamp."])
    declined: bool = Field(description="True when the documents support no sentence of the model's answer.")
    mode: AnswerMode = Field(description="`document`: read whole. `passages`: read in part, see `passages`.")
    document_ids: tuple[DocumentId, ...]
    citations: tuple[CitationModel, ...]
    usage: UsageModel
    ttft_s: float = Field(description="Seconds from the engine's start on it to the first token.")
    total_s: float = Field(description="Seconds from the question to this answer.")
    passages: tuple[PassageModel, ...] = ()
    unsupported_text: str | None = Field(default=None, description="What the model wrote without support.")
    dropped_quotes: int = Field(default=0, description="Quotes by the model that no document holds.")
    finish_reason: str = Field(default="stop", description="`stop`, or `length` when max_tokens ended it.")
    notes: tuple[str, ...] = ()


class StatusModel(OutModel):
    """Event `status`: a stage begins or still lasts."""

    stage: Stage
    elapsed_s: float


class TokenModel(OutModel):
    """Event `token`: new text of the draft. The event `answer` replaces the draft."""

    text: str


class HealthModel(BaseModel):
    """The process is alive."""

    status: Literal["alive"] = "alive"


class ReadinessModel(OutModel):
    """Whether questions can be answered now, and if not, why."""

    state: Literal["ready", "loading", "down"]
    reason: str = Field(examples=["ready"])
    model_id: str | None = None
    max_context_tokens: int | None = Field(default=None, description="Prompt and answer together.")


class FieldErrorModel(BaseModel):
    """One refused field."""

    field: str = Field(examples=["body.max_tokens"])
    message: str
    value: str = Field(description="What was given, shortened.")


class ProblemModel(BaseModel):
    """RFC 9457 problem document."""

    type: str = Field(examples=["urn:cake-sglang:problem:document-not-found"])
    title: str = Field(examples=["There is no such document"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What was wrong, the value, and the allowed range.")
    instance: str = Field(examples=[f"/v1/documents/{_DOCUMENT_ID}"])
    code: str = Field(description="Stable word for programs.", examples=["document-not-found"])
    request_id: str
    retry_after_s: int | None = Field(default=None, description="The same request may succeed after this.")
    limits: dict[str, int] | None = Field(default=None, description="Settings that bound the refused value.")
    errors: list[FieldErrorModel] | None = Field(default=None, description="Refused fields.")


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Give the OpenAPI entries of the problems that a route can answer with."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemModel"}}}
    return {status: {"description": "Problem (RFC 9457)", "content": content} for status in statuses}


def add_problem_schema(document: dict[str, Any]) -> None:
    """Put the problem document into the components of an OpenAPI document."""
    template = "#/components/schemas/{model}"
    schema = ProblemModel.model_json_schema(ref_template=template)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update(schema.pop("$defs", {}))
    components["ProblemModel"] = schema
