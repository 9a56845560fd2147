"""Lock folders made by hand or by a campaign: a signed lock with its blobs beside it, no registry needed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackforge_runtime import signing
from rackforge_runtime.cache import BlobStore, write_atomic
from rackforge_runtime.canonical import canonical_json, digest_bytes, digest_json
from rackforge_runtime.locks import LOCAL, Lock, LockEntry, read_time
from rackforge_runtime.manifests import ARTIFACT_TYPE, SCHEMA_VERSION, Manifest
from rackforge_runtime.plan import LOCKFILE

# Local locks do not expire and say no time of making, so that the same kernels give the same lock, byte for
# byte: a server's compile cache is named after it.
_EPOCH: dt.datetime = read_time("2000-01-01T00:00:00Z")
KEYS = "keys"


@dataclass(frozen=True, slots=True)
class Staged:
    """A lock folder. `environment` is what a server's environment needs to trust it."""

    lock: Path
    digest: str
    manifest_digests: tuple[str, ...]
    keys: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"RACKFORGE_KEYS": str(self.keys)}


def make_manifest(
    *,
    name: str,
    version: str,
    kind: str,
    op: str,
    abi: str,
    variants: Sequence[Mapping[str, Any]],
    license_: str = "Apache-2.0",
    definition: str | None = None,
    evidence: Sequence[Mapping[str, Any]] = (),
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A manifest as JSON value, its structure checked (ManifestError)."""
    value: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "artifactType": ARTIFACT_TYPE,
        "kind": kind,
        "name": name,
        "version": version,
        "target": {"op": op, "abi": abi},
        "variants": [dict(v) for v in variants],
        "definition": definition,
        "license": license_,
        "evidence": [dict(e) for e in evidence],
        "provenance": dict(provenance or {}),
    }
    Manifest.parse(value)
    return value


def stage(
    folder: Path,
    *,
    key: signing.SigningKey,
    kernels: Sequence[tuple[Mapping[str, Any], str]],
    blobs: Mapping[str, bytes | Path],
) -> Staged:
    """Write a lock folder for (manifest, variant id) pairs, better ranked first; it is the same when repeated.

    `blobs` gives every file of the chosen variants by digest; KeyError names one that is missing.
    """
    store = BlobStore(folder)
    entries = []
    for value, variant_id in kernels:
        manifest = Manifest.parse(value)
        variant = manifest.variant(variant_id)
        body = canonical_json(dict(value))
        envelope = canonical_json(sign_manifest(manifest, key))
        for digest, data in ((digest_bytes(body), body), (digest_bytes(envelope), envelope)):
            store.put(digest, [data])
        for f in variant.files:
            source = blobs[f.digest]
            store.put(f.digest, [source if isinstance(source, bytes) else source.read_bytes()], size=f.size)
        entries.append(
            LockEntry(
                manifest.kind,
                manifest.target,
                manifest.name,
                manifest.version,
                digest_bytes(body),
                digest_bytes(envelope),
                variant.id,
                variant.files,
            )
        )
    lock = Lock(
        generation=0,
        issued=_EPOCH,
        expires=None,
        source=LOCAL,
        channel=LOCAL,
        facts_digest=digest_json({}),
        entries=tuple(entries),
    )
    signing.save_public_key(key.public, folder / KEYS)
    path = folder / LOCKFILE
    write_atomic(path, canonical_json(lock.sign(key)))
    return Staged(path, lock.digest, tuple(e.manifest_digest for e in entries), folder / KEYS)


def sign_manifest(manifest: Manifest, key: signing.SigningKey) -> dict[str, Any]:
    """Detached signature: an envelope whose subject is the manifest's digest."""
    return key.sign(
        subject_name=f"{manifest.name}@{manifest.version}",
        subject_digest=manifest.digest,
        predicate_type=signing.MANIFEST,
        predicate={"name": manifest.name, "version": manifest.version, "kind": manifest.kind},
    )
