import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_rag.chunk import chunk_text
from cake_rag.documents import Page


def one_page(text: str) -> list[Page]:
    return [Page(1, 0, len(text))]


@st.composite
def paged_texts(draw: st.DrawFn) -> tuple[str, list[Page]]:
    letters = st.sampled_from("ab. \n漢") | st.characters(exclude_categories=["Cs"])
    parts = draw(st.lists(st.text(alphabet=letters, max_size=300), max_size=6))
    ends = [sum(map(len, parts[: index + 1])) for index in range(len(parts))]
    return "".join(parts), [
        Page(index + 1, start, end) for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]


@given(paged_texts(), st.integers(50, 120))
def test_chunks_cover_the_text_exactly_and_never_cross_a_page(document: tuple[str, list[Page]], target: int):
    text, pages = document
    chunks = chunk_text(text, pages, target)
    assert "".join(chunk.text for chunk in chunks) == text
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert 0 < len(chunk.text) <= target
        assert sum(page.start < chunk.end and chunk.start < page.end for page in pages) == 1


def test_a_text_that_fits_is_one_chunk():
    text = "Short. Text.\n\nTwo paragraphs."
    assert [chunk.text for chunk in chunk_text(text, one_page(text), 50)] == [text]


def test_a_text_one_character_over_is_two_chunks():
    assert [len(chunk.text) for chunk in chunk_text("x" * 51, one_page("x" * 51), 50)] == [50, 1]


def test_an_empty_text_has_no_chunk():
    assert chunk_text("", [Page(1, 0, 0)]) == []


def test_a_paragraph_end_is_preferred_to_a_later_sentence_end():
    first, rest = "A paragraph of forty characters in all.\n\n", "A sentence. " * 6
    chunks = chunk_text(first + rest, one_page(first + rest), 60)
    assert chunks[0].text == first


def test_a_sentence_end_is_preferred_to_a_later_space():
    first, rest = "A sentence of thirty-five letters. ", "Then words go on and on and on and on."
    chunks = chunk_text(first + rest, one_page(first + rest), 60)
    assert chunks[0].text == first


def test_a_space_is_preferred_to_the_limit():
    text = "word" * 10 + " " + "word" * 10
    assert [chunk.text for chunk in chunk_text(text, one_page(text), 50)] == ["word" * 10 + " ", "word" * 10]


def test_dense_script_gets_chunks_of_a_quarter_of_the_length():
    text = "漢字の文章。" * 100
    assert max(len(chunk.text) for chunk in chunk_text(text, one_page(text), 800)) <= 200


def test_a_blank_page_is_a_chunk_of_its_own():
    chunks = chunk_text("one\n\n\n\ntwo", [Page(1, 0, 5), Page(2, 5, 7), Page(3, 7, 10)])
    assert [chunk.text for chunk in chunks] == ["one\n\n", "\n\n", "two"]


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([], "pages cover 0 of 4 characters"),
        ([Page(1, 0, 3)], "pages cover 3 of 4 characters"),
        ([Page(1, 0, 2), Page(2, 3, 4)], r"page 2 is \[3, 4\), expected start 2"),
        ([Page(1, 0, 4), Page(2, 4, 3)], r"page 2 is \[4, 3\), expected start 4"),
    ],
)
def test_pages_that_do_not_cover_the_text_are_refused(pages: list[Page], message: str):
    with pytest.raises(ValueError, match=message):
        chunk_text("text", pages)


def test_a_target_under_50_characters_is_refused():
    with pytest.raises(ValueError, match="target_chars is 49, allowed is 50 or more"):
        chunk_text("text", one_page("text"), 49)
