"""PDF to text, page by page, with pdfium."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby

import pypdfium2
import pypdfium2.raw

from cake_rag.documents import Page, ParsedDocument
from cake_rag.errors import (
    DocumentTooLargeError,
    EncryptedDocumentError,
    MalformedDocumentError,
    NoTextLayerError,
)
from cake_rag.formats.decode import MAX_UNREADABLE_SHARE, normalise, unreadable_share
from cake_rag.formats.limits import ParseLimits

MEDIA_TYPE = "application/pdf"
# Belongs to the page before it. The blank line ends a sentence, so no sentence crosses pages.
PAGE_SEPARATOR = "\n\n"

# pdfium keeps process-wide state; two threads inside it crash the process.
_PDFIUM = threading.Lock()
_PASSWORD_ERRORS = (pypdfium2.raw.FPDF_ERR_PASSWORD, pypdfium2.raw.FPDF_ERR_SECURITY)
_SPARSE_CHARS_PER_PAGE = 50


def parse_pdf(data: bytes, limits: ParseLimits) -> ParsedDocument:
    """Give the text layer of a PDF.

    Pages are contiguous ranges of the text; a page without text is an empty range. Words that pdfium knows to
    be hyphenated at a line end are joined. The lock on pdfium is held for one page at a time.

    Raises:
        EncryptedDocumentError: If a password is needed (an owner password alone is not).
        MalformedDocumentError: If pdfium cannot open the file, it has no page, no page can be read, or
            reading takes over ``limits.max_seconds``.
        NoTextLayerError: If no page has text, or over 30 % of it cannot be mapped to characters.
        DocumentTooLargeError: If pages or characters are over the limits.
    """
    with _opened(data) as document:
        with _PDFIUM:
            num_pages, num_attachments = len(document), document.count_attachments()
        if num_pages == 0:
            raise MalformedDocumentError("the PDF has 0 pages, expected 1 or more")
        if num_pages > limits.max_pages:
            raise DocumentTooLargeError(f"the PDF has {num_pages:,} pages, allowed are at most {limits.max_pages:,}")
        texts, broken = _page_texts(document, num_pages, limits)
    if len(broken) == num_pages:
        raise MalformedDocumentError(f"the PDF is damaged: 0 of its pages can be read, of {num_pages}")
    _check_text_layer(texts)
    text, pages = _join(texts)
    return ParsedDocument(text, MEDIA_TYPE, pages, _notes(texts, broken, num_attachments))


@contextmanager
def _opened(data: bytes) -> Iterator[pypdfium2.PdfDocument]:
    try:
        with _PDFIUM:
            document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        # pdfium keeps the error of an earlier file where it sets none, so its word alone is not enough.
        if error.err_code in _PASSWORD_ERRORS and b"/Encrypt" in data:
            raise EncryptedDocumentError(
                "the PDF needs a password to open; upload a copy that is not encrypted"
            ) from error
        raise MalformedDocumentError(
            f"the PDF of {len(data):,} bytes is damaged, truncated or has no page; pdfium cannot open it"
        ) from error
    try:
        yield document
    finally:
        with _PDFIUM:
            document.close()


def _page_texts(document: pypdfium2.PdfDocument, num_pages: int, limits: ParseLimits) -> tuple[list[str], list[int]]:
    """Read all pages; also give the numbers of those that cannot be read."""
    deadline = time.monotonic() + limits.max_seconds
    texts: list[str] = []
    broken: list[int] = []
    num_chars = 0
    for index in range(num_pages):
        if time.monotonic() >= deadline:
            raise MalformedDocumentError(
                f"reading the PDF took over {limits.max_seconds:.0f} s up to page {index} of {num_pages}"
            )
        try:
            texts.append(_page_text(document, index))
        except pypdfium2.PdfiumError:
            texts.append("")
            broken.append(index + 1)
        num_chars += len(texts[-1])
        if num_chars > limits.max_chars:
            raise DocumentTooLargeError(
                f"the text has over {limits.max_chars:,} characters at page {index + 1} of {num_pages}, "
                f"allowed are at most {limits.max_chars:,}"
            )
    return texts, broken


def _page_text(document: pypdfium2.PdfDocument, index: int) -> str:
    with _PDFIUM, closing(document[index]) as page, closing(page.get_textpage()) as textpage:
        raw = textpage.get_text_range()
    # U+FFFE marks a hyphen at a line end that pdfium took out; `normalise` removes the mark.
    return "\n".join(line.rstrip() for line in normalise(raw).split("\n")).strip("\n")


def _check_text_layer(texts: Sequence[str]) -> None:
    text = "".join(texts)
    if not text.strip():
        raise NoTextLayerError(
            f"no text on any page, as in a scan (pages: {len(texts)}); run OCR and upload the result"
        )
    share = unreadable_share(text)
    if share > MAX_UNREADABLE_SHARE:
        raise NoTextLayerError(
            f"{share:.0%} of the text cannot be mapped to characters, allowed is at most "
            f"{MAX_UNREADABLE_SHARE:.0%}: the PDF's fonts have no Unicode map; run OCR and upload the result"
        )


def _join(texts: Sequence[str]) -> tuple[str, tuple[Page, ...]]:
    parts: list[str] = []
    pages: list[Page] = []
    position = 0
    for index, text in enumerate(texts):
        part = text + PAGE_SEPARATOR if text and index + 1 < len(texts) else text
        pages.append(Page(index + 1, position, position + len(part)))
        parts.append(part)
        position += len(part)
    return "".join(parts), tuple(pages)


def _notes(texts: Sequence[str], broken: Sequence[int], num_attachments: int) -> tuple[str, ...]:
    notes: list[str] = []
    silent = [index + 1 for index, text in enumerate(texts) if not text.strip() and index + 1 not in broken]
    if broken:
        notes.append(f"pages that cannot be read: {_ranges(broken)}")
    if silent:
        notes.append(f"pages without text: {_ranges(silent)}")
    num_chars = sum(map(len, texts))
    if num_chars < _SPARSE_CHARS_PER_PAGE * len(texts):
        notes.append(f"little text, this may be a scan: {num_chars:,} characters, {len(texts):,} page(s)")
    if num_attachments:
        notes.append(f"embedded files that are not read: {num_attachments}")
    return tuple(notes)


def _ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as ``1-3, 7``."""
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)
