"""Fits and measures the score by which citations are accepted: ``python -m cake_eval.calibrate_citations``.

Articles are split three ways: half of them fit the logistic regression, a quarter sets the threshold, and
the last quarter measures. Nothing of an article is in two parts. The last line of output is one JSON
document with the rates of what is shipped; what was fitted is printed before it and goes by hand into
``cake_rag.citation``.

The threshold lets ``TARGET_FALSE_ACCEPT_RATE`` of unsupported answers pass, as the mean over three groups:
the question is foreign to the document, its paragraph was removed from the document, or the answer is
another sentence of the document. An answer of the right place with a wrong detail is measured apart: words
alone cannot tell it.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cake_eval.calibration_examples import Article, Example, make_examples, read_articles
from cake_rag.citation import COEFFICIENTS, INTERCEPT, THRESHOLD, log_odds
from cake_rag.embed import Embedder
from cake_rag.evidence import FEATURES, Evidence, EvidenceGatherer, SourceIndex, index_source

SHIPPED_DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "xquad" / "xquad.en.json.gz"
TARGET_FALSE_ACCEPT_RATE = 0.05
GROUPS = (
    ("foreign_short", "foreign_sentence", "foreign_copied"),
    ("removed_short", "removed_sentence", "removed_copied"),
    ("wrong_copied",),
)
WRONG_DETAIL = ("wrong_short", "wrong_sentence", "wrong_altered")
FITTING_ROUNDS = 5
RIDGE = 1e-4
NO_CANDIDATE = -20.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The evidence for one example; ``is_support`` marks the candidates that overlap the true support."""

    kind: str
    evidence: Evidence
    is_support: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class Model:
    """Logistic regression over ``FEATURES``."""

    weights: NDArray[np.float64]
    intercept: float

    def score(self, sample: Sample) -> float:
        """Give the log-odds of the best candidate."""
        if not sample.evidence.candidates:
            return NO_CANDIDATE
        return float(log_odds(sample.evidence, self.weights, self.intercept).max())


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares in 0..1 at one threshold.

    ``precision`` is that of as many supported as unsupported answers; ``auc`` and ``false_accept_rate`` are
    means over ``GROUPS``.
    """

    precision: float
    recall: float
    auc: float
    threshold: float
    false_accept_rate: float
    wrong_detail_accept_rate: float
    n_supported: int
    n_unsupported: int
    accepted_by_kind: dict[str, float]


class CachedEmbedder(Embedder):
    """Embeds each text once; the same sentences come back in many documents."""

    def __init__(self) -> None:
        """Start with nothing embedded."""
        super().__init__(num_threads=1)
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Give [len(texts), 384] unit vectors."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if missing:
            self._vectors.update(zip(missing, super().embed(missing), strict=True))
        return np.stack([self._vectors[text] for text in texts])


class Sampler:
    """Turns examples into samples; each document is indexed once."""

    def __init__(self, embedder: Embedder) -> None:
        """Use ``embedder`` for questions and sentences."""
        self._embedder = embedder
        self._indexes: dict[str, SourceIndex] = {}

    def sample(self, example: Example) -> Sample:
        """Gather the evidence for ``example``."""
        document = example.document
        if document not in self._indexes:
            self._indexes[document] = index_source(document)
        index = self._indexes[document]
        answer = example.answer if example.answer is not None else self._most_similar(example, index)
        gatherer = EvidenceGatherer(self._embedder, example.question, [document], [index])
        evidence = gatherer.gather(answer)
        if example.support is None:
            return Sample(example.kind, evidence, None)
        start = document.index(example.support)
        end = start + len(example.support)
        spans = [gatherer.span(candidate) for candidate in evidence.candidates]
        is_support = np.array([span.start < end and start < span.end for span in spans], dtype=bool)
        return Sample(example.kind, evidence, is_support)

    def _most_similar(self, example: Example, index: SourceIndex) -> str:
        sentences = [example.document[span.start : span.end] for span in index.sentences]
        question = self._embedder.embed([example.question])[0]
        return sentences[int(np.argmax(self._embedder.embed(sentences) @ question))]


def fit(samples: Sequence[Sample]) -> Model:
    """Fit on the best candidate of each sample under the model of the round before.

    Where the true support is known, the best candidate is the best of those that overlap it. Supported and
    unsupported samples weigh the same in all, and so do foreign, removed and wrong ones.
    """
    model = Model(np.ones(len(FEATURES)), 0.0)
    for _ in range(FITTING_ROUNDS):
        rows, groups = [], []
        for sample in samples:
            if not sample.evidence.candidates or (sample.is_support is not None and not sample.is_support.any()):
                continue
            odds = log_odds(sample.evidence, model.weights, model.intercept)
            if sample.is_support is not None:
                odds = np.where(sample.is_support, odds, -np.inf)
            rows.append(sample.evidence.features[int(odds.argmax())])
            groups.append(sample.kind.partition("_")[0])
        kinds = np.array(groups)
        is_right = kinds == "right"
        names, inverse, counts = np.unique(kinds, return_inverse=True, return_counts=True)
        share = np.where(names == "right", 0.5, 0.5 / (len(names) - 1))
        model = _logistic(np.array(rows), is_right.astype(np.float64), (share / counts)[inverse])
    return model


def false_accept_rate(scores: dict[str, NDArray[np.float64]], cut: float) -> float:
    """Give the mean over ``GROUPS`` of the share of unsupported answers with a score of at least ``cut``."""
    return float(np.mean([np.mean(pooled(scores, group) >= cut) for group in GROUPS]))


def pooled(scores: dict[str, NDArray[np.float64]], kinds: Sequence[str]) -> NDArray[np.float64]:
    """Give the scores of ``kinds`` in one array."""
    return np.concatenate([scores[kind] for kind in kinds])


def area_under_curve(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """Give the chance that a positive scores above a negative, ties counted half."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    ties = np.searchsorted(ordered, positive, side="right") - below
    return float((below + 0.5 * ties).mean() / len(negative))


def measure(model: Model, threshold: float, samples: Sequence[Sample]) -> Rates:
    """Give the rates of ``model`` at ``threshold`` (a probability) on ``samples``."""
    scores = scores_by_kind(model, samples)
    cut = math.log(threshold / (1.0 - threshold))
    right = pooled(scores, [kind for kind in scores if kind.startswith("right")])
    unsupported = pooled(scores, [kind for group in GROUPS for kind in group])
    recall = float(np.mean(right >= cut))
    false_accepts = false_accept_rate(scores, cut)
    return Rates(
        precision=round(recall / (recall + false_accepts), 4),
        recall=round(recall, 4),
        auc=round(float(np.mean([area_under_curve(right, pooled(scores, group)) for group in GROUPS])), 4),
        threshold=threshold,
        false_accept_rate=round(false_accepts, 4),
        wrong_detail_accept_rate=round(float(np.mean(pooled(scores, WRONG_DETAIL) >= cut)), 4),
        n_supported=len(right),
        n_unsupported=len(unsupported),
        accepted_by_kind={kind: round(float(np.mean(values >= cut)), 4) for kind, values in scores.items()},
    )


def scores_by_kind(model: Model, samples: Sequence[Sample]) -> dict[str, NDArray[np.float64]]:
    """Give the log-odds of all samples, grouped by kind."""
    scores: dict[str, list[float]] = {}
    for sample in samples:
        scores.setdefault(sample.kind, []).append(model.score(sample))
    return {kind: np.array(values) for kind, values in scores.items()}


def choose_threshold(model: Model, samples: Sequence[Sample]) -> float:
    """Give the lowest probability, in steps of 0.01, at which false acceptance is on target."""
    scores = scores_by_kind(model, samples)
    for percent in range(1, 100):
        if false_accept_rate(scores, math.log(percent / (100 - percent))) <= TARGET_FALSE_ACCEPT_RATE:
            return percent / 100
    return 0.99


def shipped_model() -> Model:
    """Give the model that the service uses."""
    return Model(np.array([COEFFICIENTS[name] for name in FEATURES]), INTERCEPT)


def main() -> None:
    """Fit, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=SHIPPED_DATA, help="gzip file in SQuAD format")
    parser.add_argument("--questions", type=int, default=8, help="questions of each article")
    options = parser.parse_args()
    fitting, choosing, holding = split(read_articles(options.data))
    sampler = Sampler(CachedEmbedder())
    parts = [
        [sampler.sample(example) for example in make_examples(articles, options.questions, seed=seed)]
        for seed, articles in enumerate((fitting, choosing, holding))
    ]
    model = fit(parts[0])
    threshold = choose_threshold(model, parts[1])
    print(json.dumps({"coefficients": dict(zip(FEATURES, model.weights.round(3).tolist(), strict=True))}))
    print(json.dumps({"intercept": round(model.intercept, 3), "threshold": threshold}))
    print(json.dumps({"fitted": asdict(measure(model, threshold, parts[2]))}))
    print(json.dumps(asdict(measure(shipped_model(), THRESHOLD, parts[2]))))


def split(articles: Sequence[Article]) -> tuple[list[Article], list[Article], list[Article]]:
    """Give the articles to fit on (half), to set the threshold on, and to measure on (a quarter each)."""
    return list(articles[::2]), list(articles[1::4]), list(articles[3::4])


def _logistic(rows: NDArray[np.float64], labels: NDArray[np.float64], weights: NDArray[np.float64]) -> Model:
    """Fit a logistic regression with a small ridge by Newton's method; ``weights`` sum to 1."""
    design = np.c_[rows, np.ones(len(rows))]
    ridge = RIDGE * np.r_[np.ones(rows.shape[1]), 0.0]
    beta = np.zeros(design.shape[1])
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-design @ beta))
        gradient = design.T @ (weights * (chance - labels)) + ridge * beta
        hessian = (design.T * (weights * chance * (1.0 - chance))) @ design + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        beta = beta - step
        if float(np.abs(step).max()) < 1e-9:
            break
    return Model(beta[:-1], float(beta[-1]))


if __name__ == "__main__":
    main()
