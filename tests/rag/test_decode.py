import random
import time

import pytest
from charset_normalizer import from_bytes

import cake_rag.formats.decode
from cake_rag.errors import UnsupportedFormatError
from cake_rag.formats.decode import decode, normalise, unreadable_share

RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. " * 4
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 6
CHINESE = "他是一个好人,我们都喜欢他。" * 10
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy, když se večer vracel přes město domů. " * 8
GERMAN = "Größe, Übermut, süße Äpfel – „schön“ für 5 €"
SAMPLES = {
    "ascii": ("plain", "plain".encode("ascii"), "utf-8"),
    "utf-8": (GERMAN, GERMAN.encode(), "utf-8"),
    "utf-8 with mark": (GERMAN, GERMAN.encode("utf-8-sig"), "utf-8"),
    "utf-16 with mark": (JAPANESE, JAPANESE.encode("utf-16"), "utf-16-le"),
    "utf-16-be with mark": (JAPANESE, b"\xfe\xff" + JAPANESE.encode("utf-16-be"), "utf-16-be"),
    "utf-16-le without mark": (GERMAN, GERMAN.encode("utf-16-le"), "utf-16-le"),
    "utf-16-be without mark": (GERMAN, GERMAN.encode("utf-16-be"), "utf-16-be"),
    "utf-32 with mark": (GERMAN, GERMAN.encode("utf-32"), "utf-32-le"),
    "cp1252": (GERMAN, GERMAN.encode("cp1252"), "cp1252"),
    "four accented letters": ("## können\n\näöüß\n", "## können\n\näöüß\n".encode("latin-1"), "cp1252"),
    "cp1250": (CZECH, CZECH.encode("cp1250"), "cp1250"),
    "cp1251": (RUSSIAN, RUSSIAN.encode("cp1251"), "cp1251"),
    "shift-jis": (JAPANESE, JAPANESE.encode("cp932"), "cp932"),
    "gb18030": (CHINESE, CHINESE.encode("gb18030"), "gb18030"),
}


@pytest.mark.parametrize(("text", "data", "encoding"), SAMPLES.values(), ids=SAMPLES)
def test_the_encoding_is_found(text: str, data: bytes, encoding: str):
    decoded = decode(data)
    assert (decoded.text, decoded.encoding) == (text, encoding)


def test_a_detected_encoding_is_noted():
    assert decode(GERMAN.encode("cp1252")).notes == ("the bytes are not UTF-8; read as cp1252",)


def test_utf8_has_no_note():
    assert decode(GERMAN.encode()).notes == ()


def test_a_few_bad_bytes_in_utf8_are_replaced_and_counted():
    decoded = decode(RUSSIAN.encode() + b"\xff\xfe" + RUSSIAN.encode())
    assert decoded.text == RUSSIAN + "\ufffd\ufffd" + RUSSIAN
    assert decoded.notes == ("2 undecodable characters are shown as U+FFFD",)


def test_a_declared_charset_is_believed_where_utf8_fails():
    assert decode("Жук".encode("koi8-r"), "KOI8-R").text == "Жук"


def test_a_declared_charset_is_not_believed_where_utf8_holds():
    assert decode("Жук".encode(), "koi8-r").text == "Жук"


def test_seven_bit_japanese_is_read_as_declared():
    assert decode(JAPANESE.encode("iso2022-jp"), "iso-2022-jp").text == JAPANESE


@pytest.mark.parametrize("label", ["zlib", "base64", "rot13", "no-such-charset", ""])
def test_a_declared_codec_that_is_no_charset_is_ignored(label: str):
    assert decode("für".encode("latin-1"), label).text == "für"


def test_line_ends_and_forbidden_characters_are_normalised():
    assert normalise("\ufeffa\r\nb\rc\u2028d\x00e\ud800f\ufffe\x85g") == "a\nb\nc\ndef\ng"


def test_zeros_inside_a_text_are_removed():
    assert decode(b"one\x00two " * 3 + b"and more words" * 10).text.startswith("onetwo onetwo")


def test_a_utf16_file_cut_in_a_character_is_read():
    assert decode(GERMAN.encode("utf-16")[:-1]).text == GERMAN[:-1] + "\ufffd"


@pytest.mark.parametrize("size", [64, 1000, 100_000])
def test_noise_is_refused_as_binary(size: int):
    with pytest.raises(UnsupportedFormatError, match="control characters, allowed is at most 5%"):
        decode(random.Random(1).randbytes(size))


def test_noise_that_happens_to_be_utf8_is_refused():
    with pytest.raises(UnsupportedFormatError, match="binary data: 67% of the characters"):
        decode(b"\x00\x01a" * 500)


def test_high_bytes_that_fit_no_encoding_are_refused():
    rng = random.Random(1)
    with pytest.raises(UnsupportedFormatError, match="no text encoding fits: 100%|unreadable"):
        decode(bytes(rng.randrange(0x80, 0xA0) for _ in range(2000)))


def test_the_unreadable_share_counts_visible_characters_alone():
    assert unreadable_share("ab \n\ue000\ufffd") == 0.5
    assert unreadable_share(" \n") == 0.0


def test_statistics_see_at_most_256_kib_that_hold_a_high_byte(monkeypatch: pytest.MonkeyPatch):
    seen: list[bytes] = []

    def watched(sample: bytes, **options):
        seen.append(sample)
        return from_bytes(sample, **options)

    monkeypatch.setattr(cake_rag.formats.decode, "from_bytes", watched)
    assert decode(b"x " * 400_000 + RUSSIAN.encode("cp1251") * 1000).encoding == "cp1251"
    assert len(seen[0]) == 256 * 1024 and max(seen[0]) > 127


def test_fifty_megabytes_with_an_accent_at_the_end_take_seconds():
    data = b"plain words of a long report. " * 1_700_000 + "für".encode("latin-1")
    start = time.perf_counter()
    assert decode(data).text.endswith("für")
    # About 1 s on one busy core; statistics over the whole file would take minutes.
    assert time.perf_counter() - start < 20
