import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cake_rag.citation import DECLINE_TEXT, CitationFinder, CitationResult, Source
from cake_rag.documents import Page
from cake_rag.embed import Embedder

LEASE = (
    "This lease is made between Harbour Estates and Maria Lopez. "
    "The flat stands at 14 Quay Street in Galway.\n\n"
    "The monthly rent is 1,250 euros and is due on the first working day of the month. "
    "Late payment costs 30 euros. "
    "The deposit is two monthly rents. It is paid back within 28 days after the keys are returned.\n\n"
    "The tenant may keep one small dog. Smoking is not allowed inside the building. "
    "The landlord repairs the heating within five days after a written report."
)
PAGE_BREAK = LEASE.index("The monthly rent")
PAGES = (Page(1, 0, PAGE_BREAK), Page(2, PAGE_BREAK, len(LEASE)))


class FlatEmbedder(Embedder):
    """Gives every text the same vector, so that words alone decide; loads no model."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts):
        self.texts.extend(texts)
        return np.full((len(texts), 4), 0.5, dtype=np.float32)


@pytest.fixture(scope="module")
def finder() -> CitationFinder:
    return CitationFinder(Embedder())


def lease(text: str = LEASE, offset: int = 0) -> Source:
    return Source("doc_lease", "lease.pdf", text, PAGES, offset)


def ask(finder: CitationFinder, question: str, answer: str) -> CitationResult:
    return finder.find(question, answer, [lease()])


def test_a_short_answer_is_cited_with_the_sentence_that_holds_it(finder):
    result = ask(finder, "How high is the monthly rent?", "1,250 euros")

    (citation,) = result.citations
    assert citation.quote == ("The monthly rent is 1,250 euros and is due on the first working day of the month.")
    assert (citation.page, citation.document_id, citation.document_name) == (2, "doc_lease", "lease.pdf")
    assert LEASE[citation.start : citation.end] == citation.quote
    assert (result.text, result.declined, result.unsupported) == ("1,250 euros", False, ())
    assert result.text[citation.answer_start : citation.answer_end] == "1,250 euros"


def test_a_full_sentence_is_cited(finder):
    result = ask(
        finder,
        "Within how many days does the landlord repair the heating?",
        "The landlord must repair the heating within five days.",
    )

    assert [citation.quote for citation in result.citations] == [
        "The landlord repairs the heating within five days after a written report."
    ]


def test_a_number_without_thousands_separator_is_the_same_number(finder):
    assert not ask(finder, "How high is the monthly rent?", "The rent is 1250 euros.").declined


def test_an_invented_sentence_is_removed_and_the_citation_still_points_at_its_sentence(finder):
    invented = "Queen Victoria signed the contract in Brussels."
    kept = "The monthly rent is 1,250 euros."

    result = ask(finder, "How high is the monthly rent?", f"{invented} {kept}")

    assert (result.text, result.unsupported) == (kept, (invented,))
    (citation,) = result.citations
    assert result.text[citation.answer_start : citation.answer_end] == kept


def test_a_fluent_copy_of_an_unrelated_sentence_is_declined(finder):
    copied = "Smoking is not allowed inside the building."

    result = ask(finder, "Which bank financed the bridge over the Danube?", copied)

    assert result == CitationResult(DECLINE_TEXT, (), 0, True, (copied,))


def test_a_wrong_number_is_declined(finder):
    assert ask(finder, "How high is the monthly rent?", "The monthly rent is 2,400 euros.").declined


def test_a_model_that_declines_is_not_cited(finder):
    assert ask(finder, "Is smoking allowed inside?", "The document does not state if smoking is allowed.").declined


@pytest.mark.parametrize("answer", ["", "   \n ", "...", "?! -- (…)", "🙂"])
def test_an_answer_without_words_is_declined_with_nothing_to_list(finder, answer):
    assert ask(finder, "How high is the monthly rent?", answer) == CitationResult(DECLINE_TEXT, (), 0, True, ())


def test_an_answer_in_another_language_is_supported_by_its_numbers_or_declined(finder):
    invented = "Le chien du voisin aime beaucoup la musique classique."

    assert ask(finder, "How high is the monthly rent?", invented).unsupported == (invented,)


def test_a_chinese_document_is_cited_by_its_sentence(finder):
    text = "月租金为1250欧元。押金为两个月租金。禁止在楼内吸烟。"
    source = Source("doc_zh", "zh.txt", text, (Page(1, 0, len(text)),))

    result = finder.find("月租金为多少欧元？", "月租金为1250欧元。", [source])

    assert [citation.quote for citation in result.citations] == ["月租金为1250欧元。"]


def test_a_document_of_one_word_can_be_asked(finder):
    source = Source("doc_one", "one.txt", "Porcupine", (Page(1, 0, 9),))

    result = finder.find("Which animal is a porcupine?", "Porcupine", [source])

    assert [citation.quote for citation in result.citations] in ([], ["Porcupine"])
    assert finder.find("What did the senate decide in 1998?", "A tax cut.", [source]).declined


@pytest.mark.parametrize("texts", [(), ("",), (" \n ", "...")])
def test_without_readable_sources_everything_is_unsupported(finder, texts):
    sources = [Source("doc_0", "empty", text, (), 0) for text in texts]

    assert finder.find("How high is the rent?", "1,250 euros.", sources).unsupported == ("1,250 euros.",)


def test_a_passage_is_cited_at_document_offsets(finder):
    passage = lease(LEASE[PAGE_BREAK:], offset=PAGE_BREAK)

    (citation,) = finder.find("How high is the monthly rent?", "1,250 euros", [passage]).citations

    assert LEASE[citation.start : citation.end] == citation.quote
    assert citation.page == 2


def test_the_source_that_supports_the_answer_is_named(finder):
    other = Source("doc_menu", "menu.txt", "The soup costs 7 euros. Bread is free.", (Page(1, 0, 38),))

    citations = finder.find("What does the soup cost?", "7 euros", [lease(), other]).citations

    assert [citation.document_id for citation in citations] == ["doc_menu"]


def test_a_question_about_the_whole_document_is_judged_by_the_answer_alone(finder):
    answer = "The lease is made between Harbour Estates and Maria Lopez."

    assert not ask(finder, "What is this document about?", answer).declined
    assert ask(finder, "What is this document about?", "Penguins of the southern ocean.").declined


def test_a_question_without_any_content_word_is_declined(finder):
    assert ask(finder, "Who is he?", "Smoking is not allowed inside the building.").declined


def test_a_made_up_quote_loses_its_marks_and_is_counted(finder):
    result = ask(finder, "How high is the monthly rent?", 'The rent is "1,250 Euros monthly".')

    assert (result.text, result.dropped_quotes) == ("The rent is 1,250 Euros monthly.", 1)


def test_a_true_quote_stays(finder):
    answer = 'The "monthly rent is 1,250 euros".'

    result = ask(finder, "How high is the monthly rent?", answer)

    assert (result.text, result.dropped_quotes) == (answer, 0)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_outside_zero_to_one_is_refused(threshold):
    with pytest.raises(ValueError, match=r"threshold is .*, allowed is 0\.\.1"):
        CitationFinder(FlatEmbedder(), threshold)


def test_the_second_question_embeds_no_sentence_again():
    embedder = FlatEmbedder()
    finder = CitationFinder(embedder)
    ask(finder, "How high is the monthly rent?", "1,250 euros.")
    embedder.texts.clear()

    ask(finder, "How high is the monthly rent?", "1,250 euros.")

    assert embedder.texts == ["How high is the monthly rent?", "How high is the monthly rent? 1,250 euros."]


def test_a_document_of_a_megabyte_embeds_few_sentences():
    embedder = FlatEmbedder()
    text = "".join(f"The rent of flat {number} is {number * 7} euros a month. " for number in range(20_000))
    source = Source("doc_big", "big.txt", text, (Page(1, 0, len(text)),))

    CitationFinder(embedder).find("What is the rent of flat 1234?", "8638 euros a month.", [source])

    # 24 candidates, the question, and the question with the answer.
    assert len(embedder.texts) <= 26


def test_threads_share_a_finder():
    finder = CitationFinder(FlatEmbedder(), threshold=0.0)
    results: list[CitationResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(ask(finder, "How high is the rent?", "1,250 euros")))
        for _ in range(8)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 8 and all(result == results[0] for result in results)


WORDS = st.sampled_from(
    ["rent", "Rent", "dog", "Dr.", "1,250", "“flat”", "É", "家", "\n", "\n\n", "", "…", "\u00a0", "x. Y"]
)
TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(WORDS, max_size=40).map(" ".join),
)


@given(text=TEXTS, question=TEXTS, answer=TEXTS, offset=st.integers(0, 50), cuts=st.sets(st.integers(1, 250)))
@settings(max_examples=300, deadline=None)
def test_every_quote_is_verbatim_at_its_offsets_on_its_page_and_covers_its_answer_sentence(
    text, question, answer, offset, cuts
):
    document = "#" * offset + text
    edges = [0, *sorted(cut for cut in cuts if cut < len(document)), len(document)]
    pages = [Page(number, *edge) for number, edge in enumerate(zip(edges, edges[1:], strict=False), start=1)]

    result = CitationFinder(FlatEmbedder(), threshold=0.0).find(
        question, answer, [Source("doc_x", "x", text, pages, offset)]
    )

    for citation in result.citations:
        page = next(page for page in pages if page.number == citation.page)
        assert citation.quote and document[citation.start : citation.end] == citation.quote
        assert page.start <= citation.start < page.end
        assert 0.0 <= citation.score <= 1.0
        assert result.text[citation.answer_start : citation.answer_end].strip()
    assert result.declined == (not result.citations)
    assert not result.declined or result.text == DECLINE_TEXT
