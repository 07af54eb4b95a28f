"""Settings of the document side, validated once and passed by argument."""

from dataclasses import dataclass
from pathlib import Path

SYSTEM_TEXT = "You answer questions about the document. Use only the document."
"""What the model reads first. A constant: anything that changed here would change every cached prefix."""

QUESTION_TEMPLATE = "\n\nAnswer this question about the text above in one sentence: {question}"
"""What follows the document. ``{question}`` is replaced by the stripped question."""

PASSAGE_SEPARATOR = "\n\n"
"""What stands between two retrieved passages."""

CHAT_TEMPLATE_KWARGS: dict[str, object] = {"enable_thinking": False, "date_string": "26 Jul 2024"}
"""Arguments of the chat template: no reasoning preamble (Qwen3), and a fixed date (Llama 3 prints today's
date ahead of the document, so that yesterday's prefix would no longer match)."""

ENGINE_RESERVE_TOKENS = 6
"""Tokens that SGLang 0.5.23 keeps free after the prompt.

Source: sglang ``srt/managers/tp_worker.py``, ``max_req_input_len = max_req_len - 5``, and its scheduler
refuses ``len(input) >= max_req_input_len``.
"""


@dataclass(frozen=True, slots=True)
class RagConfig:
    """Where documents live, how to reach the engine, and every limit.

    Attributes:
        data_dir: Folder for the database, the uploaded bytes and the index; created when missing.
        engine_url: Base URL of the SGLang server.
        answer_tokens: Longest answer when the caller names no limit, 1..``max_answer_tokens``.
        max_answer_tokens: Longest answer that a caller may ask for.
        max_question_chars: Longest question.
        max_upload_bytes: Largest upload.
        max_document_chars: Longest text of one document.
        max_document_pages: Most pages of one document.
        num_passages: Passages given to the model when the document does not fit, 1..64.
        max_concurrent_questions: Questions that are with the engine at one time; others wait their turn.
        heartbeat_s: Longest silence in an answer's event stream.
        connect_timeout_s: Longest wait for a connection to the engine.
        probe_timeout_s: Longest wait for the engine's answer to a state question.
        generation_timeout_s: Longest silence of the engine during a generation; covers prefilling on a CPU.
        embed_threads: Threads of one embedding run.
        system_text: What the model reads first.
        question_template: What follows the document, with one ``{question}``.
    """

    data_dir: Path
    engine_url: str = "http://127.0.0.1:30000"
    answer_tokens: int = 96
    max_answer_tokens: int = 1024
    max_question_chars: int = 4_000
    max_upload_bytes: int = 50_000_000
    max_document_chars: int = 20_000_000
    max_document_pages: int = 2_000
    num_passages: int = 6
    max_concurrent_questions: int = 4
    heartbeat_s: float = 2.0
    connect_timeout_s: float = 5.0
    probe_timeout_s: float = 10.0
    generation_timeout_s: float = 1_800.0
    embed_threads: int = 1
    system_text: str = SYSTEM_TEXT
    question_template: str = QUESTION_TEMPLATE

    def __post_init__(self) -> None:
        """Refuse what cannot work later.

        Raises:
            ValueError: If a value is outside its range.
        """
        for name in (
            "answer_tokens",
            "max_answer_tokens",
            "max_question_chars",
            "max_upload_bytes",
            "max_document_chars",
            "max_document_pages",
            "num_passages",
            "max_concurrent_questions",
            "heartbeat_s",
            "connect_timeout_s",
            "probe_timeout_s",
            "generation_timeout_s",
            "embed_threads",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected more than 0")
        if self.answer_tokens > self.max_answer_tokens:
            raise ValueError(f"answer_tokens is {self.answer_tokens}, expected at most {self.max_answer_tokens}")
        if self.num_passages > 64:
            raise ValueError(f"num_passages is {self.num_passages}, expected 1..64")
        if not self.engine_url.startswith(("http://", "https://")):
            raise ValueError(f"engine_url is {self.engine_url!r}, expected http://... or https://...")
        if self.question_template.count("{question}") != 1:
            raise ValueError("question_template needs exactly one {question}")
