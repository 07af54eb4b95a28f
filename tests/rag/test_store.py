import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cake_rag.documents import Chunk, Document, DocumentStatus, Page, ParsedDocument
from cake_rag.errors import DocumentNotFoundError, StoreError
from cake_rag.store import DATABASE_NAME, Store, document_id
from cake_rag.store_schema import SCHEMA_VERSION

SECRET = "the marmalade is under the third floorboard"
PARSED = ParsedDocument(SECRET + "\n\ntwo", "text/plain", (Page(1, 0, 45), Page(2, 45, 48)), ("a note",))
CHUNKS = [Chunk(0, 0, 45, SECRET + "\n\n"), Chunk(1, 45, 48, "two")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store")) as opened:
        yield opened


def record(data: bytes, status: DocumentStatus = DocumentStatus.STORED) -> Document:
    return Document(
        id=document_id(data),
        name="Ä name.txt",
        media_type="text/plain",
        size_bytes=len(data),
        num_chars=0,
        num_pages=0,
        status=status,
        created_at="2026-01-02T03:04:05.000+00:00",
        notes=("from the uploader",),
    )


def filled(store: Store, data: bytes = SECRET.encode()) -> str:
    """The id of a document that has everything a document can have."""
    id = store.put_document(record(data), data)[0].id
    store.set_parsed(id, PARSED)
    store.put_chunks(id, CHUNKS)
    store.put_tokens(id, "model-a", [1, 70_000, 2**31 - 1])
    return id


def test_the_id_is_the_prefix_of_the_digest():
    # SHA-256 of "abc": FIPS 180-2, appendix B.1.
    assert document_id(b"abc") == "doc_ba7816bf8f01cfea414140de5dae2223"


def test_a_stored_document_is_found_with_its_bytes(store: Store):
    assert store.put_document(record(b"abc"), b"abc") == (record(b"abc"), True)
    assert store.get(document_id(b"abc")) == record(b"abc")
    assert store.data(document_id(b"abc")) == b"abc"


def test_the_same_bytes_give_the_document_that_exists(store: Store):
    first, _ = store.put_document(record(b"abc"), b"abc")
    store.set_status(first.id, DocumentStatus.READY, num_tokens=3)
    again, created = store.put_document(record(b"abc"), b"abc")
    assert (again.status, again.num_tokens, created) == (DocumentStatus.READY, 3, False)


def test_a_failed_document_may_be_uploaded_again(store: Store):
    id = filled(store)
    store.set_status(id, DocumentStatus.FAILED, error="out of luck")
    again, created = store.put_document(record(SECRET.encode()), SECRET.encode())
    assert created and again == record(SECRET.encode())
    assert (store.text(id), store.chunks(id), store.tokens(id, "model-a")) == ("", [], None)
    assert store.data(id) == SECRET.encode()


def test_an_id_that_is_not_of_the_bytes_is_refused(store: Store):
    with pytest.raises(ValueError, match=r"document id is doc_ba78\w+, the bytes' id is doc_"):
        store.put_document(record(b"abc"), b"abd")


def test_parsed_text_and_pages_come_back_and_the_record_says_so(store: Store):
    id = filled(store)
    assert (store.text(id), tuple(store.pages(id))) == (PARSED.text, PARSED.pages)
    found = store.get(id)
    assert (found.num_chars, found.num_pages, found.num_chunks, found.notes) == (48, 2, 2, ("a note",))


def test_record_and_text_can_be_stored_in_one_step(store: Store):
    stored, created = store.put_document(record(b"abc"), b"abc", PARSED)
    assert created and stored.num_chars == 48
    assert store.text(stored.id) == PARSED.text


def test_parsing_again_removes_what_came_from_the_earlier_text(store: Store):
    id = filled(store)
    store.set_parsed(id, ParsedDocument("new", "text/markdown", (Page(1, 0, 3),)))
    assert (store.text(id), store.chunks(id), store.tokens(id, "model-a")) == ("new", [], None)
    assert (store.get(id).num_chunks, store.get(id).media_type) == (0, "text/markdown")


def test_chunks_come_back_in_order_and_by_vector_id(store: Store):
    id = filled(store)
    assert [chunk for _, chunk in store.chunks(id)] == CHUNKS
    for vector_id, chunk in store.chunks(id):
        assert store.chunk(vector_id) == (id, chunk)


def test_a_vector_id_is_never_used_twice(store: Store):
    first = filled(store)
    old = {vector_id for vector_id, _ in store.chunks(first)}
    store.delete(first)
    assert old.isdisjoint(store.put_chunks(filled(store), CHUNKS))


def test_blank_chunks_have_no_vector_id_to_search(store: Store):
    id = filled(store)
    ids = store.put_chunks(id, [Chunk(0, 0, 1, "a"), Chunk(1, 1, 3, " \u3000"), Chunk(2, 3, 4, "b")])
    assert store.vector_ids([id]) == [ids[0], ids[2]] == store.vector_ids()


def test_vector_ids_are_of_the_named_documents_alone(store: Store):
    first, second = filled(store, b"1"), filled(store, b"2")
    assert store.vector_ids([first]) == [vector_id for vector_id, _ in store.chunks(first)]
    assert set(store.vector_ids([first, second, first])) == set(store.vector_ids())
    assert store.vector_ids([]) == []


def test_token_ids_are_kept_for_each_model(store: Store):
    id = filled(store)
    store.put_tokens(id, "model-b", [])
    assert store.tokens(id, "model-a") == [1, 70_000, 2**31 - 1]
    assert store.tokens(id, "model-b") == []
    assert store.tokens(id, "model-c") is None


def test_status_keeps_the_token_count_unless_told(store: Store):
    id = filled(store)
    store.set_status(id, DocumentStatus.INDEXED, num_tokens=7)
    store.set_status(id, DocumentStatus.FAILED, error="why")
    assert (store.get(id).num_tokens, store.get(id).error) == (7, "why")
    store.set_status(id, DocumentStatus.READY)
    assert store.get(id).error is None


def test_documents_are_listed_newest_first_in_pages(store: Store):
    ids = [filled(store, bytes([number])) for number in range(5)]
    assert [document.id for document in store.list(2)] == [ids[4], ids[3]]
    assert [document.id for document in store.list(2, after=ids[3])] == [ids[2], ids[1]]
    assert [document.id for document in store.list(9, after=ids[0])] == []


def test_a_list_of_less_than_one_is_refused(store: Store):
    with pytest.raises(ValueError, match="limit is 0, allowed is 1 or more"):
        store.list(0)


def test_unfinished_documents_are_those_on_their_way_oldest_first(store: Store):
    ids = [filled(store, bytes([number])) for number in range(len(DocumentStatus))]
    for id, status in zip(ids, DocumentStatus, strict=True):
        store.set_status(id, status)
    assert store.unfinished() == ids[:3]


def test_deleting_gives_the_vector_ids_and_removes_everything_of_the_document_alone(store: Store, tmp_path: Path):
    gone, kept = filled(store), filled(store, b"other")
    vector_ids = [vector_id for vector_id, _ in store.chunks(gone)]
    assert store.delete(gone) == vector_ids
    assert [document.id for document in store.list(9)] == [kept]
    assert (store.text(kept), store.data(kept)) == (PARSED.text, b"other")
    with sqlite3.connect(tmp_path / "store" / DATABASE_NAME) as connection:
        for table in ("texts", "pages", "chunks", "tokens"):
            rows = connection.execute(f"SELECT DISTINCT document_id FROM {table}").fetchall()
            assert rows == [(kept,)]
    connection.close()


def test_after_deleting_no_file_holds_the_text(store: Store, tmp_path: Path):
    store.delete(filled(store))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and [path.name for path in files if b"marmalade" in path.read_bytes()] == []


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("doc_x"),
        lambda store: store.text("doc_x"),
        lambda store: store.data("doc_x"),
        lambda store: store.pages("doc_x"),
        lambda store: store.chunks("doc_x"),
        lambda store: store.delete("doc_x"),
        lambda store: store.tokens("doc_x", "m"),
        lambda store: store.put_tokens("doc_x", "m", [1]),
        lambda store: store.put_chunks("doc_x", CHUNKS),
        lambda store: store.set_parsed("doc_x", PARSED),
        lambda store: store.set_status("doc_x", DocumentStatus.READY),
        lambda store: store.list(1, after="doc_x"),
        lambda store: store.vector_ids(["doc_x"]),
    ],
)
def test_an_unknown_id_is_not_found(store: Store, call):
    with pytest.raises(DocumentNotFoundError, match="no document has the id doc_x"):
        call(store)


def test_an_unknown_vector_id_is_not_found(store: Store):
    with pytest.raises(DocumentNotFoundError, match="no chunk has the vector id 7"):
        store.chunk(7)


def test_everything_is_there_after_a_restart(tmp_path: Path):
    with closing(Store(tmp_path)) as store:
        id = filled(store)
        before = store.get(id)
    with closing(Store(tmp_path)) as store:
        assert store.get(id) == before
        assert (store.text(id), store.data(id)) == (PARSED.text, SECRET.encode())
        assert [chunk for _, chunk in store.chunks(id)] == CHUNKS
        assert store.tokens(id, "model-a") == [1, 70_000, 2**31 - 1]


def test_a_killed_process_loses_no_write_that_returned(tmp_path: Path):
    script = f"""
import os, signal
from pathlib import Path
from cake_rag.documents import Document, DocumentStatus
from cake_rag.store import Store, document_id
store = Store(Path({str(tmp_path)!r}))
for number in range(3):
    data = bytes([number])
    store.put_document(Document(document_id(data), "n", "t", 1, 0, 0, DocumentStatus.STORED, "now"), data)
store._connection.execute("BEGIN IMMEDIATE")
store._connection.execute("DELETE FROM documents")
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", script], env=environment, timeout=60)
    assert result.returncode == -signal.SIGKILL
    with closing(Store(tmp_path)) as store:
        assert sorted(store.data(document.id) for document in store.list(9)) == [b"\0", b"\1", b"\2"]


def test_bytes_without_a_record_are_removed_when_the_store_opens(tmp_path: Path):
    with closing(Store(tmp_path)) as store:
        id = filled(store)
    folder = tmp_path / "blobs" / "ab"
    folder.mkdir()
    (folder / ("ab" * 32)).write_bytes(b"left by a crash")
    (folder / f".{'ab' * 32}.tmp").write_bytes(b"half")
    with closing(Store(tmp_path)) as store:
        assert list(folder.iterdir()) == []
        assert store.data(id) == SECRET.encode()


def test_damaged_bytes_are_found_out(store: Store, tmp_path: Path):
    id = filled(store)
    sha256 = hashlib.sha256(SECRET.encode()).hexdigest()
    (tmp_path / "store" / "blobs" / sha256[:2] / sha256).write_bytes(b"other")
    with pytest.raises(StoreError, match=f"{sha256} is damaged: its sha256 is not its name; upload"):
        store.data(id)


def test_missing_bytes_are_named(store: Store, tmp_path: Path):
    id = filled(store)
    sha256 = hashlib.sha256(SECRET.encode()).hexdigest()
    (tmp_path / "store" / "blobs" / sha256[:2] / sha256).unlink()
    with pytest.raises(StoreError, match=f"cannot read .*{sha256}: No such file.*upload the document again"):
        store.data(id)


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path):
    Store(tmp_path).close()
    connection = sqlite3.connect(tmp_path / DATABASE_NAME)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreError, match=f"schema version {SCHEMA_VERSION + 1}, .* up to {SCHEMA_VERSION}; upgrade"):
        Store(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / DATABASE_NAME).write_bytes(b"not a database, just text " * 100)
    with pytest.raises(StoreError, match=f"{DATABASE_NAME} failed: file is not a database; .* backup"):
        Store(tmp_path)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot use .*file: File exists"):
        Store(tmp_path / "file")


def test_a_write_that_fails_halfway_changes_nothing(store: Store):
    id = filled(store)
    before = store.chunks(id)
    with pytest.raises(StoreError, match="UNIQUE constraint failed"):
        store.put_chunks(id, [Chunk(0, 0, 1, "a"), Chunk(0, 1, 2, "b")])
    assert store.chunks(id) == before


def test_threads_upload_the_same_bytes_once(store: Store):
    created: list[bool] = []
    threads = [
        threading.Thread(target=lambda: created.append(store.put_document(record(b"abc"), b"abc")[1])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [False] * 7 + [True]
