"""How large a document may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """Most bytes uploaded, characters of text, pages, HTML nesting, and seconds spent between PDF pages."""

    max_bytes: int = 50_000_000
    max_chars: int = 20_000_000
    max_pages: int = 2_000
    max_depth: int = 2_000
    max_seconds: float = 120.0
