"""HTML to the text that a reader sees, with paragraph breaks."""

import re
from collections.abc import Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode

from cake_rag.errors import MalformedDocumentError
from cake_rag.formats.decode import normalise
from cake_rag.formats.limits import ParseLimits


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HIDDEN = _words(
    "script style noscript template head svg math iframe object embed audio video canvas select datalist "
    "-comment !doctype"
)
_PARAGRAPHS = _words(
    "p h1 h2 h3 h4 h5 h6 table ul ol dl pre blockquote article section aside header footer nav main form "
    "fieldset figure hr details address"
)
_LINES = _words("div li tr dt dd br caption figcaption summary legend option thead tbody tfoot")
_CELLS = frozenset({"td", "th"})
_VOID = _words("area base br col embed hr img input link meta param source track wbr")
# An open one of these is closed by the next, so a page may leave thousands of them open without nesting.
_SELF_CLOSING = _words("p li dt dd tr td th thead tbody tfoot option optgroup colgroup rp rt body html")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)[^<>]*?(/?)>")
_DOCTYPE = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_STRUCTURE = re.compile(r"<(?:html|head|body)[\s>]", re.I)
_ANY_ELEMENT = re.compile(r"<(?:p|div|span|table|ul|ol|h[1-6]|a|br|article|section)\b[^<>]*>", re.I)
_CHARSET = re.compile(
    rb"<meta[^>]+charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:-]+)|<\?xml[^>]+encoding=[\"']([a-zA-Z0-9_-]+)", re.I
)
_HIDING_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)
_SNIFF_CHARS = 4096


def declared_charset(data: bytes) -> str | None:
    """Give the charset label in the first 4 KiB (``<meta charset>`` or an XML declaration), if any."""
    found = _CHARSET.search(data[:_SNIFF_CHARS])
    return (found.group(1) or found.group(2)).decode("ascii") if found else None


def is_html(text: str, *, named_html: bool) -> bool:
    """Tell whether ``text`` is HTML: it begins so; or it is named so and has elements."""
    head = text[:_SNIFF_CHARS]
    if _DOCTYPE.match(head):
        return True
    return named_html and (_STRUCTURE.search(head) or _ANY_ELEMENT.search(text[: 16 * _SNIFF_CHARS])) is not None


def html_text(markup: str, limits: ParseLimits) -> str:
    """Give the visible text of ``markup``.

    Script, style, comments and hidden elements are dropped; block elements become paragraphs or lines; table
    cells are separated by `` | ``; white space is collapsed outside ``<pre>``.

    Raises:
        MalformedDocumentError: If elements nest deeper than ``limits.max_depth``: parsing time grows with the
            square of the depth.
    """
    depth = _nesting(markup, limits.max_depth)
    if depth > limits.max_depth:
        raise MalformedDocumentError(
            f"HTML elements nest over {limits.max_depth:,} deep, allowed is at most {limits.max_depth:,}"
        )
    root = LexborHTMLParser(markup).root
    return "" if root is None else normalise(_collect(root)).strip()


def _nesting(markup: str, enough: int) -> int:
    depth = deepest = 0
    for tag in _TAG.finditer(markup):
        name = tag.group(2).lower()
        if name in _VOID or name in _SELF_CLOSING:
            continue
        depth = max(0, depth - 1) if tag.group(1) else depth + 1
        deepest = max(deepest, depth)
        if deepest > enough:
            break
    return deepest


def _collect(root: LexborNode) -> str:
    writer = _Writer()
    pre_depth = 0
    for node, is_entry in _walk(root):
        tag = node.tag or ""
        if tag == "-text":
            writer.text(node.text_content or "", is_verbatim=pre_depth > 0)
            continue
        if tag == "pre":
            pre_depth += 1 if is_entry else -1
        if tag in _PARAGRAPHS:
            writer.line_break(2)
        elif tag in _LINES:
            writer.line_break(1)
        elif tag in _CELLS and is_entry:
            writer.cell()
    return writer.result()


def _walk(root: LexborNode) -> Iterator[tuple[LexborNode, bool]]:
    """Yield each visible node on entry and, if it has children, on exit; without recursion."""
    stack: list[tuple[LexborNode, bool]] = [(root, True)]
    while stack:
        node, is_entry = stack.pop()
        if is_entry and _is_hidden(node):
            continue
        yield node, is_entry
        if not is_entry or node.tag == "-text":
            continue
        stack.append((node, False))
        children = []
        child = node.first_child
        while child is not None:
            children.append((child, True))
            child = child.next
        stack.extend(reversed(children))


def _is_hidden(node: LexborNode) -> bool:
    if node.tag in _HIDDEN:
        return True
    if node.tag == "-text":
        return False
    attributes = node.attributes
    if not attributes:
        return False
    return "hidden" in attributes or _HIDING_STYLE.search(attributes.get("style") or "") is not None


class _Writer:
    """Collects text and keeps at most one space or two line ends in a row."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._breaks = 0
        self._is_space_due = False

    def text(self, text: str, *, is_verbatim: bool) -> None:
        if is_verbatim:
            self._put(text)
            return
        words = text.split()
        if not words:
            self._is_space_due = self._is_space_due or bool(text)
            return
        self._is_space_due = self._is_space_due or text[0].isspace()
        self._put(" ".join(words))
        self._is_space_due = text[-1].isspace()

    def line_break(self, count: int) -> None:
        self._breaks = max(self._breaks, count)
        self._is_space_due = False

    def cell(self) -> None:
        if self._parts and not self._breaks:
            self._parts.append(" |")
            self._is_space_due = True

    def _put(self, text: str) -> None:
        if self._breaks and self._parts:
            self._parts.append("\n" * self._breaks)
        elif self._is_space_due and self._parts:
            self._parts.append(" ")
        self._breaks, self._is_space_due = 0, False
        self._parts.append(text)

    def result(self) -> str:
        return "".join(self._parts)
