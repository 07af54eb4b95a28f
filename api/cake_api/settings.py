"""Settings of the service, from ``CAKE_API_*`` variables; nothing else reads the environment."""

import os
from difflib import get_close_matches
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cake_rag.client import URL_VARIABLE
from cake_rag.config import RagConfig

ENV_PREFIX = "CAKE_API_"


class Settings(BaseSettings):
    """Where the service listens, where it keeps its data, which engine it asks, and its limits."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    data_dir: Path = Field(default=Path("data"), description="Folder of database, uploads and index.")
    engine_url: str = Field(default="http://127.0.0.1:30000", description="Base URL of the SGLang server.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=1, le=65_535, description="Port to listen on.")
    max_upload_bytes: int = Field(default=50_000_000, ge=1, description="Largest upload, in bytes.")
    max_document_chars: int = Field(default=20_000_000, ge=1, description="Longest text of a document.")
    max_document_pages: int = Field(default=2_000, ge=1, description="Most pages of a document.")
    max_question_chars: int = Field(default=4_000, ge=1, description="Longest question, in characters.")
    answer_tokens: int = Field(default=96, ge=1, description="Longest answer when max_tokens is left out.")
    max_answer_tokens: int = Field(default=1_024, ge=1, description="Largest max_tokens of a question.")
    num_passages: int = Field(default=6, ge=1, le=64, description="Passages read when a document does not fit.")
    max_concurrent_questions: int = Field(default=4, ge=1, description="Questions with the engine at one time.")
    heartbeat_s: float = Field(default=2.0, gt=0, description="Longest silence of an event stream, in seconds.")
    retry_after_s: int = Field(default=5, ge=1, description="Retry-After of 409 and 503 answers, in seconds.")
    embed_threads: int = Field(default=1, ge=1, description="Threads of one embedding run.")

    @field_validator("engine_url")
    @classmethod
    def _engine_url_is_http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"is {value!r}, expected http://... or https://...")
        return value.rstrip("/")

    def model_post_init(self, context: object, /) -> None:
        """Refuse a variable that is nearly one of ours: a misspelt limit must not be a limit that is off.

        Raises:
            ValueError: If such a variable is set.
        """
        known = [f"{ENV_PREFIX}{name}".upper() for name in type(self).model_fields]
        for variable in sorted(os.environ):
            if variable.startswith(ENV_PREFIX) and variable not in (*known, URL_VARIABLE):
                near = get_close_matches(variable, known, n=1, cutoff=0.85)
                if near:
                    raise ValueError(f"the variable {variable} is unknown, did you mean {near[0]}?")

    def rag_config(self) -> RagConfig:
        """Give the settings of the document side.

        Raises:
            ValueError: If two settings contradict each other.
        """
        return RagConfig(
            data_dir=self.data_dir,
            engine_url=self.engine_url,
            answer_tokens=self.answer_tokens,
            max_answer_tokens=self.max_answer_tokens,
            max_question_chars=self.max_question_chars,
            max_upload_bytes=self.max_upload_bytes,
            max_document_chars=self.max_document_chars,
            max_document_pages=self.max_document_pages,
            num_passages=self.num_passages,
            max_concurrent_questions=self.max_concurrent_questions,
            heartbeat_s=self.heartbeat_s,
            embed_threads=self.embed_threads,
        )
