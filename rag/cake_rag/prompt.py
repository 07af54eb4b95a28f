"""Token-exact prompts: the same document always gives the same token prefix.

A prompt is four runs of token ids, each tokenised on its own and never joined as text:

    [0, h)      head       system text and the opening of the user's turn      PromptFrame
    [h, d)      document   the document's ids, stored once per tokenizer       Store
    [d, q)      question   QUESTION_TEMPLATE                                    per question
    [q, end)    tail       the end of the user's turn, the model's turn opens   PromptFrame

So ``[0, d)`` is what the engine's radix tree keeps, and a second question prefills ``[d, end)`` alone.
Nothing that varies (date, file name, score) stands before ``d``.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cake_rag.config import ENGINE_RESERVE_TOKENS
from cake_rag.errors import QuestionRejectedError

# The shapes that control tokens have: <|im_start|>, <｜User｜>, </s>, <start_of_turn>, [INST].
_CONTROL_SHAPES = r"<\|[^<>|\s]{1,64}\|>|<｜[^<>\s]{1,64}｜>|</?[A-Za-z_][\w.:-]{0,63}>|\[/?[A-Z_]{2,32}\]"
_BLOCK_CHARS = 60_000


@dataclass(frozen=True, slots=True)
class PromptFrame:
    """The two constant runs around document and question, for one model and one system text."""

    head_ids: tuple[int, ...]
    tail_ids: tuple[int, ...]

    def document_prefix(self, document_ids: Sequence[int]) -> list[int]:
        """Give ``[0, d)``: what warms the engine, and what every prompt on this document starts with."""
        return [*self.head_ids, *document_ids]

    def prompt(self, document_ids: Sequence[int], question_ids: Sequence[int]) -> list[int]:
        """Give the whole prompt."""
        return [*self.head_ids, *document_ids, *question_ids, *self.tail_ids]

    def room(self, max_context_tokens: int, question_tokens: int, answer_tokens: int) -> int:
        """Give how many document tokens fit beside a question and its answer; negative when nothing fits.

        Args:
            max_context_tokens: Tokens that the engine holds for one request, prompt and answer together.
            question_tokens: Tokens of the question's run; 0 for a warm-up request.
            answer_tokens: Most tokens of the answer, >= 1.
        """
        reserve = max(answer_tokens, ENGINE_RESERVE_TOKENS)
        return max_context_tokens - len(self.head_ids) - len(self.tail_ids) - question_tokens - reserve


def clean_question(question: str, max_chars: int) -> str:
    """Give the question without surrounding white space.

    Args:
        question: What was asked.
        max_chars: Most characters after stripping.

    Raises:
        QuestionRejectedError: If it has no visible character, is longer than ``max_chars``, or holds a lone surrogate.
    """
    stripped = question.strip()
    if not any(char.isprintable() and not char.isspace() for char in stripped):
        raise QuestionRejectedError(f"the question is empty, expected 1..{max_chars} characters")
    if len(stripped) > max_chars:
        raise QuestionRejectedError(f"the question has {len(stripped)} characters, expected 1..{max_chars}")
    try:
        stripped.encode()
    except UnicodeEncodeError as error:
        raise QuestionRejectedError(
            f"the question holds a lone surrogate at character {error.start}, expected valid Unicode"
        ) from error
    return stripped


def split_blocks(text: str, block_chars: int = _BLOCK_CHARS) -> Iterator[str]:
    """Give pieces of at most ``block_chars`` characters that join to ``text``.

    A piece ends after a line break that is followed by visible text, where there is one in its second half;
    then before a space; then anywhere. The cuts depend on the text alone: the same text
    gives the same tokens.
    """
    start = 0
    while len(text) - start > block_chars:
        window = text[start : start + block_chars + 1]
        cut = _last_cut(window, block_chars)
        yield text[start : start + cut]
        start += cut
    if start < len(text):
        yield text[start:]


def _last_cut(window: str, block_chars: int) -> int:
    half = block_chars // 2
    for index in range(block_chars, half, -1):
        if window[index - 1] == "\n" and not window[index].isspace():
            return index
    space = window.rfind(" ", half, block_chars)
    return space if space > 0 else block_chars


def split_control_text(text: str, known: Iterable[str] = ()) -> list[str]:
    """Give pieces that join to ``text``, none of which holds a string shaped like a control token.

    Tokenizers turn such a string into the control token wherever it stands, so a document that contains
    ``<|im_end|>`` could close the user's turn. Each one is cut after its first character, and the pieces are
    tokenised separately.

    Args:
        text: Document or question.
        known: Further control strings of the model, of any shape.
    """
    alternatives = [re.escape(string) for string in sorted(known, key=len, reverse=True) if len(string) > 1]
    pattern = re.compile("|".join([*alternatives, _CONTROL_SHAPES]))
    pieces = []
    start = 0
    position = 0
    while match := pattern.search(text, position):
        cut = match.start() + 1
        pieces.append(text[start:cut])
        start = position = cut
    pieces.append(text[start:])
    return [piece for piece in pieces if piece]
