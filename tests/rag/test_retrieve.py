from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cake_rag.documents import Chunk, Document, DocumentStatus
from cake_rag.embed import Embedder
from cake_rag.errors import DocumentNotFoundError, QuestionRejectedError, StoreError
from cake_rag.index import VectorIndex
from cake_rag.ingest import parse
from cake_rag.retrieve import Retriever
from cake_rag.store import Store, document_id
from cake_testing.pdfs import pdf

WHALES = b"Whales are mammals that live in the sea.\n\nThe blue whale is the largest animal that ever lived."
MONEY = b"The central bank raised interest rates.\n\nInflation fell to two percent in autumn."


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as opened:
        yield opened


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.faiss"


@pytest.fixture
def open_retriever(store: Store, index_path: Path, embedder: Embedder):
    return lambda: Retriever(store, VectorIndex.open(index_path, embedder.dim, embedder.model_id), embedder)


@pytest.fixture
def retriever(open_retriever) -> Retriever:
    return open_retriever()


def put(store: Store, data: bytes, name: str = "a.txt") -> str:
    parsed = parse(data, name)
    record = Document(document_id(data), name, parsed.media_type, len(data), 0, 0, DocumentStatus.STORED, "2026-01-02")
    return store.put_document(record, data, parsed)[0].id


def test_the_passage_that_answers_comes_first_with_its_place(store: Store, retriever: Retriever):
    whales, money = put(store, WHALES, "sea.txt"), put(store, MONEY)
    assert (retriever.index_document(whales), retriever.index_document(money)) == (1, 1)
    first, second = retriever.search("Which animal is the biggest?", k=5)
    assert (first.document_id, first.document_name, first.page) == (whales, "sea.txt", 1)
    assert store.text(whales)[first.start : first.end] == first.text
    assert 1.0 >= first.score > second.score >= -1.0


def test_a_passage_names_its_page(store: Store, retriever: Retriever):
    id = put(store, pdf(["Whales are mammals in the sea.", "", "The central bank raised interest rates."]), "a.pdf")
    retriever.index_document(id)
    passage = retriever.search("monetary policy", k=1)[0]
    assert (passage.page, passage.text) == (3, "The central bank raised interest rates.")


def test_only_the_named_documents_are_searched(store: Store, retriever: Retriever):
    whales, money = put(store, WHALES), put(store, MONEY)
    retriever.index_document(whales)
    retriever.index_document(money)
    assert {passage.document_id for passage in retriever.search("whales", document_ids=[money])} == {money}
    assert retriever.search("whales", document_ids=[]) == []


def test_indexing_twice_changes_nothing(store: Store, retriever: Retriever):
    id = put(store, WHALES)
    retriever.index_document(id)
    retriever.index_document(id)
    assert len(retriever.search("whales")) == 1


def test_a_document_that_is_chunked_again_leaves_no_stale_vector(
    store: Store, retriever: Retriever, embedder: Embedder, index_path: Path
):
    id = put(store, WHALES)
    retriever.index_document(id)
    ids = store.put_chunks(id, [Chunk(0, 0, 42, WHALES.decode()[:42]), Chunk(1, 42, len(WHALES), WHALES.decode()[42:])])
    assert retriever.index_document(id) == 2
    assert VectorIndex.open(index_path, embedder.dim, embedder.model_id).ids().tolist() == ids


def test_a_blank_page_has_no_vector_and_is_never_a_passage(store: Store, retriever: Retriever):
    id = put(store, WHALES)
    store.put_chunks(id, [Chunk(0, 0, 40, WHALES.decode()[:40]), Chunk(1, 40, 42, "\n\n")])
    assert retriever.index_document(id) == 2
    assert len(retriever.search("anything")) == 1


def test_a_removed_document_is_gone_from_store_and_index_also_after_a_restart(
    store: Store, retriever: Retriever, open_retriever, index_path: Path, embedder: Embedder
):
    whales, money = put(store, WHALES), put(store, MONEY)
    retriever.index_document(whales)
    retriever.index_document(money)
    retriever.remove_document(whales)
    with pytest.raises(DocumentNotFoundError):
        store.get(whales)
    on_disk = VectorIndex.open(index_path, embedder.dim, embedder.model_id)
    assert on_disk.ids().tolist() == store.vector_ids([money])
    for searched in (retriever, open_retriever()):
        assert [passage.document_id for passage in searched.search("whales")] == [money]


def test_the_index_is_there_after_a_restart_without_embedding(
    store: Store, retriever: Retriever, open_retriever, monkeypatch: pytest.MonkeyPatch
):
    retriever.index_document(put(store, WHALES))
    before = retriever.search("whales")
    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "embed", lambda self, texts: pytest.fail("embedded again"))
        reopened = open_retriever()
    assert reopened.search("whales") == before


def test_a_lost_index_is_rebuilt_from_the_store(store: Store, retriever: Retriever, open_retriever, index_path: Path):
    retriever.index_document(put(store, WHALES))
    before = retriever.search("whales")
    for file in index_path.parent.glob("vectors*"):
        file.unlink()
    assert open_retriever().search("whales") == before


def test_chunks_that_a_crash_left_without_vectors_are_embedded(store: Store, retriever: Retriever, open_retriever):
    retriever.index_document(put(store, WHALES))
    store.put_chunks(put(store, MONEY), [Chunk(0, 0, len(MONEY), MONEY.decode())])
    assert len(open_retriever().search("money")) == 2


def test_vectors_that_a_crash_left_without_chunks_are_dropped(
    store: Store, retriever: Retriever, open_retriever, index_path: Path, embedder: Embedder
):
    id = put(store, WHALES)
    retriever.index_document(id)
    store.delete(id)
    assert retriever.search("whales") == []
    open_retriever()
    assert len(VectorIndex.open(index_path, embedder.dim, embedder.model_id)) == 0


def test_a_document_deleted_while_it_is_embedded_leaves_no_vector(
    store: Store, retriever: Retriever, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
):
    id = put(store, WHALES)
    embed = embedder.embed

    def embed_while_deleted(texts: list[str]) -> np.ndarray:
        retriever.remove_document(id)
        return embed(texts)

    monkeypatch.setattr(embedder, "embed", embed_while_deleted)
    with pytest.raises(DocumentNotFoundError):
        retriever.index_document(id)
    monkeypatch.undo()
    assert retriever.search("whales") == []


def test_an_index_of_another_model_is_refused(store: Store, index_path: Path, embedder: Embedder):
    with pytest.raises(StoreError, match="is of model-x with 384 components, the embedder is all-MiniLM"):
        Retriever(store, VectorIndex(index_path, 384, "model-x"), embedder)


@pytest.mark.parametrize("question", ["", " \n\t"])
def test_a_blank_question_is_refused(retriever: Retriever, question: str):
    with pytest.raises(QuestionRejectedError, match="the question has no visible character"):
        retriever.search(question)


def test_less_than_one_passage_is_refused(retriever: Retriever):
    with pytest.raises(ValueError, match="k is 0, allowed is 1 or more"):
        retriever.search("whales", k=0)


def test_an_unknown_document_is_not_found(retriever: Retriever):
    for call in (retriever.index_document, retriever.remove_document):
        with pytest.raises(DocumentNotFoundError, match="doc_x"):
            call("doc_x")
    with pytest.raises(DocumentNotFoundError, match="doc_x"):
        retriever.search("whales", document_ids=["doc_x"])
