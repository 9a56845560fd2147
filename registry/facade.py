"""What the other apps may ask of the registry: blobs, signatures, versions."""

from __future__ import annotations

from typing import Any, BinaryIO

from django.conf import settings

from rackforge_runtime.cache import BlobError, BlobStore
from rackforge_runtime.canonical import digest_bytes
from rackforge_runtime.signing import VERDICT, SigningKey

__all__ = ["BlobError", "open_blob", "put_blob", "read_blob", "sign_verdict", "signing_key"]


def _store() -> BlobStore:
    return BlobStore(settings.CONFIG.home)


def put_blob(data: bytes) -> str:
    """Keep bytes under their digest; the same bytes twice are one file."""
    digest = digest_bytes(data)
    store = _store()
    if not store.has(digest):
        store.put(digest, [data], size=len(data))
    return digest


def read_blob(digest: str) -> bytes:
    """The bytes of a digest, verified. BlobError when missing or damaged."""
    return _store().read(digest)


def open_blob(digest: str) -> BinaryIO:
    """A blob's file to stream from, not hashed again. BlobError when missing."""
    path = _store().path(digest)
    if not path.is_file():
        raise BlobError("missing", f"{digest}: there is no such blob")
    return path.open("rb")


def signing_key() -> SigningKey:
    """This installation's private key, made on first use; it lies outside of the database."""
    return SigningKey.load_or_create(settings.CONFIG.keys / "registry.pem")


def sign_verdict(document: dict[str, Any], subject_digest: str) -> dict[str, Any]:
    """A signed statement that carries a judge's document about a candidate."""
    return signing_key().sign(
        subject_name=f"verdict/{document.get('task', '')}",
        subject_digest=subject_digest,
        predicate_type=VERDICT,
        predicate=document,
    )
