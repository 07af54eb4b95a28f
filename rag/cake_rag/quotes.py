"""The quotations that a model writes: shown as quotations only where a source holds the words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# A straight quotation starts after a non-word character, so that 5'10" and 3" open none.
_QUOTATION = re.compile(
    r"(?<![\w\"])\"(?P<straight>[^\"\n]+)\"(?!\w)"
    r"|“(?P<curly>[^“”\n]+)”"
    r"|„(?P<low>[^„“”\n]+)[“”]"
    r"|«(?P<angle>[^«»\n]+)»"
    r"|「(?P<corner>[^「」\n]+)」"
)
_TRAILING = ".,;:!?。，… "


@dataclass(frozen=True, slots=True)
class CheckedQuotes:
    """``text`` with the marks of made-up quotations removed, and how many were removed."""

    text: str
    dropped: int


def check_quotes(answer: str, sources: Sequence[str]) -> CheckedQuotes:
    """Remove the marks around every quotation of ``answer`` that stands in none of ``sources``.

    The words of a made-up quotation stay, as words of the model; whether they are supported is decided with
    the sentence they stand in. White space is compared as one space, case and everything else exactly; a
    stop or comma at the end of a quotation belongs to the answer.
    """
    dropped = 0
    normal: list[str] | None = None

    def replace(match: re.Match[str]) -> str:
        nonlocal dropped, normal
        if normal is None:
            normal = [squeeze(source) for source in sources]
        words = next(group for group in match.groups() if group is not None)
        wanted = squeeze(words).rstrip(_TRAILING)
        if wanted and any(wanted in source for source in normal):
            return match.group()
        dropped += 1
        return words

    text = _QUOTATION.sub(replace, answer)
    return CheckedQuotes(text, dropped)


def squeeze(text: str) -> str:
    """Give ``text`` with every run of white space as one space, and none at the ends."""
    return " ".join(text.split())
