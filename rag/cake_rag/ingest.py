"""Uploaded bytes to text. The content decides the format; a name that says otherwise is noted."""

import re
from pathlib import PurePath

from cake_rag.documents import Page, ParsedDocument
from cake_rag.errors import DocumentTooLargeError, EmptyDocumentError, UnsupportedFormatError
from cake_rag.formats.decode import decode
from cake_rag.formats.html import declared_charset, html_text, is_html
from cake_rag.formats.limits import ParseLimits
from cake_rag.formats.pdf import MEDIA_TYPE as PDF
from cake_rag.formats.pdf import parse_pdf
from cake_rag.formats.signatures import unsupported_format

__all__ = ["DEFAULT_LIMITS", "SUPPORTED", "ParseLimits", "parse"]

DEFAULT_LIMITS = ParseLimits()
SUPPORTED = "PDF, HTML, Markdown and plain text"
HTML = "text/html"
MARKDOWN = "text/markdown"
PLAIN = "text/plain"

_NAMES = {PDF: "PDF", HTML: "HTML", MARKDOWN: "Markdown", PLAIN: "plain text"}
_BY_EXTENSION = {
    ".pdf": PDF,
    ".html": HTML,
    ".htm": HTML,
    ".xhtml": HTML,
    ".md": MARKDOWN,
    ".markdown": MARKDOWN,
    ".txt": PLAIN,
}
_FOREIGN_EXTENSIONS = (".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".odt", ".rtf", ".epub", ".zip")
_PDF_WINDOW = 1024
_PDF_OBJECT = re.compile(rb"\d+\s+\d+\s+obj\b")


def parse(data: bytes, name: str, limits: ParseLimits = DEFAULT_LIMITS) -> ParsedDocument:
    """Give the text, pages and media type of an uploaded file.

    Args:
        data: The file's bytes.
        name: Its name; only the extension is read, to tell Markdown from plain text and to note a mismatch.
        limits: What is too large.

    Returns:
        Text with newlines as line ends, without U+0000 and lone surrogates, and with a visible character;
        pages that cover it without gap (one page unless PDF); notes for the person who uploaded it.

    Raises:
        EmptyDocumentError: No bytes, or no visible character.
        EncryptedDocumentError: A PDF that needs a password.
        MalformedDocumentError: A damaged PDF, or HTML nested too deep.
        NoTextLayerError: A PDF of pictures, or with fonts that map to no characters.
        UnsupportedFormatError: Another format, or bytes that are no text.
        DocumentTooLargeError: Over one of ``limits``.
    """
    if not data:
        raise EmptyDocumentError("the file has 0 bytes")
    if len(data) > limits.max_bytes:
        raise DocumentTooLargeError(f"the file has {len(data):,} bytes, allowed are at most {limits.max_bytes:,}")
    if _is_pdf(data):
        parsed = parse_pdf(data, limits)
    else:
        foreign = unsupported_format(data)
        if foreign is not None:
            raise UnsupportedFormatError(f"the format is not supported: {foreign}; supported are {SUPPORTED}")
        parsed = _parse_text(data, name, limits)
    note = _name_note(name, parsed.media_type)
    notes = (note, *parsed.notes) if note else parsed.notes
    return ParsedDocument(parsed.text, parsed.media_type, parsed.pages, notes)


def _is_pdf(data: bytes) -> bool:
    """Tell a PDF by its header, or by its objects if the header is lost or has junk before it."""
    head = data[:_PDF_WINDOW]
    if head.lstrip(b"\xef\xbb\xbf \t\r\n\x00").startswith(b"%PDF-"):
        return True
    has_objects = _PDF_OBJECT.search(head) is not None or b"%PDF-" in head
    return has_objects and b"endobj" in data and (b"startxref" in data or b"%%EOF" in data[-_PDF_WINDOW:])


def _parse_text(data: bytes, name: str, limits: ParseLimits) -> ParsedDocument:
    expected = _BY_EXTENSION.get(_extension(name))
    decoded = decode(data, declared_charset(data))
    text, media_type = decoded.text, PLAIN
    if is_html(text, named_html=expected == HTML):
        text, media_type = html_text(text, limits), HTML
    elif expected == MARKDOWN:
        media_type = MARKDOWN
    if not text.strip():
        raise EmptyDocumentError(f"the file of {len(data):,} bytes holds no visible character")
    if len(text) > limits.max_chars:
        raise DocumentTooLargeError(f"the text has {len(text):,} characters, allowed are at most {limits.max_chars:,}")
    return ParsedDocument(text, media_type, (Page(1, 0, len(text)),), decoded.notes)


def _extension(name: str) -> str:
    return PurePath(name).suffix.lower()


def _name_note(name: str, media_type: str) -> str | None:
    extension = _extension(name)
    expected = _BY_EXTENSION.get(extension)
    if extension in _FOREIGN_EXTENSIONS or (expected is not None and expected != media_type):
        return f"the name ends in {extension}, the content is {_NAMES[media_type]} and was read as such"
    return None
