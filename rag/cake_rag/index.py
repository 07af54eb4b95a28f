"""Vectors on disk and their nearest neighbours by inner product, exact."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import faiss
import numpy as np

from cake_rag.blobs import publish, write_durably
from cake_rag.errors import StoreError

logger = logging.getLogger(__name__)

FORMAT = 1
_REMEDY = "remove both files and start again: the index is rebuilt from the stored documents"


class Hit(NamedTuple):
    """A vector's id and its inner product with the query; for unit vectors the cosine, -1..1."""

    id: int
    score: float


class VectorIndex:
    """Vectors by id. Safe to share between threads; changes are on disk after ``save``.

    A save writes a data file named by its content, then the manifest that names it. The manifest's rename is
    the moment of change, so after a crash the last whole save is found. Nothing is pickled.
    """

    def __init__(self, path: Path, dim: int, model_id: str) -> None:
        """Make an empty index; ``open`` reads the one on disk."""
        self.path = path
        self.dim = dim
        self.model_id = model_id
        self._lock = Lock()
        self._faiss = faiss.IndexIDMap2(faiss.IndexFlatIP(dim))
        self._ids: set[int] = set()

    @classmethod
    def open(cls, path: Path, dim: int, model_id: str) -> "VectorIndex":
        """Read the index at ``path``, or give an empty one if there is none.

        Args:
            path: Base name, as in ``vectors.faiss``: beside it lie the manifest ``vectors.json`` and the data
                ``vectors-<digest>.faiss``.
            dim: Components of each vector.
            model_id: What made the vectors; vectors of another model are refused.

        Raises:
            StoreError: If the files are damaged or were made for another model, dimension or format.
        """
        index = cls(path, dim, model_id)
        try:
            manifest = json.loads(index._manifest.read_bytes())
            data_path = path.with_name(Path(manifest["file"]).name)
            expected = {"format": FORMAT, "model_id": model_id, "dim": dim}
            for key, value in expected.items():
                if manifest[key] != value:
                    raise StoreError(
                        f"index {index._manifest} has {key} {manifest[key]!r}, expected {value!r}; {_REMEDY}"
                    )
            if not data_path.exists():
                logger.warning("index=%s state=missing action=rebuild", data_path)
                return index
            index._load(data_path, manifest["sha256"], manifest["count"])
        except FileNotFoundError:
            return index
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"index manifest {index._manifest} is damaged: {error}; {_REMEDY}") from error
        except OSError as error:
            raise StoreError(f"cannot read index {path}: {error.strerror}; {_REMEDY}") from error
        return index

    def _load(self, path: Path, sha256: str, count: int) -> None:
        if _sha256(path) != sha256:
            raise StoreError(f"index {path} is damaged: its sha256 is not that of its manifest; {_REMEDY}")
        try:
            loaded = faiss.read_index(str(path))
        except RuntimeError as error:
            raise StoreError(f"index {path} cannot be read; {_REMEDY}") from error
        if loaded.d != self.dim or loaded.ntotal != count:
            raise StoreError(
                f"index {path} has {loaded.ntotal} vectors of {loaded.d}, expected {count} of {self.dim}; {_REMEDY}"
            )
        self._faiss = loaded
        # The stubs know the base class alone; the digest says that this is the IndexIDMap2 of a save.
        id_map = loaded.id_map  # pyright: ignore[reportAttributeAccessIssue]
        self._ids = set(faiss.vector_to_array(id_map).tolist())

    def __len__(self) -> int:
        """Give the number of vectors."""
        return len(self._ids)

    def ids(self) -> np.ndarray:
        """Give all ids, ascending, [n] int64."""
        with self._lock:
            return np.array(sorted(self._ids), dtype=np.int64)

    def add(self, ids: np.ndarray, vectors: np.ndarray) -> None:
        """Add vectors under new ids.

        Args:
            ids: [n] int64, distinct and not in the index.
            vectors: [n, dim] float32, finite.

        Raises:
            ValueError: If the shapes, ids or numbers are not so.
        """
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if ids.ndim != 1 or vectors.shape != (len(ids), self.dim):
            raise ValueError(f"vectors have shape {vectors.shape}, expected ({ids.size}, {self.dim})")
        if not np.isfinite(vectors).all():
            raise ValueError("vectors hold numbers that are not finite")
        new = set(ids.tolist())
        with self._lock:
            if len(new) < len(ids) or new & self._ids:
                raise ValueError(f"ids are repeated or already in the index: {sorted(new & self._ids)[:5]}")
            if new:
                self._faiss.add_with_ids(vectors, ids)
                self._ids |= new

    def remove(self, ids: Sequence[int] | np.ndarray) -> None:
        """Remove the vectors with these ids; an unknown id is fine."""
        with self._lock:
            known = self._ids.intersection(int(id) for id in ids)
            if known:
                self._faiss.remove_ids(faiss.IDSelectorBatch(np.array(sorted(known), dtype=np.int64)))
                self._ids -= known

    def search(self, vector: np.ndarray, k: int, allowed_ids: Sequence[int] | np.ndarray | None = None) -> list[Hit]:
        """Give the ``k`` vectors with the greatest inner product, best first; fewer if there are fewer.

        Args:
            vector: [dim] float32.
            k: >= 1.
            allowed_ids: If given, only these compete.

        Raises:
            ValueError: If the shape or ``k`` is wrong.
        """
        query = np.ascontiguousarray(vector, dtype=np.float32)
        if query.shape != (self.dim,):
            raise ValueError(f"vector has shape {query.shape}, expected ({self.dim},)")
        if k < 1:
            raise ValueError(f"k is {k}, allowed is 1 or more")
        with self._lock:
            if allowed_ids is None:
                num_results, parameters = min(k, len(self._ids)), None
            else:
                allowed = np.array(sorted(self._ids.intersection(map(int, allowed_ids))), dtype=np.int64)
                num_results = min(k, len(allowed))
                parameters = faiss.SearchParameters()
                parameters.sel = faiss.IDSelectorBatch(allowed)
            if num_results == 0:
                return []
            scores, found = self._faiss.search(query[None], num_results, params=parameters)
        pairs = zip(found[0].tolist(), scores[0].tolist(), strict=True)
        return [Hit(id, score) for id, score in pairs if id >= 0]

    def save(self) -> None:
        """Write all vectors to disk in one step.

        Raises:
            StoreError: If the disk refuses; the last save stays in place.
        """
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                count = len(self._ids)
                faiss.write_index(self._faiss, str(temporary))
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                sha256 = _sha256(temporary)
                data_path = self.path.with_name(f"{self.path.stem}-{sha256[:16]}{self.path.suffix}")
                publish(temporary, data_path)
                manifest = {
                    "format": FORMAT,
                    "model_id": self.model_id,
                    "dim": self.dim,
                    "count": count,
                    "file": data_path.name,
                    "sha256": sha256,
                }
                write_durably(self._manifest, json.dumps(manifest, indent=2).encode())
                for other in self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}"):
                    if other != data_path:
                        other.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            raise StoreError(f"cannot write index {self.path}: {error}") from error

    @property
    def _manifest(self) -> Path:
        return self.path.with_suffix(".json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
