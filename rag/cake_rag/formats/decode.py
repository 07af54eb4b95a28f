"""Bytes to text: byte order marks, UTF-8, UTF-16, a declared charset, and detection last."""

import re
from typing import NamedTuple

from charset_normalizer import from_bytes

from cake_rag.errors import UnsupportedFormatError

SAMPLE_BYTES = 256 * 1024
MAX_CONTROL_SHARE = 0.05
MAX_UNREADABLE_SHARE = 0.3

_BOMS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
# Labels as browsers read them (WHATWG Encoding Standard, section 4.2). The list keeps Python's bytes-to-bytes
# codecs (zlib, base64) out of reach of a document.
_LABELS = {
    "utf-8": "utf-8", "utf8": "utf-8",
    "us-ascii": "cp1252", "ascii": "cp1252", "iso-8859-1": "cp1252", "latin1": "cp1252", "latin-1": "cp1252",
    "windows-1252": "cp1252", "cp1252": "cp1252",
    "iso-8859-2": "iso8859-2", "iso-8859-5": "iso8859-5", "iso-8859-7": "iso8859-7",
    "iso-8859-8": "iso8859-8",
    "iso-8859-9": "cp1254", "iso-8859-13": "iso8859-13", "iso-8859-15": "iso8859-15",
    "windows-1250": "cp1250", "windows-1251": "cp1251", "windows-1253": "cp1253", "windows-1254": "cp1254",
    "windows-1255": "cp1255", "windows-1256": "cp1256", "windows-1257": "cp1257", "windows-1258": "cp1258",
    "koi8-r": "koi8-r", "koi8-u": "koi8-u", "ibm866": "cp866", "macintosh": "mac-roman", "tis-620": "cp874",
    "shift_jis": "cp932", "shift-jis": "cp932", "sjis": "cp932", "x-sjis": "cp932", "windows-31j": "cp932",
    "euc-jp": "euc-jp", "iso-2022-jp": "iso2022-jp", "euc-kr": "cp949", "ks_c_5601-1987": "cp949",
    "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs",
    "big5-hkscs": "big5hkscs",
}  # fmt: skip
_DETECTABLE = [
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8_r", "cp866",
    "cp932", "euc_jp", "cp949", "gb18030", "big5", "tis_620", "mac_roman",
]  # fmt: skip
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_REMOVED = re.compile("[\x00\ufffe\uffff\ud800-\udfff]")
_LINE_ENDS = re.compile("\r\n?|[\x85\u2028\u2029]")
_UNREADABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff]")
# Accented letters of Western Europe and punctuation of typeset text. Czech, Polish, Turkish and Baltic texts
# read as cp1252 have a quarter or more of other characters.
_WESTERN = re.compile("[ÀÂÄÅÆÇÈÉÊËÎÏÑÓÔÖØÚÜßàáâãäåæçèéêëíîïñòóôõöøùúûüŒœ€‘’“”„–—…•«»°§©®™£¡¿·\xa0\xad]")
_MIN_WESTERN_SHARE = 0.95
_MAX_WESTERN_DENSITY = 0.45


class DecodedText(NamedTuple):
    """Normalised text, the encoding it was in, and what a person should know."""

    text: str
    encoding: str
    notes: tuple[str, ...]


def decode(data: bytes, declared: str | None = None) -> DecodedText:
    r"""Decode and normalise a text file.

    The order is: byte order mark, UTF-8, UTF-16 without a mark (by its zero bytes), the declared charset, and
    statistics over a sample of at most 256 KiB. Line ends become ``\n``; U+0000, lone surrogates and
    noncharacters are removed.

    Args:
        data: The file.
        declared: Charset label that the file states about itself, as in HTML's ``<meta charset>``.

    Raises:
        UnsupportedFormatError: If over 5 % of the characters are control characters, or no encoding fits.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _finish(data[len(mark) :].decode(encoding, "replace"), encoding)
    if b"\x1b" in data[:SAMPLE_BYTES] and _LABELS.get((declared or "").lower()) == "iso2022-jp":
        return _finish(data.decode("iso2022-jp", "replace"), "iso2022-jp")
    try:
        return _finish(data.decode("utf-8"), "utf-8")
    except UnicodeDecodeError as error:
        first_bad = error.start
    wide = _unmarked_utf16(data)
    if wide is not None:
        return _finish(data.decode(wide, "replace"), wide)
    sample = _sample(data, first_bad)
    _check_control_share(sample.decode("latin-1"))
    if _is_damaged_utf8(sample):
        return _finish(data.decode("utf-8", "replace"), "utf-8")
    encoding = _LABELS.get((declared or "").strip().lower())
    if encoding in (None, "utf-8"):
        encoding = _detect(sample)
    note = f"the bytes are not UTF-8; read as {encoding}"
    return _finish(data.decode(encoding, "replace"), encoding, note)


def normalise(text: str) -> str:
    """Unify line ends; remove U+0000, lone surrogates, noncharacters and a leading byte order mark."""
    return _REMOVED.sub("", _LINE_ENDS.sub("\n", text)).removeprefix("\ufeff")


def unreadable_share(text: str) -> float:
    """Give the share of visible characters that mean nothing: U+FFFD, private use, control; 0..1."""
    num_visible = len(text) - sum(text.count(space) for space in " \t\n\r\f\xa0")
    return len(_UNREADABLE.findall(text)) / num_visible if num_visible else 0.0


def _finish(text: str, encoding: str, *notes: str) -> DecodedText:
    # The raw text is judged: normalising would remove the zeros that give a binary file away.
    _check_control_share(text[:SAMPLE_BYTES])
    share = unreadable_share(text[:SAMPLE_BYTES])
    if share > MAX_UNREADABLE_SHARE:
        raise UnsupportedFormatError(
            f"read as {encoding}, {share:.0%} of the characters are unreadable, allowed is at most "
            f"{MAX_UNREADABLE_SHARE:.0%}"
        )
    num_replaced = text.count("\ufffd")
    if num_replaced:
        notes = (*notes, f"{num_replaced:,} undecodable characters are shown as U+FFFD")
    if encoding.startswith(("utf-16", "utf-32")):
        notes = (*notes, f"the file is {encoding.upper()}")
    return DecodedText(normalise(text), encoding, notes)


def _check_control_share(text: str) -> None:
    share = len(_CONTROL.findall(text)) / len(text) if text else 0.0
    if share > MAX_CONTROL_SHARE:
        raise UnsupportedFormatError(
            f"binary data: {share:.0%} of the characters are control characters, allowed is at most "
            f"{MAX_CONTROL_SHARE:.0%}; supported are PDF, HTML, Markdown and plain text"
        )


def _unmarked_utf16(data: bytes) -> str | None:
    head = data[:4096]
    half = len(head) // 2
    if half < 2:
        return None
    even_zeros, odd_zeros = head[0::2].count(0), head[1::2].count(0)
    if odd_zeros > 0.4 * half and even_zeros < 0.05 * half:
        return "utf-16-le"
    if even_zeros > 0.4 * half and odd_zeros < 0.05 * half:
        return "utf-16-be"
    return None


def _sample(data: bytes, first_bad: int) -> bytes:
    start = 0 if first_bad < SAMPLE_BYTES // 2 else first_bad - SAMPLE_BYTES // 2
    return data[start : start + SAMPLE_BYTES]


def _is_damaged_utf8(sample: bytes) -> bool:
    """Tell whether multi-byte UTF-8 is the rule in ``sample`` and bad bytes are the exception."""
    text = sample.decode("utf-8", "replace")
    num_bad = text.count("\ufffd")
    num_good = sum(character > "\x7f" for character in text) - num_bad
    return num_good > 4 * num_bad


def _detect(sample: bytes) -> str:
    high = sample.translate(None, bytes(range(128)))
    num_western = len(_WESTERN.findall(high.decode("cp1252", "replace")))
    density = len(high) / len(sample)
    if num_western >= _MIN_WESTERN_SHARE * len(high) and density < _MAX_WESTERN_DENSITY:
        return "cp1252"
    matches = from_bytes(sample, cp_isolation=_DETECTABLE, preemptive_behaviour=False, enable_fallback=False)
    best = matches.best()
    if best is None:
        raise UnsupportedFormatError(
            f"no text encoding fits: {density:.0%} of the bytes are above 127; "
            f"supported are PDF, HTML, Markdown and plain text"
        )
    return best.encoding
