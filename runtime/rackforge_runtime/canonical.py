"""Canonical JSON (RFC 8785) and content digests: the one place that says what the identity of a thing is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rfc8785

DIGEST_RE = re.compile(r"^sha256:[0-9a-f]{64}$")
_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of a JSON value.

    Raises ValueError for what JSON cannot carry (NaN, infinities, integers beyond 2**53, other types).
    """
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise ValueError(f"not canonical JSON: {error}") from error


def digest_bytes(data: bytes) -> str:
    """`sha256:<hex>` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_chunks(chunks: Iterable[bytes]) -> str:
    """`sha256:<hex>` of a stream."""
    h = hashlib.sha256()
    for chunk in chunks:
        h.update(chunk)
    return "sha256:" + h.hexdigest()


def digest_file(path: Path) -> str:
    """`sha256:<hex>` of a file, read in chunks."""
    with path.open("rb") as f:
        return digest_chunks(iter(lambda: f.read(_CHUNK), b""))


def digest_json(value: Any) -> str:
    """Digest of a JSON value: that of its canonical form."""
    return digest_bytes(canonical_json(value))


def check_digest(text: str) -> str:
    """The text itself if it is a digest as we write them; ValueError otherwise."""
    if not DIGEST_RE.match(text):
        raise ValueError(f"not a digest (sha256:<64 hex digits>): {text!r}")
    return text
