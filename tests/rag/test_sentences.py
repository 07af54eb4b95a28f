import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_rag.sentences import MAX_SENTENCE_CHARS, split_sentences

CASES = {
    "two sentences": ("One is here. Two is there.", ["One is here.", "Two is there."]),
    "title": ("Dr. Ann Lee met Mrs. Poe. They spoke.", ["Dr. Ann Lee met Mrs. Poe.", "They spoke."]),
    "initials": ("J. R. R. Tolkien wrote it. It sold.", ["J. R. R. Tolkien wrote it.", "It sold."]),
    "latin abbreviations": ("Fruit, e.g. Pears, i.e. food. Yes.", ["Fruit, e.g. Pears, i.e. food.", "Yes."]),
    "figure and number": ("See Fig. 3 and No. 5 here. Next.", ["See Fig. 3 and No. 5 here.", "Next."]),
    "no as a word": ("Did he? He said no. Next day.", ["Did he?", "He said no.", "Next day."]),
    "acronym inside": ("The U.S. Army came. It left.", ["The U.S. Army came.", "It left."]),
    "acronym at the end": (
        "They live in the U.S. The rest left.",
        ["They live in the U.S.", "The rest left."],
    ),
    "company": ("Acme Inc. Boston grew. So did we.", ["Acme Inc. Boston grew.", "So did we."]),
    "time of day": ("Come at 5 p.m. We start then.", ["Come at 5 p.m.", "We start then."]),
    "decimal": ("Pi is 3.14159 here. True.", ["Pi is 3.14159 here.", "True."]),
    "ellipsis before lower case": ("Well... maybe not. Fine.", ["Well... maybe not.", "Fine."]),
    "quoted end": ('He said "Stop!" and left. "Go." Now.', ['He said "Stop!" and left.', '"Go."', "Now."]),
    "reference mark": ("It is old.[12] It is big.", ["It is old.[12]", "It is big."]),
    "wrapped line": (
        "A long line that\nwraps here. Next\nsentence.",
        ["A long line that\nwraps here.", "Next\nsentence."],
    ),
    "paragraphs without full stop": ("A title\n\nA body", ["A title", "A body"]),
    "form feed": ("end of page\fStart of page", ["end of page", "Start of page"]),
    "heading above text": (
        "Introduction\nThis line is much longer than the heading above\nand wraps.",
        ["Introduction", "This line is much longer than the heading above\nand wraps."],
    ),
    "markdown": ("# Head\nbody text\n- one\n- two\n", ["# Head", "body text", "- one", "- two"]),
    "numbered list": (
        "1. First step. Do it.\n2. Second step.",
        ["1. First step.", "Do it.", "2. Second step."],
    ),
    "table rows": ("| a | b |\n| c. D | d |", ["| a | b |", "| c. D | d |"]),
    "chinese and japanese": ("这是一句。这是两句！最後", ["这是一句。", "这是两句！", "最後"]),
    "hindi": ("यह वाक्य है। दूसरा।", ["यह वाक्य है।", "दूसरा।"]),
    "arabic": ("هل هذا صحيح؟ نعم.", ["هل هذا صحيح؟", "نعم."]),
    "no text": (" \n\t\n ", []),
    "empty": ("", []),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_a_text_is_cut_where_its_sentences_end(text: str, expected: list[str]):
    assert [text[start:end] for start, end in split_sentences(text)] == expected


def test_a_sentence_over_the_limit_is_cut_at_a_line_end():
    record = "key: value of some length without any full stop\n"
    spans = split_sentences(record * 40)
    assert all(span.end - span.start <= MAX_SENTENCE_CHARS for span in spans)
    assert all((record * 40)[span.end] == "\n" for span in spans[:-1])


def test_pieces_of_a_long_sentence_have_no_outer_white_space():
    text = "words  \n  " * 200
    pieces = [text[start:end] for start, end in split_sentences(text)]
    assert len(pieces) > 2 and pieces == [piece.strip() for piece in pieces]


def test_a_word_over_the_limit_is_cut_at_the_limit():
    spans = split_sentences("x" * (2 * MAX_SENTENCE_CHARS + 1))
    assert [span.end - span.start for span in spans] == [MAX_SENTENCE_CHARS, MAX_SENTENCE_CHARS, 1]


@given(st.text(alphabet=st.sampled_from('aZ1. .!?。\n\n\t\f|#-("”[]') | st.characters(), max_size=400))
def test_sentences_are_in_order_and_leave_out_white_space_alone(text: str):
    position = 0
    for start, end in split_sentences(text):
        assert position <= start < end <= len(text)
        assert text[position:start].strip() == ""
        assert text[start:end] == text[start:end].strip()
        assert end - start <= MAX_SENTENCE_CHARS
        position = end
    assert text[position:].strip() == ""


@pytest.mark.parametrize("unit", [".", ". ", "\n", " ", "a", "\n ", '."', "(", "A. ", "- ", "[1]", "1. "])
def test_hostile_repetition_takes_linear_time(unit: str):
    start = time.perf_counter()
    # The letter at the end makes a run of full stops no end of a sentence.
    split_sentences(unit * (400_000 // len(unit)) + "x")
    # About 1.5 s at worst on one busy core; quadratic time would be minutes.
    assert time.perf_counter() - start < 20
