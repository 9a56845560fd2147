"""Where blobs lie: the file system by default, any Django storage (S3 through django-storages) by setting.

Settings' STORAGES may name a storage "blobs"; without one they are files below the installation's home.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

from django.conf import settings
from django.core.files import File
from django.core.files.storage import InvalidStorageError, Storage, storages

from rackforge_runtime.cache import BlobError, BlobStore
from rackforge_runtime.canonical import check_digest


class Blobs(Protocol):
    """A content-addressed store. Whatever has a digest's name is whole and was verified when written."""

    def put(self, digest: str, chunks: Iterable[bytes], *, size: int | None = None) -> int:
        """Store a stream, verified while it is written; its size. BlobError, and nothing is left, where it is not
        what the digest says."""

    def has(self, digest: str) -> bool: ...

    def open(self, digest: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """For reading. BlobError "missing"."""

    def delete(self, digest: str) -> None: ...


class FileBlobs:
    """Files below a folder."""

    def __init__(self, root: Path) -> None:
        self._store = BlobStore(root)

    def put(self, digest: str, chunks: Iterable[bytes], *, size: int | None = None) -> int:
        return self._store.put(digest, chunks, size=size).stat().st_size

    def has(self, digest: str) -> bool:
        return self._store.has(digest)

    @contextlib.contextmanager
    def open(self, digest: str) -> Iterator[IO[bytes]]:
        try:
            f = self._store.path(digest).open("rb")
        except FileNotFoundError:
            raise BlobError("missing", f"{digest}: not in the blob store") from None
        with f:
            yield f

    def delete(self, digest: str) -> None:
        self._store.path(digest).unlink(missing_ok=True)


class StorageBlobs:
    """Objects of a Django storage. A blob is verified in a local file first: an upload cannot be taken back."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @staticmethod
    def _name(digest: str) -> str:
        hex_ = check_digest(digest).removeprefix("sha256:")
        return f"sha256/{hex_[:2]}/{hex_}"

    def put(self, digest: str, chunks: Iterable[bytes], *, size: int | None = None) -> int:
        with tempfile.TemporaryDirectory(prefix="rackforge-blob-") as folder:
            path = BlobStore(Path(folder)).put(digest, chunks, size=size)
            found = path.stat().st_size
            if not self.has(digest):
                with path.open("rb") as f:
                    saved = self._storage.save(self._name(digest), File(f))
                if saved != self._name(digest):  # somebody was quicker and the storage chose another name
                    self._storage.delete(saved)
            return found

    def has(self, digest: str) -> bool:
        return self._storage.exists(self._name(digest))

    @contextlib.contextmanager
    def open(self, digest: str) -> Iterator[IO[bytes]]:
        try:
            f = self._storage.open(self._name(digest), "rb")
        except FileNotFoundError:
            raise BlobError("missing", f"{digest}: not in the blob store") from None
        with f:
            yield f.file if hasattr(f, "file") and f.file is not None else f  # type: ignore[misc]

    def delete(self, digest: str) -> None:
        self._storage.delete(self._name(digest))


def blob_store() -> Blobs:
    """The configured store."""
    try:
        return StorageBlobs(storages["blobs"])
    except InvalidStorageError:
        return FileBlobs(settings.CONFIG.blobs)
