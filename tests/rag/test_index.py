import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cake_rag.index
from cake_rag.errors import StoreError
from cake_rag.index import VectorIndex

DIM = 8
MODEL = "model-a"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.faiss"


def unit_vectors(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def saved(path: Path, count: int = 20) -> VectorIndex:
    index = VectorIndex.open(path, DIM, MODEL)
    index.add(np.arange(count) + 100, unit_vectors(count))
    index.save()
    return index


def data_file(path: Path) -> Path:
    (found,) = path.parent.glob("vectors-*.faiss")
    return found


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 60),
    removed=st.sets(st.integers(100, 159)),
    allowed=st.none() | st.sets(st.integers(90, 170)),
    k=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
def test_search_agrees_with_brute_force(path: Path, count: int, removed: set[int], allowed, k: int, seed: int):
    index = VectorIndex(path, DIM, MODEL)
    vectors, query = unit_vectors(count, seed), unit_vectors(1, seed + 1)[0]
    index.add(np.arange(count) + 100, vectors)
    index.remove(sorted(removed))
    scores = {id: float(vectors[id - 100] @ query) for id in range(100, 100 + count) if id not in removed}
    if allowed is not None:
        scores = {id: score for id, score in scores.items() if id in allowed}
    expected = sorted(scores.items(), key=lambda item: -item[1])[:k]

    hits = index.search(query, k, None if allowed is None else sorted(allowed))

    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert all(scores[hit.id] == pytest.approx(hit.score, abs=1e-5) for hit in hits)
    assert len({hit.id for hit in hits}) == len(hits)


def test_an_index_survives_a_restart(path: Path):
    query = unit_vectors(1, 9)[0]
    before = saved(path).search(query, 5)
    index = VectorIndex.open(path, DIM, MODEL)
    assert index.search(query, 5) == before
    assert index.ids().tolist() == list(range(100, 120))
    index.remove([100])
    index.add(np.array([500]), unit_vectors(1, 3))
    index.save()
    assert VectorIndex.open(path, DIM, MODEL).ids().tolist() == [*range(101, 120), 500]


def test_what_was_not_saved_is_not_there(path: Path):
    saved(path).add(np.array([900]), unit_vectors(1))
    assert 900 not in VectorIndex.open(path, DIM, MODEL).ids()


def test_no_file_is_an_empty_index(path: Path):
    index = VectorIndex.open(path, DIM, MODEL)
    assert (len(index), index.search(unit_vectors(1)[0], 3)) == (0, [])


def test_an_empty_index_can_be_saved_and_opened(path: Path):
    VectorIndex.open(path, DIM, MODEL).save()
    assert len(VectorIndex.open(path, DIM, MODEL)) == 0


def test_a_lost_data_file_is_an_empty_index(path: Path):
    saved(path)
    data_file(path).unlink()
    assert len(VectorIndex.open(path, DIM, MODEL)) == 0


def test_the_manifest_tells_what_the_index_is(path: Path):
    saved(path)
    manifest = json.loads(path.with_suffix(".json").read_text())
    assert (manifest["model_id"], manifest["dim"], manifest["count"]) == (MODEL, DIM, 20)


def test_one_data_file_is_left_after_many_saves(path: Path):
    index = saved(path)
    for number in range(3):
        index.add(np.array([number]), unit_vectors(1, number))
        index.save()
    assert sorted(file.name for file in path.parent.iterdir()) == [data_file(path).name, "vectors.json"]


def test_a_crash_before_the_manifest_leaves_the_last_save(path: Path, monkeypatch: pytest.MonkeyPatch):
    index = saved(path)

    def crash(path: Path, data: bytes) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(cake_rag.index, "write_durably", crash)
    index.add(np.array([900]), unit_vectors(1))
    with pytest.raises(StoreError, match="cannot write index .*vectors.faiss: disk full"):
        index.save()
    assert VectorIndex.open(path, DIM, MODEL).ids().tolist() == list(range(100, 120))


@pytest.mark.parametrize(
    ("dim", "model", "message"),
    [
        (DIM, "model-b", "has model_id 'model-a', expected 'model-b'; remove both files and start again"),
        (DIM + 1, MODEL, "has dim 8, expected 9; remove both files"),
    ],
)
def test_vectors_of_another_model_are_refused(path: Path, dim: int, model: str, message: str):
    saved(path)
    with pytest.raises(StoreError, match=message):
        VectorIndex.open(path, dim, model)


def test_a_newer_format_is_refused(path: Path):
    saved(path)
    manifest = path.with_suffix(".json")
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="has format 2, expected 1"):
        VectorIndex.open(path, DIM, MODEL)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"file": 3}'])
def test_a_damaged_manifest_is_named_with_the_remedy(path: Path, content: bytes):
    saved(path)
    path.with_suffix(".json").write_bytes(content)
    with pytest.raises(StoreError, match=r"vectors.json is damaged: .*; remove both files .* rebuilt"):
        VectorIndex.open(path, DIM, MODEL)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"", lambda raw: raw[:50] + b"\x7f" + raw[51:]])
def test_a_damaged_data_file_is_named_with_the_remedy(path: Path, damage):
    saved(path)
    file = data_file(path)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StoreError, match=f"{file.name} is damaged: .*; remove both files .* rebuilt"):
        VectorIndex.open(path, DIM, MODEL)


def test_a_count_that_disagrees_is_refused(path: Path):
    saved(path)
    manifest = path.with_suffix(".json")
    manifest.write_text(manifest.read_text().replace('"count": 20', '"count": 21'))
    with pytest.raises(StoreError, match="has 20 vectors of 8, expected 21 of 8"):
        VectorIndex.open(path, DIM, MODEL)


def test_removing_an_unknown_id_is_fine(path: Path):
    index = saved(path)
    index.remove([1, 2, 100])
    assert len(index) == 19


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        ([100], unit_vectors(1), r"already in the index: \[100\]"),
        ([1, 1], unit_vectors(2), "ids are repeated"),
        ([1], unit_vectors(2), r"shape \(2, 8\), expected \(1, 8\)"),
        ([1], unit_vectors(1)[:, :4], r"shape \(1, 4\), expected \(1, 8\)"),
        ([1], unit_vectors(1) * np.nan, "not finite"),
    ],
)
def test_wrong_vectors_are_refused_and_change_nothing(path: Path, ids: list[int], vectors, message: str):
    index = saved(path)
    with pytest.raises(ValueError, match=message):
        index.add(np.array(ids), vectors)
    assert index.ids().tolist() == list(range(100, 120))


def test_a_query_of_the_wrong_shape_or_size_is_refused(path: Path):
    index = saved(path)
    with pytest.raises(ValueError, match=r"vector has shape \(4,\), expected \(8,\)"):
        index.search(unit_vectors(1)[0, :4], 1)
    with pytest.raises(ValueError, match="k is 0, allowed is 1 or more"):
        index.search(unit_vectors(1)[0], 0)
