"""Small PDFs made by hand, so that a test shows what is inside them."""

import hashlib
from collections.abc import Mapping, Sequence

# Source: PDF 1.7 (ISO 32000-1), algorithm 2, step a.
_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_FILE_ID = b"0123456789abcdef"
_ALL_PERMISSIONS = -4


def pdf(pages: Sequence[str], **extra: bytes) -> bytes:
    """A PDF with one line of text for each line of each page; an empty string is a page without text."""
    return _assemble(_objects([_text_stream(text) for text in pages], **extra))


def scan_pdf(num_pages: int) -> bytes:
    """A PDF whose pages show a one-pixel picture and no text."""
    image = (
        b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 "
        b"/Length 1 >>\nstream\n\x80\nendstream"
    )
    return _assemble(_objects([b"q 500 0 0 700 50 50 cm /Im Do Q"] * num_pages, image=image))


def private_use_pdf(text: str) -> bytes:
    """A PDF whose font maps every character to the private use area, as fonts without names do."""
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def "
        b"1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfrange <20> <7E> <E020> endbfrange "
        b"endcmap end end"
    )
    return pdf([text], to_unicode=_stream(cmap))


def encrypted_pdf(text: str, *, user_password: bytes, owner_password: bytes) -> bytes:
    """A PDF of one page under the 40-bit RC4 of PDF 1.1; an empty user password opens without asking."""
    owner = _rc4(hashlib.md5(_padded(owner_password)).digest()[:5], _padded(user_password))
    seed = _padded(user_password) + owner + _ALL_PERMISSIONS.to_bytes(4, "little", signed=True) + _FILE_ID
    key = hashlib.md5(seed).digest()[:5]
    objects = _objects([_text_stream(text)])
    number = next(number for number, body in objects.items() if b"stream" in body)
    content = _rc4(hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10], _text_stream(text))
    objects[number] = _stream(content)
    encrypt = (
        f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{owner.hex()}> /U <{_rc4(key, _PADDING).hex()}> "
        f"/P {_ALL_PERMISSIONS} >> /ID [<{_FILE_ID.hex()}> <{_FILE_ID.hex()}>]"
    )
    return _assemble(objects, encrypt.encode())


def _objects(streams: Sequence[bytes], image: bytes | None = None, to_unicode: bytes | None = None) -> dict[int, bytes]:
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica"
    font += b" /ToUnicode 5 0 R >>" if to_unicode else b" /Encoding /WinAnsiEncoding >>"
    first = 10
    kids = " ".join(f"{first + 2 * index} 0 R" for index in range(len(streams)))
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(streams)} >>".encode(),
        3: font,
        4: image or b"null",
        5: to_unicode or b"null",
    }
    for index, stream in enumerate(streams):
        number = first + 2 * index
        objects[number] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F 3 0 R >> "
            b"/XObject << /Im 4 0 R >> >> /Contents %d 0 R >>" % (number + 1)
        )
        objects[number + 1] = _stream(stream)
    return objects


def _text_stream(text: str) -> bytes:
    lines = [line.encode("cp1252") for line in text.split("\n")]
    escaped = [line.replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)") for line in lines]
    return b"BT /F 12 Tf 14 TL 50 740 Td " + b" ".join(b"(%s) Tj T*" % line for line in escaped) + b" ET"


def _stream(content: bytes) -> bytes:
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)


def _assemble(objects: Mapping[int, bytes], trailer: bytes = b"") -> bytes:
    out = bytearray(b"%PDF-1.4\n")
    entries = {0: b"0000000000 65535 f \n"}
    for number, body in objects.items():
        entries[number] = b"%010d 00000 n \n" % len(out)
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    size = max(entries) + 1
    out += b"xref\n0 %d\n" % size
    out += b"".join(entries.get(number, b"0000000000 00000 f \n") for number in range(size))
    out += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start)
    return bytes(out)


def _padded(password: bytes) -> bytes:
    return (password + _PADDING)[:32]


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    i = j = 0
    out = bytearray()
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
