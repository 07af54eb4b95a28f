"""How well a span of a source supports one sentence of an answer, in a few numbers that can be read.

A span is one to three neighbouring sentences. Two things are measured: whether the span holds what the
answer says (``answer_*``), and whether it speaks of what was asked (``question_*``). A fluent answer to a
question that the document does not treat has the first without the second.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cake_rag.embed import Embedder
from cake_rag.sentences import Span, split_sentences
from cake_rag.terms import Terms, asks_of_document, content_terms

FEATURES = (
    "answer_cover",
    "exact_missing",
    "question_cover",
    "question_close",
    "question_cosine",
    "pair_cosine",
    "question_lead",
    "kind_conflict",
)
"""Names of the columns of ``Evidence.features``; see ``Evidence``."""

MAX_SPAN_SENTENCES = 3
NUM_CANDIDATES = 24
NEAR_SENTENCES = 2
CLOSE_WORDS = 10
NEUTRAL_COSINE = 0.6

_WANTS_NUMBER = re.compile(
    r"\b(how (many|much|old|long|tall|far|often|large|big)|when"
    r"|(what|which) (year|date|day|century|decade|percent\w*|number|age))\b",
    re.IGNORECASE,
)
_WANTS_NO_NUMBER = re.compile(r"\b(who|whom|whose|where|why)\b", re.IGNORECASE)


@dataclass(slots=True)
class SourceIndex:
    """The sentences of one source with their terms. ``vectors`` fills up as sentences become candidates."""

    sentences: tuple[Span, ...]
    words: tuple[tuple[str, ...], ...]
    postings: dict[str, tuple[int, ...]]
    vectors: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def words_of(self, first: int, last: int) -> list[str]:
        """Give the content terms of sentences ``first`` to ``last`` (included), in order."""
        return [word for words in self.words[first : last + 1] for word in words]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Sentences ``first`` to ``last`` (included) of source number ``source``."""

    source: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Candidate spans for one sentence of an answer, and their features.

    ``features`` is [len(candidates), len(FEATURES)] float64. Shares are in 0..1:

    - answer_cover: idf-weighted share of the answer's words that stand in the span. Words that the answer
      repeats from the question do not count, unless it has no others.
    - exact_missing: share of the answer's names and numbers, not in the question, that are not in the span.
    - question_cover: idf-weighted share of the question's words in the span.
    - question_close: the same within a few words of the place where the span says what the answer says.
    - question_cosine: cosine of the question with the best sentence of the span, -1..1.
    - pair_cosine: cosine of question and answer together with the best sentence of the span, -1..1.
    - question_lead: ``question_cover`` minus the highest over all candidates, -1..0.
    - kind_conflict: 1 if the question asks for a number or date and the answer has none, or for a person,
      place or reason and the answer is only numbers.

    A question of the document as a whole ("What is this document about?") is met by every span: the shares of
    its words are 1, and its cosine is ``NEUTRAL_COSINE``.
    """

    candidates: tuple[Candidate, ...]
    features: NDArray[np.float64]


def index_source(text: str) -> SourceIndex:
    """Split ``text`` into sentences and note where each term stands."""
    sentences = tuple(split_sentences(text))
    words = tuple(content_terms(text[span.start : span.end]).words for span in sentences)
    postings: defaultdict[str, list[int]] = defaultdict(list)
    for number, sentence_words in enumerate(words):
        for word in set(sentence_words):
            postings[word].append(number)
    return SourceIndex(sentences, words, {word: tuple(where) for word, where in postings.items()})


class EvidenceGatherer:
    """Evidence from some sources for the answers to one question."""

    def __init__(self, embedder: Embedder, question: str, texts: Sequence[str], indexes: Sequence[SourceIndex]):
        """Read the question; ``indexes[i]`` is the index of ``texts[i]``."""
        self._embedder = embedder
        self._question = question
        self._texts = texts
        self._indexes = indexes
        self._num_sentences = sum(len(index.sentences) for index in indexes)
        self._terms = content_terms(question)
        self._weights = self._weigh(self._terms.words)
        self._vector = embedder.embed([question])[0]

    def gather(self, sentence: str) -> Evidence:
        """Give the candidate spans for ``sentence``; none if no source has a word in common with it."""
        answer = content_terms(sentence)
        claim = self._claim(answer)
        weights = self._weigh(claim, least_found=1)
        chosen = self._choose(weights, self._weigh(answer.words))
        if not chosen:
            return Evidence((), np.zeros((0, len(FEATURES))))
        self._embed(chosen)
        pair = self._embedder.embed([f"{self._question} {sentence}"])[0]
        cosines = {
            (number, place): (float(self._vector @ vector), float(pair @ vector))
            for number, place in chosen
            for vector in [self._indexes[number].vectors[place]]
        }
        exact = answer.exact.difference(self._weights)
        conflict = float(self._is_other_kind(claim))
        candidates = tuple(self._spans(chosen))
        features = np.zeros((len(candidates), len(FEATURES)))
        for row, candidate in zip(features, candidates, strict=True):
            inside = self._indexes[candidate.source].words_of(candidate.first, candidate.last)
            places = [(candidate.source, place) for place in range(candidate.first, candidate.last + 1)]
            near = [cosines[place] for place in places if place in cosines]
            row[:] = (
                _share(inside, weights),
                len(exact.difference(inside)) / len(exact) if exact else 0.0,
                _share(inside, self._weights),
                _close_share(inside, weights, self._weights),
                max(question for question, _ in near),
                max(both for _, both in near),
                0.0,
                conflict,
            )
        cover, close, cosine, lead = map(
            FEATURES.index, ("question_cover", "question_close", "question_cosine", "question_lead")
        )
        features[:, lead] = features[:, cover] - features[:, cover].max()
        if asks_of_document(self._question):
            features[:, [cover, close]] = 1.0
            features[:, cosine] = NEUTRAL_COSINE
        return Evidence(candidates, features)

    def span(self, candidate: Candidate) -> Span:
        """Give the character range of ``candidate`` in the text of its source."""
        sentences = self._indexes[candidate.source].sentences
        return Span(sentences[candidate.first].start, sentences[candidate.last].end)

    def _is_other_kind(self, claim: Sequence[str]) -> bool:
        has_number = [word[0].isdigit() for word in claim]
        if _WANTS_NUMBER.search(self._question):
            return not any(has_number)
        return bool(_WANTS_NO_NUMBER.search(self._question)) and bool(claim) and all(has_number)

    def _claim(self, answer: Terms) -> tuple[str, ...]:
        """Give the words that the sentence adds to the question; a bare "Yes" claims the question itself."""
        new = tuple(word for word in answer.words if word not in self._weights)
        return new or answer.words or self._terms.words

    def _weigh(self, words: Iterable[str], least_found: int = 0) -> dict[str, float]:
        """Give each word its inverse document frequency over the sentences of all sources (BM25's, positive).

        With ``least_found`` 1 a word that stands nowhere weighs as much as one that stands once: in an
        answer it may be the model's wording, in a question it says that the document treats something else.
        """
        weights = {}
        for word in words:
            found = max(least_found, sum(len(index.postings.get(word, ())) for index in self._indexes))
            weights[word] = math.log1p((self._num_sentences - found + 0.5) / (found + 0.5))
        return weights

    def _choose(self, claim: dict[str, float], answer: dict[str, float]) -> list[tuple[int, int]]:
        """Give the (source, sentence) pairs that share most with claim, answer and question, best first."""
        direct: defaultdict[tuple[int, int], float] = defaultdict(float)
        asked: defaultdict[tuple[int, int], float] = defaultdict(float)
        for number, index in enumerate(self._indexes):
            for weights, factor, scores in (
                (claim, 2.0, direct),
                (answer, 0.5, direct),
                (self._weights, 1.0, asked),
            ):
                for word, weight in weights.items():
                    for sentence in index.postings.get(word, ()):
                        scores[number, sentence] += factor * weight
        total = dict(direct)
        for (number, sentence), score in asked.items():
            total[number, sentence] = total.get((number, sentence), 0.0) + score
        for number, sentence in direct:
            near = max(
                (asked.get((number, other), 0.0) for other in _near(sentence) if other != sentence),
                default=0.0,
            )
            total[number, sentence] += 0.5 * near
        return sorted(total, key=lambda key: (-total[key], key))[:NUM_CANDIDATES]

    def _embed(self, chosen: Sequence[tuple[int, int]]) -> None:
        missing = [key for key in chosen if key[1] not in self._indexes[key[0]].vectors]
        if not missing:
            return
        spans = [self._indexes[number].sentences[sentence] for number, sentence in missing]
        texts = [self._texts[key[0]][span.start : span.end] for key, span in zip(missing, spans, strict=True)]
        for (number, sentence), vector in zip(missing, self._embedder.embed(texts), strict=True):
            self._indexes[number].vectors[sentence] = vector

    def _spans(self, chosen: Sequence[tuple[int, int]]) -> Iterable[Candidate]:
        """Yield each run of up to ``MAX_SPAN_SENTENCES`` that starts and ends with a chosen sentence."""
        members = set(chosen)
        for number, first in chosen:
            for last in range(first, first + MAX_SPAN_SENTENCES):
                if (number, last) in members:
                    yield Candidate(number, first, last)


def _near(sentence: int) -> range:
    return range(sentence - NEAR_SENTENCES, sentence + NEAR_SENTENCES + 1)


def _close_share(inside: Sequence[str], claim: dict[str, float], question: dict[str, float]) -> float:
    """Give the best share of ``question`` near the claim's rarest word among the words ``inside``."""
    found = claim.keys() & set(inside)
    if not found:
        return 0.0
    rarest = max(found, key=lambda word: (claim[word], word))
    return max(
        _share(inside[max(0, place - CLOSE_WORDS) : place + len(claim) + CLOSE_WORDS], question)
        for place, word in enumerate(inside)
        if word == rarest
    )


def _share(found: Iterable[str], weights: dict[str, float]) -> float:
    """Give the weighted share of ``weights`` that is ``found``; 0 if nothing is asked for."""
    total = sum(weights.values())
    if not total:
        return 0.0
    present = set(found)
    return sum(weight for word, weight in weights.items() if word in present) / total
