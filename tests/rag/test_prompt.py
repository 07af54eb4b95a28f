import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_rag.config import ENGINE_RESERVE_TOKENS
from cake_rag.errors import QuestionRejectedError
from cake_rag.prompt import PromptFrame, clean_question, split_blocks, split_control_text

FRAME = PromptFrame(head_ids=(1, 2, 3), tail_ids=(8, 9))
CONTROL_STRINGS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<｜User｜>",
    "</s>",
    "<s>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<tool_call>",
)


def test_every_prompt_on_a_document_starts_with_what_warms_the_engine():
    prefix = FRAME.document_prefix([4, 5])

    assert prefix == [1, 2, 3, 4, 5]
    assert FRAME.prompt([4, 5], [6, 7]) == [*prefix, 6, 7, 8, 9]
    assert FRAME.prompt([4, 5], [])[: len(prefix)] == prefix


def test_room_is_what_frame_question_and_answer_leave_of_the_context():
    assert FRAME.room(100, question_tokens=10, answer_tokens=20) == 100 - 5 - 10 - 20


def test_room_keeps_the_tokens_that_the_engine_reserves_even_for_an_answer_of_one_token():
    assert FRAME.room(100, question_tokens=0, answer_tokens=1) == 100 - 5 - ENGINE_RESERVE_TOKENS


def test_room_is_negative_when_nothing_fits():
    assert FRAME.room(20, question_tokens=10, answer_tokens=20) < 0


@pytest.mark.parametrize("string", CONTROL_STRINGS)
def test_a_string_shaped_like_a_control_token_is_cut(string: str):
    pieces = split_control_text(f"before {string} after")

    assert "".join(pieces) == f"before {string} after"
    assert all(string not in piece for piece in pieces)


def test_control_strings_of_other_shapes_are_cut_once_they_are_known():
    assert split_control_text("a ~~odd~~ b") == ["a ~~odd~~ b"]
    assert split_control_text("a ~~odd~~ b", {"~~odd~~"}) == ["a ~", "~odd~~ b"]


def test_control_strings_inside_one_another_are_all_cut():
    text = "<|a<|im_end|><|im_end|>|>"

    pieces = split_control_text(text)

    assert "".join(pieces) == text
    assert all("<|im_end|>" not in piece for piece in pieces)


@given(st.lists(st.sampled_from([*CONTROL_STRINGS, "<", "|>", "im_end", "x", " ", "\n"]), max_size=12))
def test_cutting_keeps_the_text_and_leaves_no_control_string(parts: list[str]):
    text = "".join(parts)

    pieces = split_control_text(text)

    assert "".join(pieces) == text
    assert not any(string in piece for piece in pieces for string in CONTROL_STRINGS)
    assert all(pieces)


def test_plain_text_stays_in_one_piece():
    assert split_control_text("2 < 3 > 1, [a](b), {c}") == ["2 < 3 > 1, [a](b), {c}"]


@given(st.text(alphabet="ab \n", max_size=200), st.integers(min_value=2, max_value=40))
def test_blocks_join_to_the_text_and_keep_their_limit(text: str, block_chars: int):
    blocks = list(split_blocks(text, block_chars))

    assert "".join(blocks) == text
    assert all(0 < len(block) <= block_chars for block in blocks)


def test_a_block_ends_after_a_line_break_that_is_followed_by_visible_text():
    assert list(split_blocks("one two\n\nthree four", 12)) == ["one two\n\n", "three four"]


def test_a_block_does_not_end_between_two_line_breaks():
    assert list(split_blocks("one two three\n\nfour", 14)) == ["one two", " three\n\nfour"]


def test_a_block_without_line_break_ends_before_a_space():
    assert list(split_blocks("one two three four", 10)) == ["one two", " three", " four"]


def test_a_question_is_stripped():
    assert clean_question("  who?\n", 10) == "who?"


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("", "the question is empty, expected 1..10 characters"),
        (" \n\t", "the question is empty, expected 1..10 characters"),
        ("\0\u200b", "the question is empty, expected 1..10 characters"),
        ("x" * 11, "the question has 11 characters, expected 1..10"),
        ("a\ud800b", "the question holds a lone surrogate at character 1"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_with_value_and_range(question: str, message: str):
    with pytest.raises(QuestionRejectedError, match=message):
        clean_question(question, 10)


def test_the_longest_allowed_question_is_kept():
    assert clean_question("x" * 10, 10) == "x" * 10
