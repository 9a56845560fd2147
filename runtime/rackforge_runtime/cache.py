"""The host's store of blobs and materialised locks: safe under many processes and sudden death."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rackforge_runtime.canonical import check_digest, digest_file

_CHUNK = 1 << 20
_STALE_S = 24 * 3600.0
ENV_CACHE = "RACKFORGE_CACHE"


class BlobError(RuntimeError):
    """A blob that is missing, cut short or not what its name says. `reason` is one word for machines."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def default_cache() -> Path:
    """$RACKFORGE_CACHE, else rackforge in the user's cache folder."""
    named = os.environ.get(ENV_CACHE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rackforge"


@dataclass(frozen=True, slots=True)
class BlobStore:
    """Files named by the SHA-256 of their content: written beside, hashed, synced, renamed into place.

    Whatever has a blob's name is whole: a writer that dies leaves only a temporary file, which the next
    `sweep` removes. Blobs are read-only.
    """

    root: Path

    def path(self, digest: str) -> Path:
        return self.root / "blobs" / "sha256" / check_digest(digest).removeprefix("sha256:")

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def put(self, digest: str, chunks: Iterable[bytes], *, size: int | None = None) -> Path:
        """Store a stream under the digest it must have; the same blob twice is one file.

        Raises BlobError ("truncated", "too_long", "digest") and leaves nothing behind; OSError for a full disk.
        """
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=".tmp-", dir=target.parent)
        try:
            h, got = hashlib.sha256(), 0
            with os.fdopen(fd, "wb") as f:
                for chunk in chunks:
                    got += len(chunk)
                    if size is not None and got > size:
                        raise BlobError("too_long", f"{digest}: more than the {size} bytes announced")
                    h.update(chunk)
                    f.write(chunk)
                if size is not None and got < size:
                    raise BlobError("truncated", f"{digest}: {got} of {size} bytes")
                if "sha256:" + h.hexdigest() != digest:
                    raise BlobError("digest", f"{digest}: the content is sha256:{h.hexdigest()}")
                f.flush()
                os.fsync(f.fileno())
            Path(name).chmod(0o444)
            Path(name).replace(target)
            _sync_folder(target.parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(name).unlink()
            raise
        return target

    def verified(self, digest: str) -> Path:
        """The blob's file, hashed again. BlobError "missing" or "digest"; a damaged one is set aside."""
        path = self.path(digest)
        try:
            found = digest_file(path)
        except FileNotFoundError:
            raise BlobError("missing", f"{digest}: not in {self.root}") from None
        if found != digest:
            with contextlib.suppress(FileNotFoundError):
                path.replace(path.with_name(f".damaged-{path.name[:16]}-{os.getpid()}"))
            raise BlobError("digest", f"{digest}: damaged on disk (now {found}); set aside")
        return path

    def read(self, digest: str) -> bytes:
        return self.verified(digest).read_bytes()

    def sweep(self, *, older_than_s: float = _STALE_S) -> int:
        """Remove what dead writers left; how many files. Fresh ones may belong to a living writer."""
        removed = 0
        for pattern in ("blobs/sha256/.tmp-*", "blobs/sha256/.damaged-*", "locks/.tmp-*"):
            for path in self.root.glob(pattern):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime >= older_than_s:
                        remove_tree(path) if path.is_dir() else path.unlink()
                        removed += 1
        return removed


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that readers see the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def read_json(path: Path) -> Any:
    """The JSON value of a file, None where there is none or it is unreadable."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def place_file(source: Path, target: Path) -> None:
    """A read-only file with a blob's content: another name for it where the file system can, else a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(0o444)


def make_read_only(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.chmod(0o555)


def remove_tree(folder: Path) -> None:
    """Remove a folder whose parts are read-only."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o700)
    shutil.rmtree(folder)


def chunks_of(f: BinaryIO) -> Iterator[bytes]:
    while chunk := f.read(_CHUNK):
        yield chunk


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
