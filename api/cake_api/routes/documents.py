"""Documents: upload, list, look at, delete."""

from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

from cake_api.dependencies import IngestQueueDep, PipelineDep, SettingsDep
from cake_api.problems import UnknownCursorError
from cake_api.schemas import DocumentListModel, DocumentModel, UploadModel, problem_responses
from cake_rag.errors import DocumentNotFoundError, DocumentTooLargeError

router = APIRouter(prefix="/v1/documents", tags=["documents"])

DocumentIdPath = Annotated[str, Path(examples=["doc_9f86d081884c7d659a2feaa0c55ad015"])]


class UploadForm(BaseModel):
    """A form with one file."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile = Field(description="Plain text, Markdown, HTML or PDF; the content decides.")


@router.post(
    "",
    operation_id="upload_document",
    summary="Upload a document",
    status_code=202,
    response_model=UploadModel,
    responses={
        200: {"model": UploadModel, "description": "The same bytes were stored before"},
        202: {
            "description": "Stored; ingestion goes on in the background",
            "headers": {
                "Location": {"description": "Where its status is", "schema": {"type": "string"}},
            },
        },
        **problem_responses(400, 413, 415, 422),
    },
)
async def upload_document(
    form: Annotated[UploadForm, Form(media_type="multipart/form-data")],
    request: Request,
    response: Response,
    pipeline: PipelineDep,
    ingest_queue: IngestQueueDep,
    settings: SettingsDep,
) -> UploadModel:
    """Store a document and ingest it in the background: chunks, vectors, token ids, a warm prefix.

    What cannot become a document is refused at once, and nothing of it is stored.
    """
    await _check_single(request)
    file = form.file
    if file.size is not None and file.size > settings.max_upload_bytes:
        raise DocumentTooLargeError(f"the file has {file.size} bytes, expected at most {settings.max_upload_bytes}")
    document, created = await pipeline.ingest(file.filename or "", await file.read())
    if created:
        ingest_queue.put(document.id)
    response.status_code = 202 if created else 200
    response.headers["Location"] = f"/v1/documents/{document.id}"
    fields = DocumentModel.model_validate(document).model_dump()
    return UploadModel(**fields, deduplicated=not created)


@router.get(
    "",
    operation_id="list_documents",
    summary="List documents",
    response_model=DocumentListModel,
    responses=problem_responses(422),
)
async def list_documents(
    pipeline: PipelineDep,
    limit: Annotated[int, Query(ge=1, le=200, description="Documents on one page.")] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> DocumentListModel:
    """List the stored documents, newest first."""
    try:
        documents = await pipeline.documents(limit + 1, cursor)
    except DocumentNotFoundError as error:
        raise UnknownCursorError(f"cursor is {cursor!r:.80}, expected the next_cursor of a page") from error
    page = documents[:limit]
    return DocumentListModel(
        documents=tuple(DocumentModel.model_validate(document) for document in page),
        next_cursor=page[-1].id if len(documents) > limit else None,
    )


@router.get(
    "/{document_id}",
    operation_id="get_document",
    summary="Look at a document",
    response_model=DocumentModel,
    responses=problem_responses(404, 422),
)
async def get_document(document_id: DocumentIdPath, pipeline: PipelineDep) -> DocumentModel:
    """Give a document's status and measures."""
    return DocumentModel.model_validate(await pipeline.get(document_id))


@router.delete(
    "/{document_id}",
    operation_id="delete_document",
    summary="Delete a document",
    status_code=204,
    responses=problem_responses(404, 422),
)
async def delete_document(document_id: DocumentIdPath, pipeline: PipelineDep) -> None:
    """Delete a document with everything that was derived from it."""
    await pipeline.delete(document_id)


async def _check_single(request: Request) -> None:
    """Refuse a second file: FastAPI would drop it without a word."""
    num_files = len((await request.form()).getlist("file"))
    if num_files > 1:
        raise RequestValidationError(
            [{"loc": ("body", "file"), "msg": "expected one file per upload", "type": "too_many", "input": num_files}]
        )
