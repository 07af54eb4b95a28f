"""Files named by the SHA-256 of their content, written so that a crash leaves all or nothing."""

import hashlib
import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from cake_rag.errors import StoreError


def write_durably(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` in one step: a reader sees the old file or the new one, also after a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(temporary, path)


def publish(temporary: Path, path: Path) -> None:
    """Rename a synced file to its final name and sync the folder."""
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class BlobFolder:
    """The uploaded bytes, one file each, in subfolders of the first two hex digits."""

    def __init__(self, path: Path) -> None:
        """Create the folder if absent.

        Raises:
            OSError: If the folder cannot be created.
        """
        self._path = path
        path.mkdir(exist_ok=True)

    def write(self, sha256: str, data: bytes) -> None:
        """Store ``data``, whose digest is ``sha256``.

        Raises:
            StoreError: If the disk refuses.
        """
        path = self._file(sha256)
        try:
            path.parent.mkdir(exist_ok=True)
            write_durably(path, data)
        except OSError as error:
            raise StoreError(f"cannot write {len(data):,} bytes to {path}: {error.strerror}") from error

    def read(self, sha256: str) -> bytes:
        """Give the bytes with this digest.

        Raises:
            StoreError: If the file is gone or its content is not what was stored.
        """
        path = self._file(sha256)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}; upload the document again") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreError(f"{path} is damaged: its sha256 is not its name; upload the document again")
        return data

    def remove(self, sha256: str) -> None:
        """Remove the bytes with this digest; absent is fine.

        Raises:
            StoreError: If the file is there and cannot be removed.
        """
        path = self._file(sha256)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove {path}: {error.strerror}") from error
        with suppress(OSError):
            path.parent.rmdir()

    def remove_all_except(self, kept: Set[str]) -> None:
        """Remove every file whose name is not in ``kept``, unfinished ones included."""
        for path in self._path.glob("*/*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _file(self, sha256: str) -> Path:
        return self._path / sha256[:2] / sha256
