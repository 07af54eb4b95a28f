"""A tokenizer with what matters to prompts: control tokens, and pieces that merge across a joint."""

import re
from threading import Lock

CONTROL_STRINGS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "</s>",
    "<start_of_turn>",
    "[INST]",
    "~~odd~~",
)
_CONTROL = re.compile("|".join(re.escape(string) for string in CONTROL_STRINGS))
_PIECE = re.compile(r"\s+|\w+|[^\w\s]")


class FakeTokenizer:
    """Words, white-space runs and punctuation marks are tokens; control strings are so anywhere."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._strings: list[str] = list(CONTROL_STRINGS)
        self._ids = {string: id for id, string in enumerate(self._strings)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        position = 0
        for match in _CONTROL.finditer(text):
            ids += self._plain(text[position : match.start()])
            ids.append(self._ids[match.group()])
            position = match.end()
        return ids + self._plain(text[position:])

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        first = len(CONTROL_STRINGS) if skip_special_tokens else 0
        return "".join(self._strings[id] for id in ids if id >= first)

    def _plain(self, text: str) -> list[int]:
        return [self._id(piece) for piece in _PIECE.findall(text)]

    def _id(self, piece: str) -> int:
        with self._lock:
            if piece not in self._ids:
                self._ids[piece] = len(self._strings)
                self._strings.append(piece)
            return self._ids[piece]


def render_chat(messages: list[dict[str, str]]) -> str:
    """Give ChatML, as SmolLM2 and Qwen2 use it."""
    turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
    return f"{turns}<|im_start|>assistant\n"
