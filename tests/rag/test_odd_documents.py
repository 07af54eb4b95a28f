"""Thirty odd documents from public repositories, read from a folder that is not part of this repository."""

import os
import time
from pathlib import Path

import pytest

from cake_rag import errors
from cake_rag.ingest import parse

DATA = Path(os.environ.get("CAKE_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
DOCS = DATA / "docs"
MAX_SECONDS = 30

# Name -> media type and words of the text; or the error and words of its message.
EXPECTED: dict[str, tuple[str | type[errors.DocumentRejectedError], str]] = {
    "empty-0-bytes.pdf": (errors.EmptyDocumentError, "0 bytes"),
    "empty-blank-but-big.pdf": (errors.NoTextLayerError, "pages: 1"),
    "empty-no-contents.pdf": (errors.NoTextLayerError, "pages: 1"),
    "encrypted-owner-only.pdf": ("application/pdf", "A Unified Toolkit for Deep"),
    "encrypted-user-password.pdf": (errors.EncryptedDocumentError, "password"),
    "french-paper.pdf": ("application/pdf", "Résumés et interrogations"),
    "gov-179-pages.pdf": ("application/pdf", "Democracy Assessment"),
    "gov-no-text-layer.pdf": (errors.NoTextLayerError, "pages: 3"),
    "huge-872-pages.docx": (errors.UnsupportedFormatError, "Word document (DOCX)"),
    "huge-raster-35000px.pdf": (errors.NoTextLayerError, "pages: 1"),
    "inflated.xlsx": (errors.UnsupportedFormatError, "Excel workbook (XLSX)"),
    "invisible-text.pdf": ("application/pdf", "Visible heading line"),
    "korean-tables.pdf": ("application/pdf", "적립 제외 대상"),
    "latin1.md": ("text/markdown", "äöüß"),
    "legacy.doc": (errors.UnsupportedFormatError, "legacy Word document (DOC)"),
    "malformed-gov-bad-object.pdf": ("application/pdf", "GLIDER EXPRESS"),
    "malformed-gov-slow.pdf": ("application/pdf", "Query Management Facility"),
    "malformed-header-only.pdf": (errors.MalformedDocumentError, "44 bytes"),
    "malformed-no-pdf-header.pdf": (errors.MalformedDocumentError, "626 bytes"),
    "no-unicode-map.pdf": ("application/pdf", '"7+%-'),
    "pdf-with-attachment.pdf": ("application/pdf", "Lorem ipsum dolor sit amet"),
    "scan-malformed.pdf": ("application/pdf", "pdf.js"),
    "scan-multipage.pdf": ("application/pdf", "No vote"),
    "scan-rotated-skewed.pdf": (errors.NoTextLayerError, "run OCR"),
    "scan-two-column.pdf": (errors.NoTextLayerError, "run OCR"),
    "scan-two-column.txt": ("text/plain", "32 Track MIDI Sequence Recorder"),
    "scan-with-ocr-layer.pdf": ("application/pdf", "No vote"),
    "two-column-latex.pdf": ("application/pdf", "consectetuer adipiscing elit"),
    "utf16-datasheet.html": ("text/html", "SteelJIS: Japanese Steels and Alloys"),
    "wiki.md": ("text/markdown", "International Business Machines Corporation"),
}

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason=f"no folder of odd documents: set CAKE_TEST_DATA ({DOCS})")


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items(), ids=EXPECTED)
def test_an_odd_document_is_read_or_refused_for_the_right_reason(
    name: str, expected: tuple[str | type[errors.DocumentRejectedError], str]
):
    outcome, words = expected
    data = (DOCS / name).read_bytes()
    start = time.perf_counter()
    if isinstance(outcome, str):
        parsed = parse(data, name)
        assert parsed.media_type == outcome and words in parsed.text
        assert "".join(parsed.text[page.start : page.end] for page in parsed.pages) == parsed.text
    else:
        with pytest.raises(outcome) as caught:
            parse(data, name)
        assert words in str(caught.value)
    assert time.perf_counter() - start < MAX_SECONDS


def test_no_odd_document_is_left_out():
    assert {path.name for path in DOCS.iterdir()} - {"MANIFEST.csv"} == set(EXPECTED)
