import io
import pickle
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_rag.errors import (
    DocumentRejectedError,
    DocumentTooLargeError,
    EmptyDocumentError,
    UnsupportedFormatError,
)
from cake_rag.ingest import ParseLimits, parse
from cake_testing.pdfs import pdf

SUPPORTED = "supported are PDF, HTML, Markdown and plain text"


def zip_of(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "<xml/>")
    return buffer.getvalue()


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
FOREIGN = {
    "Word document (DOCX)": zip_of("[Content_Types].xml", "word/document.xml"),
    "Excel workbook (XLSX)": zip_of("xl/workbook.xml"),
    "PowerPoint presentation (PPTX)": zip_of("ppt/presentation.xml"),
    "ZIP archive": zip_of("notes.txt"),
    "legacy Word document (DOC)": OLE + "WordDocument".encode("utf-16-le"),
    "password-protected Office document": OLE + "EncryptedPackage".encode("utf-16-le"),
    "legacy Office document": OLE,
    "PNG image": b"\x89PNG\r\n\x1a\n" + bytes(20),
    "JPEG image": b"\xff\xd8\xff\xe0" + bytes(20),
    "RTF document": rb"{\rtf1\ansi Hello}",
    "PostScript document": b"%!PS-Adobe-3.0\n",
    "gzip archive": b"\x1f\x8b\x08\x00" + bytes(20),
    "Windows program": b"MZ\x90\x00\x03" + bytes(20),
    "SQLite database": b"SQLite format 3\x00" + bytes(20),
}


@pytest.mark.parametrize(("kind", "data"), FOREIGN.items(), ids=FOREIGN)
@pytest.mark.parametrize("name", ["file.bin", "file.txt", "file.pdf"])
def test_a_known_foreign_format_is_named_whatever_the_file_is_called(kind: str, data: bytes, name: str):
    with pytest.raises(UnsupportedFormatError) as caught:
        parse(data, name)
    assert str(caught.value) == f"the format is not supported: {kind}; {SUPPORTED}"


@pytest.mark.parametrize("text", ["MZ is a country code.", "BZh what?", "ID3 tags, explained", "PAR1 for the course"])
def test_a_text_that_begins_like_a_binary_format_is_text(text: str):
    assert parse(text.encode(), "a.txt").text == text


@pytest.mark.parametrize(
    ("data", "name", "media_type"),
    [
        (b"words", "a.txt", "text/plain"),
        (b"words", "no extension", "text/plain"),
        (b"k,v\n1,2", "a.csv", "text/plain"),
        (b"# Head", "a.md", "text/markdown"),
        (b"# Head", "A.MARKDOWN", "text/markdown"),
        (b"<!doctype html><p>x", "a.html", "text/html"),
        (b"<p>x</p>", "a.htm", "text/html"),
        (pdf(["words " * 20]), "a.pdf", "application/pdf"),
        (b"\r\n" + pdf(["words " * 20]), "a.pdf", "application/pdf"),
        (b"mail header\n" + pdf(["words " * 20]), "a.pdf", "application/pdf"),
    ],
)
def test_the_media_type_is_found_without_a_note(data: bytes, name: str, media_type: str):
    parsed = parse(data, name)
    assert (parsed.media_type, parsed.notes) == (media_type, ())


@pytest.mark.parametrize(
    ("data", "name", "media_type", "kind"),
    [
        (b"words", "a.pdf", "text/plain", "plain text"),
        (b"words", "a.docx", "text/plain", "plain text"),
        (b"<html><p>x", "a.txt", "text/html", "HTML"),
        (b"no tags", "a.html", "text/plain", "plain text"),
        (pdf(["x " * 99]), "a.md", "application/pdf", "PDF"),
    ],
)
def test_an_extension_that_lies_is_noted_and_the_content_decides(data: bytes, name: str, media_type: str, kind: str):
    parsed = parse(data, name)
    extension = name.removeprefix("a")
    note = f"the name ends in {extension}, the content is {kind} and was read as such"
    assert (parsed.media_type, parsed.notes) == (media_type, (note,))


def test_a_text_about_pdf_headers_is_text():
    text = "The header of a PDF is %PDF-1.7 and objects look like 1 0 obj."
    assert parse(text.encode(), "a.txt").text == text


def test_the_one_page_of_a_text_covers_it():
    parsed = parse("Grüße\r\nzwei".encode(), "a.txt")
    assert parsed.text == "Grüße\nzwei"
    assert [(page.number, page.start, page.end) for page in parsed.pages] == [(1, 0, 10)]


def test_a_file_without_bytes_is_empty():
    with pytest.raises(EmptyDocumentError, match="the file has 0 bytes"):
        parse(b"", "a.pdf")


@pytest.mark.parametrize(
    "data", [b" \n\t\r\n", b"\xef\xbb\xbf", b"<html><script>x</script></html>", "\u3000\xa0".encode()]
)
def test_a_file_without_visible_character_is_empty(data: bytes):
    with pytest.raises(EmptyDocumentError, match=f"the file of {len(data)} bytes holds no visible character"):
        parse(data, "a.html")


def test_bytes_at_the_limit_are_read_and_one_more_is_refused():
    limits = ParseLimits(max_bytes=5)
    assert parse(b"12345", "a.txt", limits).text == "12345"
    with pytest.raises(DocumentTooLargeError, match="the file has 6 bytes, allowed are at most 5"):
        parse(b"123456", "a.txt", limits)


def test_characters_over_the_limit_are_refused():
    with pytest.raises(DocumentTooLargeError, match="the text has 6 characters, allowed are at most 5"):
        parse(b"123456", "a.txt", ParseLimits(max_chars=5))


def test_a_rejection_survives_pickling():
    with pytest.raises(EmptyDocumentError) as caught:
        parse(b"", "a.txt")
    assert str(pickle.loads(pickle.dumps(caught.value))) == "the file has 0 bytes"


@given(
    st.binary(max_size=300) | st.text(max_size=200).map(str.encode),
    st.sampled_from(["", "%PDF-1.4\n", "<html>", "PK\x03\x04"]),
    st.sampled_from(["a.txt", "a.pdf", "a.html", ".", ""]),
)
def test_any_bytes_become_a_clean_covered_text_or_a_rejection(data: bytes, prefix: str, name: str):
    try:
        parsed = parse(prefix.encode() + data, name)
    except DocumentRejectedError as error:
        assert type(error) is not DocumentRejectedError and str(error)
        return
    assert "".join(parsed.text[page.start : page.end] for page in parsed.pages) == parsed.text
    assert parsed.text.strip() and "\r" not in parsed.text and "\x00" not in parsed.text
    parsed.text.encode()
