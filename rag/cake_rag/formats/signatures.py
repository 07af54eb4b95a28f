"""Formats recognised by their first bytes."""

from typing import NamedTuple


class Signature(NamedTuple):
    """Bytes at an offset, and what they announce."""

    offset: int
    magic: bytes
    name: str


# Source: the formats' specifications; the same bytes as in the `file` program's database.
_SIGNATURES = (
    Signature(0, b"\x89PNG\r\n\x1a\n", "PNG image"),
    Signature(0, b"\xff\xd8\xff", "JPEG image"),
    Signature(0, b"GIF87a", "GIF image"),
    Signature(0, b"GIF89a", "GIF image"),
    Signature(0, b"II*\x00", "TIFF image"),
    Signature(0, b"MM\x00*", "TIFF image"),
    Signature(8, b"WEBP", "WebP image"),
    Signature(8, b"WAVE", "WAV audio"),
    Signature(8, b"AVI ", "AVI video"),
    Signature(4, b"ftyp", "MP4 video or HEIC image"),
    Signature(0, b"\x00\x00\x00\x0cjP  ", "JPEG 2000 image"),
    Signature(0, b"ID3", "MP3 audio"),
    Signature(0, b"OggS\x00", "Ogg audio"),
    Signature(0, b"fLaC", "FLAC audio"),
    Signature(0, b"{\\rtf", "RTF document"),
    Signature(0, b"%!PS", "PostScript document"),
    Signature(0, b"\x1f\x8b", "gzip archive"),
    Signature(0, b"BZh", "bzip2 archive"),
    Signature(0, b"\xfd7zXZ\x00", "xz archive"),
    Signature(0, b"7z\xbc\xaf\x27\x1c", "7-Zip archive"),
    Signature(0, b"Rar!\x1a\x07", "RAR archive"),
    Signature(0, b"\x28\xb5\x2f\xfd", "Zstandard archive"),
    Signature(257, b"ustar", "tar archive"),
    Signature(0, b"\x7fELF", "ELF program"),
    Signature(0, b"MZ", "Windows program"),
    Signature(0, b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    Signature(0, b"\xcf\xfa\xed\xfe", "Mach-O program"),
    Signature(0, b"\x00asm", "WebAssembly module"),
    Signature(0, b"SQLite format 3\x00", "SQLite database"),
    Signature(0, b"PAR1", "Parquet table"),
    Signature(0, b"wOFF", "WOFF font"),
    Signature(0, b"wOF2", "WOFF2 font"),
    Signature(0, b"AT&TFORM", "DjVu document"),
    Signature(60, b"BOOKMOBI", "Mobipocket e-book"),
)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# Short magics are also how a text may begin, so they count only in front of a byte that no text has.
_NEEDS_BINARY = frozenset({b"BZh", b"MZ", b"ID3", b"PAR1", b"ftyp", b"ustar", b"fLaC", b"WEBP", b"WAVE", b"AVI "})
_BINARY_WINDOW = 4096


def unsupported_format(data: bytes) -> str | None:
    """Name the format of ``data`` if it is a known one that is not read, else None."""
    if data.startswith(_ZIP):
        return _zip_kind(data)
    if data.startswith(_OLE):
        return _ole_kind(data)
    head = data[:_BINARY_WINDOW]
    for signature in _SIGNATURES:
        if not data.startswith(signature.magic, signature.offset):
            continue
        if signature.magic not in _NEEDS_BINARY or _has_binary_byte(head):
            return signature.name
    return None


def _has_binary_byte(head: bytes) -> bool:
    return any(byte < 9 or 13 < byte < 27 for byte in head)


def _zip_kind(data: bytes) -> str:
    """Tell the kind of a ZIP container from its entry names; nothing is inflated."""
    for marker, name in (
        (b"word/document", "Word document (DOCX)"),
        (b"xl/workbook", "Excel workbook (XLSX)"),
        (b"ppt/presentation", "PowerPoint presentation (PPTX)"),
        (b"application/epub+zip", "EPUB e-book"),
        (b"application/vnd.oasis.opendocument", "OpenDocument file"),
        (b"META-INF/MANIFEST.MF", "Java archive"),
    ):
        if marker in data:
            return name
    return "ZIP archive"


def _ole_kind(data: bytes) -> str:
    """Tell the kind of an OLE2 container from its stream names, which are UTF-16."""
    for stream, name in (
        ("EncryptedPackage", "password-protected Office document"),
        ("WordDocument", "legacy Word document (DOC)"),
        ("Workbook", "legacy Excel workbook (XLS)"),
        ("PowerPoint Document", "legacy PowerPoint presentation (PPT)"),
        ("__substg1.0", "Outlook message (MSG)"),
    ):
        if stream.encode("utf-16-le") in data:
            return name
    return "legacy Office document"
