import math

import numpy as np
import pytest

from cake_rag.embed import Embedder
from cake_rag.evidence import FEATURES, NUM_CANDIDATES, Candidate, EvidenceGatherer, index_source
from cake_rag.terms import content_terms

TEXT = "Ann owns 4 boats. Bob owns 7 horses. Rain fell on the harbour."


class FlatEmbedder(Embedder):
    """Gives every text the same unit vector."""

    def __init__(self) -> None:
        pass

    def embed(self, texts):
        return np.full((len(texts), 4), 0.5, dtype=np.float32)


def features(question: str, answer: str, candidate: Candidate, text: str = TEXT) -> dict[str, float]:
    evidence = EvidenceGatherer(FlatEmbedder(), question, [text], [index_source(text)]).gather(answer)
    row = evidence.features[evidence.candidates.index(candidate)]
    return dict(zip(FEATURES, row.tolist(), strict=True))


def test_the_words_of_the_question_are_not_counted_as_support():
    found = features("How many boats does Ann own?", "Ann owns 7 boats.", Candidate(0, 0, 0))

    assert (found["answer_cover"], found["exact_missing"]) == (0.0, 1.0)


def test_an_answer_that_only_repeats_the_question_must_stand_in_the_span_itself():
    assert features("Does Ann own boats?", "Ann owns boats.", Candidate(0, 0, 0))["answer_cover"] == 1.0


def test_a_bare_yes_claims_the_question():
    found = features("Did rain fall on the harbour?", "Yes.", Candidate(0, 2, 2))

    # "rain" and "harbour" stand in one sentence; "fall" stands in none, and in an answer weighs as much.
    assert found["answer_cover"] == pytest.approx(2 / 3)
    # In the question it weighs more: idf of 1 in 3 sentences against 0 in 3.
    present, absent = math.log1p(2.5 / 1.5), math.log1p(3.5 / 0.5)
    assert found["question_cover"] == pytest.approx(2 * present / (2 * present + absent))


def test_the_span_that_covers_most_of_the_question_has_no_lag():
    question = "How many horses does Bob own?"

    assert features(question, "7", Candidate(0, 1, 1))["question_lead"] == 0.0
    assert features(question, "4", Candidate(0, 0, 0))["question_lead"] < 0.0


@pytest.mark.parametrize(
    ("question", "answer", "conflict"),
    [
        ("How many boats?", "Ann owns 4.", 0.0),
        ("How many boats?", "Ann.", 1.0),
        ("When did the rain fall?", "On the harbour.", 1.0),
        ("Who owns boats?", "4.", 1.0),
        ("Who owns boats?", "Ann.", 0.0),
        ("What does Ann own?", "4.", 0.0),
    ],
)
def test_an_answer_of_another_kind_than_asked_for_is_marked(question, answer, conflict):
    evidence = EvidenceGatherer(FlatEmbedder(), question, [TEXT], [index_source(TEXT)]).gather(answer)

    assert set(evidence.features[:, FEATURES.index("kind_conflict")]) == {conflict}


def test_spans_have_one_to_three_sentences_of_one_source():
    index = index_source("Boats. Boats. Boats. Boats. Boats.")

    evidence = EvidenceGatherer(FlatEmbedder(), "Boats?", ["Boats. " * 5] * 2, [index, index]).gather("Boats.")

    lengths = {candidate.last - candidate.first + 1 for candidate in evidence.candidates}
    assert lengths == {1, 2, 3} and len(evidence.candidates) == 2 * (5 + 4 + 3)


def test_candidates_are_bounded_and_the_matching_sentence_is_among_them():
    text = " ".join(f"Flat {number} has a garden." for number in range(1000, 2000))

    evidence = EvidenceGatherer(FlatEmbedder(), "Which flat has a garden?", [text], [index_source(text)]).gather("1777")

    assert Candidate(0, 777, 777) in evidence.candidates
    assert len(evidence.candidates) <= NUM_CANDIDATES * 3


def test_no_candidate_shares_no_word():
    assert EvidenceGatherer(FlatEmbedder(), "Why?", [TEXT], [index_source(TEXT)]).gather("Zebra").candidates == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cities were flooded", ("citi", "flood")),
        ("city", ("citi",)),
        ("four boxes", ("4", "box")),
        ("1,250.5 and 3.14", ("1250.5", "3.14")),
        ("Café Zoë", ("cafe", "zoe")),
        ("Ann's houses", ("ann", "hous")),
        ("租金", ("租", "金")),
        ("What is this document about?", ()),
        ("", ()),
    ],
)
def test_terms_are_folded_words_without_function_words(text, words):
    assert content_terms(text).words == words


def test_names_inside_a_sentence_and_numbers_are_exact():
    assert content_terms("Yesterday the mayor met Ann in room twelve.").exact == {"ann", "12"}
