import pytest

from cake_rag.quotes import CheckedQuotes, check_quotes

SOURCE = 'He wrote:\n  “the Council\n shall meet twice a year”, and left. The board is 3" thick.'


@pytest.mark.parametrize(
    "answer",
    [
        'It says "the Council shall meet twice a year".',
        "It says “the Council shall meet”.",
        "It says „the Council shall meet“.",
        "It says «the Council shall meet».",
        'It says "the Council shall meet twice a year."',
        'It says "the  Council\tshall meet".',
    ],
)
def test_a_quotation_that_stands_in_the_source_stays(answer):
    assert check_quotes(answer, ["other", SOURCE]) == CheckedQuotes(answer, 0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('It says "the Council shall meet weekly".', "It says the Council shall meet weekly."),
        ("It says “never”.", "It says never."),
        ("It says «jamais».", "It says jamais."),
        ('It says "The council shall meet".', "It says The council shall meet."),
    ],
)
def test_a_made_up_quotation_loses_its_marks_and_is_counted(answer, text):
    checked = check_quotes(answer, [SOURCE])

    assert (checked.text, checked.dropped) == (text, 1)


def test_each_quotation_is_checked_by_itself():
    checked = check_quotes('"twice a year" and "thrice a year" and "each day"', [SOURCE])

    assert (checked.text, checked.dropped) == ('"twice a year" and thrice a year and each day', 2)


def test_a_quotation_does_not_run_from_the_end_of_one_source_into_the_next():
    assert check_quotes('"left right"', ["he left", "right away"]).dropped == 1


@pytest.mark.parametrize(
    "answer", ['The board is 3" thick and 5" wide.', 'An "unclosed mark.', '""', "Don't 'quote' me."]
)
def test_what_is_no_quotation_is_left_alone(answer):
    checked = check_quotes(answer, [SOURCE])

    assert (checked.text, checked.dropped) == (answer, 0)


def test_a_quotation_of_marks_alone_is_dropped():
    assert check_quotes('He said "...".', [SOURCE]).dropped == 1
