import threading

import pypdfium2
import pytest

import cake_rag.formats.pdf
from cake_rag.documents import Page
from cake_rag.errors import (
    DocumentTooLargeError,
    EncryptedDocumentError,
    MalformedDocumentError,
    NoTextLayerError,
)
from cake_rag.formats.limits import ParseLimits
from cake_rag.formats.pdf import parse_pdf
from cake_testing.pdfs import encrypted_pdf, pdf, private_use_pdf, scan_pdf

LIMITS = ParseLimits()


def test_pages_are_contiguous_ranges_and_the_separator_belongs_to_the_page_before():
    parsed = parse_pdf(pdf(["First page.\nLine (two).", "Second: é."]), LIMITS)
    assert parsed.text == "First page.\nLine (two).\n\nSecond: é."
    assert parsed.pages == (Page(1, 0, 25), Page(2, 25, 35))
    assert parsed.media_type == "application/pdf"


def test_a_page_without_text_is_an_empty_range_and_noted():
    parsed = parse_pdf(pdf(["a " * 200, "", "", "b", ""]), LIMITS)
    assert [page.end - page.start for page in parsed.pages][1:3] == [0, 0]
    assert parsed.notes == ("pages without text: 2-3, 5",)


def test_little_text_is_noted_as_a_possible_scan():
    assert parse_pdf(pdf(["stamp"]), LIMITS).notes == ("little text, this may be a scan: 5 characters, 1 page(s)",)


def test_an_owner_password_alone_does_not_matter():
    data = encrypted_pdf("Open to all", user_password=b"", owner_password=b"owner")
    assert parse_pdf(data, LIMITS).text == "Open to all"


def test_a_user_password_is_asked_for():
    data = encrypted_pdf("Secret", user_password=b"user", owner_password=b"owner")
    with pytest.raises(EncryptedDocumentError, match="needs a password to open"):
        parse_pdf(data, LIMITS)


def test_a_scan_has_no_text_layer():
    with pytest.raises(NoTextLayerError, match=r"no text on any page, as in a scan \(pages: 3\); run OCR"):
        parse_pdf(scan_pdf(3), LIMITS)


def test_blank_pages_have_no_text_layer():
    with pytest.raises(NoTextLayerError, match=r"pages: 2"):
        parse_pdf(pdf(["", " "]), LIMITS)


def test_fonts_that_map_to_no_characters_are_as_bad_as_a_scan():
    with pytest.raises(NoTextLayerError, match="100% of the text cannot be mapped.*allowed is at most 30%"):
        parse_pdf(private_use_pdf("Hello there"), LIMITS)


DAMAGED = {
    "header only": b"%PDF-1.4\n",
    "truncated": pdf(["text"] * 3)[:300],
    "no page": pdf([]),
    "noise behind the header": b"%PDF-1.7\n" + bytes(range(256)) * 20,
    "header lost": pdf(["text"]).replace(b"%PDF", b"%XYZ"),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_pdf_is_malformed(data: bytes):
    with pytest.raises(MalformedDocumentError, match=f"PDF of {len(data):,} bytes is damaged|0 pages"):
        parse_pdf(data, LIMITS)


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_an_encrypted_pdf_before_it_does_not_change_the_verdict(data: bytes):
    with pytest.raises(EncryptedDocumentError):
        parse_pdf(encrypted_pdf("x", user_password=b"u", owner_password=b"o"), LIMITS)
    with pytest.raises(MalformedDocumentError):
        parse_pdf(data, LIMITS)


def test_more_pages_than_allowed_are_refused():
    with pytest.raises(DocumentTooLargeError, match="has 3 pages, allowed are at most 2"):
        parse_pdf(pdf(["a", "b", "c"]), ParseLimits(max_pages=2))


def test_more_characters_than_allowed_are_refused():
    with pytest.raises(DocumentTooLargeError, match="over 5 characters at page 2 of 3, allowed are at most 5"):
        parse_pdf(pdf(["abc", "def", "ghi"]), ParseLimits(max_chars=5))


def test_reading_longer_than_allowed_is_refused():
    with pytest.raises(MalformedDocumentError, match="took over 0 s up to page 0 of 1"):
        parse_pdf(pdf(["a"]), ParseLimits(max_seconds=0.0))


def test_pdfium_is_entered_under_the_lock_alone(monkeypatch: pytest.MonkeyPatch):
    calls: list[bool] = []

    def watched(function):
        def call(*arguments, **options):
            calls.append(cake_rag.formats.pdf._PDFIUM.locked())
            return function(*arguments, **options)

        return call

    for owner, name in (
        (pypdfium2.PdfDocument, "__init__"),
        (pypdfium2.PdfDocument, "__len__"),
        (pypdfium2.PdfDocument, "get_page"),
        (pypdfium2.PdfDocument, "close"),
        (pypdfium2.PdfPage, "get_textpage"),
        (pypdfium2.PdfTextPage, "get_text_range"),
    ):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    parse_pdf(pdf(["a", "b"]), LIMITS)
    assert len(calls) >= 9 and all(calls)


def test_threads_parse_at_the_same_time():
    data = pdf([f"page {number} with some words" for number in range(30)])
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(parse_pdf(data, LIMITS).text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 8 and len(set(texts)) == 1
