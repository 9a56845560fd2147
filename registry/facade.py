"""What other apps may use of the registry: functions over plain values and frozen dataclasses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rackforge_runtime import signing
from rackforge_runtime.canonical import digest_bytes
from rackforge_runtime.manifests import Manifest, semver_key
from rackforge_runtime.staging import Staged
from rackforge_runtime.staging import stage as stage_folder
from registry import keys, queries, services
from registry.blobs import blob_store
from registry.models import Kernel, Version

signing_key = keys.signing_key
public_keys_folder = keys.public_folder


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version in the registry."""

    name: str
    version: str
    digest: str
    created: bool


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A version as other apps show it."""

    name: str
    version: str
    digest: str
    kind: str
    op: str
    published_at: str
    published_by: str
    yanked: bool
    revoked: bool
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResolvedLock:
    """A signed lock: `envelope` is what a host gets."""

    digest: str
    generation: int
    envelope: Mapping[str, Any]
    kernels: tuple[str, ...]  # namespace/kernel@version#variant


def put_blob(data: bytes) -> str:
    """Keep some bytes; their digest. The same bytes again are one blob."""
    return services.put_blob(digest=digest_bytes(data), chunks=[data], size=len(data), kept=True).digest


def put_file(path: Path, digest: str) -> str:
    """Keep a file that must have this digest, streamed. BlobError where it has another."""
    with path.open("rb") as f:
        chunks = iter(lambda: f.read(1 << 20), b"")
        return services.put_blob(digest=digest, chunks=chunks, kept=True).digest


def read_blob(digest: str) -> bytes:
    """A blob's bytes. BlobError "missing"."""
    with blob_store().open(digest) as f:
        return f.read()


@contextlib.contextmanager
def open_blob(digest: str) -> Iterator[IO[bytes]]:
    """A blob for reading in pieces. BlobError "missing"."""
    with blob_store().open(digest) as f:
        yield f


def has_blob(digest: str) -> bool:
    return blob_store().has(digest)


def sign_verdict(document: Mapping[str, Any], candidate_digest: str) -> dict[str, Any]:
    """A judge's document as a signed statement about its candidate (a DSSE envelope, JSON value)."""
    return signing_key().sign(
        subject_name="candidate",
        subject_digest=candidate_digest,
        predicate_type=signing.VERDICT,
        predicate=document,
    )


def verify_verdict(envelope: Mapping[str, Any], candidate_digest: str) -> dict[str, Any]:
    """The document of a signed verdict. SignatureError where it is not ours or of another candidate."""
    statement = signing.verify(
        envelope, keys.trusted_keys(), predicate_type=signing.VERDICT, subject_digest=candidate_digest
    )
    return dict(statement.predicate)


def next_version(manifest: Mapping[str, Any]) -> str:
    """The version a manifest should get by what it changes against the newest release.

    MAJOR: another operator or interface; MINOR: variants, dtypes or shapes were added or changed; PATCH: the same
    coverage; 1.0.0 where there is none yet. What is published under that number already counts as taken.
    """
    parsed = Manifest.parse({**manifest, "version": "0.0.1"})
    releases = [
        v for v in Version.objects.filter(kernel__name=parsed.name).order_by("-order") if "-" not in v.version
    ]
    if not releases:
        return "1.0.0"
    newest = releases[0]
    old = Manifest.parse(newest.manifest)
    major, minor, patch = (int(n) for n in semver_key(newest.version)[:3])
    if (old.kind, old.target, old.abi) != (parsed.kind, parsed.target, parsed.abi):
        return f"{major + 1}.0.0"
    if _coverage(old) != _coverage(parsed):
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def _coverage(manifest: Manifest) -> list[Any]:
    return sorted(
        (v.id, str(sorted(v.selector.get("dtypes", []))), str(sorted(map(str, v.shapes)))) for v in manifest.variants
    )


def publish_version(
    *, manifest: Mapping[str, Any], actor: str, signature: Mapping[str, Any] | None = None
) -> PublishedVersion:
    """Publish; the same manifest again is no change. Conflict where the number is taken by another."""
    done = services.publish_version(manifest=manifest, actor=actor, signature=signature)
    row = done.version
    return PublishedVersion(row.kernel.name, row.version, row.digest, done.created)


def promote(
    *, name: str, channel: str, version: str, actor: str, reason: str = "", expected: int | None = None
) -> int:
    """Point a channel at a version; the number of the move. Stale where somebody else moved it meanwhile."""
    row = queries.get_version(name, version)
    return services.move_channel(
        kernel=row.kernel, channel=channel, version=row, actor=actor, reason=reason, expected=expected
    ).sequence


def roll_back(*, name: str, channel: str, actor: str, reason: str) -> str:
    """Move a channel back; the version it points to now."""
    moved = services.roll_back(kernel=queries.get_kernel(name), channel=channel, actor=actor, reason=reason)
    return moved.version.version


def resolve(*, facts: Mapping[str, Any], channel: str, pins: Sequence[str] = ()) -> ResolvedLock:
    """The signed lock for some facts (as `rackforge_runtime.pull.resolve_facts` writes them)."""
    found = queries.resolve_for(facts=facts, channel=channel, pins=pins)
    return ResolvedLock(
        found.lock.digest,
        found.lock.generation,
        found.envelope,
        tuple(f"{e.name}@{e.version}#{e.variant}" for e in found.lock.entries),
    )


def stage_candidate_lock(
    folder: Path, *, kernels: Sequence[tuple[Mapping[str, Any], str]], blobs: Mapping[str, bytes | Path]
) -> Staged:
    """A signed lock folder for kernels that are not published, for an A/B test on this host."""
    return stage_folder(folder, key=signing_key(), kernels=kernels, blobs=blobs)


def versions(*, digests: Sequence[str] = (), name: str | None = None) -> list[VersionInfo]:
    """Versions by digest, or all of one kernel, newest first."""
    rows = Version.objects.select_related("kernel").order_by("kernel__name", "-order")
    rows = rows.filter(digest__in=digests) if digests else rows.filter(kernel__name=name)
    pointers: dict[int, list[str]] = {}
    for kernel in Kernel.objects.filter(versions__in=rows).distinct().prefetch_related("channels"):
        for channel in kernel.channels.all():
            pointers.setdefault(channel.version_id, []).append(channel.name)
    return [
        VersionInfo(
            row.kernel.name,
            row.version,
            row.digest,
            row.kernel.kind,
            row.kernel.op,
            row.published_at.isoformat(),
            row.published_by,
            row.yanked,
            row.revoked,
            tuple(sorted(pointers.get(row.pk, []))),
        )
        for row in rows
    ]
