import time

import pytest

from cake_rag.errors import MalformedDocumentError
from cake_rag.formats.html import declared_charset, html_text, is_html
from cake_rag.formats.limits import ParseLimits

LIMITS = ParseLimits()
CASES = {
    "paragraphs": ("<p>One.</p><p>Two.</p>", "One.\n\nTwo."),
    "inline elements": ("<p>A <b>bold</b><i>er</i> word</p>", "A bolder word"),
    "white space": ("<p>  a\n   b\t<i> c </i> d</p>", "a b c d"),
    "line breaks": ("<p>a<br>b<br/>c</p>", "a\nb\nc"),
    "script and style": ("<p>a</p><script>var x='<p>no</p>'</script><style>p{}</style><p>b</p>", "a\n\nb"),
    "comment": ("<p>a<!-- hidden -->b</p>", "ab"),
    "head": ("<head><title>T</title></head><body>x</body>", "x"),
    "noscript and template": ("<body><noscript>n</noscript><template>t</template>x", "x"),
    "hidden attribute": ("<p hidden>secret</p><p>shown</p>", "shown"),
    "hiding style": ("<div style='color:red; DISPLAY : none'>secret</div>shown", "shown"),
    "list": ("<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>", "a\nb\n\nc"),
    "table": ("<table><tr><th>k</th><th>v</th></tr><tr><td>a</td><td>1</td></tr></table>", "k | v\na | 1"),
    "heading": ("<h1>Title</h1>text", "Title\n\ntext"),
    "preformatted": ("<pre>a\n  b</pre>", "a\n  b"),
    "entities": ("<p>&lt;b&gt; &amp; &eacute; &#x41; &nbsp;z</p>", "<b> & é A z"),
    "surrogate entity": ("<p>a&#xD800;b</p>", "a\ufffdb"),
    "unclosed": ("<p>a<p>b<div>c", "a\n\nb\n\nc"),
    "nothing visible": ("<html><script>x</script></html>", ""),
}


@pytest.mark.parametrize(("markup", "expected"), CASES.values(), ids=CASES)
def test_the_text_is_what_a_reader_sees(markup: str, expected: str):
    assert html_text(markup, LIMITS) == expected


@pytest.mark.parametrize(
    ("head", "charset"),
    [
        (b'<meta charset="koi8-r">', "koi8-r"),
        (b"<META http-equiv=Content-Type content='text/html; charset=windows-1251'>", "windows-1251"),
        (b'<?xml version="1.0" encoding="ISO-8859-1"?><html>', "ISO-8859-1"),
        (b"<p>charset=none</p>", None),
        (b" " * 5000 + b"<meta charset=late>", None),
    ],
)
def test_the_declared_charset_is_found_in_the_head(head: bytes, charset: str | None):
    assert declared_charset(head) == charset


@pytest.mark.parametrize(
    ("text", "named_html", "expected"),
    [
        ("<!DOCTYPE html><p>x", False, True),
        ("\n <!-- c -->\n<HTML lang=en>", False, True),
        ("<?xml version='1.0'?>\n<html>", False, True),
        ("<p>a fragment</p>", True, True),
        ("<p>a fragment</p>", False, False),
        ("The <html> tag is described here.", False, False),
        ("no markup at all, 1 < 2", True, False),
    ],
)
def test_html_is_told_by_its_beginning_or_by_name_and_elements(text: str, named_html: bool, expected: bool):
    assert is_html(text, named_html=named_html) is expected


def test_nesting_over_the_limit_is_refused():
    with pytest.raises(MalformedDocumentError, match="nest over 10 deep, allowed is at most 10"):
        html_text("<div>" * 11 + "x", ParseLimits(max_depth=10))


def test_nesting_at_the_limit_is_read():
    assert html_text("<div>" * 10 + "x", ParseLimits(max_depth=10)) == "x"


def test_many_unclosed_paragraphs_are_no_nesting():
    assert html_text("<p>x" * 3000, LIMITS).count("x") == 3000


@pytest.mark.parametrize(
    "unit", ["<div>", "<b>", "<p><font size=1>", "<", "<a ", "<!--", "&", "<table><td>", "<p>a</p>"]
)
def test_hostile_repetition_ends_in_seconds(unit: str):
    start = time.perf_counter()
    try:
        html_text(unit * (400_000 // len(unit)), LIMITS)
    except MalformedDocumentError as error:
        assert "deep" in str(error)
    # Parsing 200,000 open elements takes minutes; the limit on depth keeps this under a second or two.
    assert time.perf_counter() - start < 20
