"""The lockfile: which kernels a host runs, signed, with a generation that never goes back and an end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rackforge_runtime import signing
from rackforge_runtime.canonical import check_digest, digest_json
from rackforge_runtime.manifests import KINDS, File, ManifestError

SCHEMA_VERSION = 1
LOCAL = "local"  # source of a lock made on this very host, e.g. for an A/B test: it has no generations
CLOCK_SKEW = dt.timedelta(minutes=5)


class LockError(ValueError):
    """A lock that must not be used. `reason` is one word for machines, the text is for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LockEntry:
    """One kernel version and the variant of it chosen for a host."""

    kind: str
    target: str
    name: str
    version: str
    manifest_digest: str
    signature_digest: str
    variant: str
    files: tuple[File, ...]

    @property
    def op(self) -> str:
        """How kill switches name it: the operator's name."""
        return self.target

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "op": self.target,
            "name": self.name,
            "version": self.version,
            "manifest_digest": self.manifest_digest,
            "signature_digest": self.signature_digest,
            "variant": self.variant,
            "files": [f.to_json() for f in self.files],
        }

    @classmethod
    def from_json(cls, data: Any, where: str) -> LockEntry:
        try:
            if data["kind"] not in KINDS:
                raise ManifestError(f"kind {data['kind']!r} is not known")
            return cls(
                str(data["kind"]),
                str(data["op"]),
                str(data["name"]),
                str(data["version"]),
                check_digest(data["manifest_digest"]),
                check_digest(data["signature_digest"]),
                str(data["variant"]),
                tuple(File.parse(f, f"{where}.files[{i}]") for i, f in enumerate(data["files"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LockError("malformed", f"{where}: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock's content. Times are UTC, whole seconds. `expires` None: local locks do not expire."""

    generation: int
    issued: dt.datetime
    expires: dt.datetime | None
    source: str
    channel: str
    facts_digest: str
    entries: tuple[LockEntry, ...]
    disabled: tuple[str, ...] = ()  # operators switched off for the whole fleet; "*" is all

    def to_json(self) -> dict[str, Any]:
        return {
            "schemaVersion": SCHEMA_VERSION,
            "generation": self.generation,
            "issued": write_time(self.issued),
            "expires": write_time(self.expires) if self.expires else None,
            "source": self.source,
            "channel": self.channel,
            "facts_digest": self.facts_digest,
            "disabled": list(self.disabled),
            "entries": [e.to_json() for e in self.entries],
        }

    @property
    def digest(self) -> str:
        return digest_json(self.to_json())

    @property
    def blobs(self) -> dict[str, int | None]:
        """Every digest a host needs and its size, None where the lock does not say it."""
        need: dict[str, int | None] = {}
        for e in self.entries:
            need |= {e.manifest_digest: None, e.signature_digest: None}
            need |= {f.digest: f.size for f in e.files}
        return need

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lock:
        try:
            if data["schemaVersion"] != SCHEMA_VERSION:
                raise LockError("malformed", f"lock schema {data['schemaVersion']!r} is not {SCHEMA_VERSION}")
            return cls(
                generation=int(data["generation"]),
                issued=read_time(data["issued"]),
                expires=read_time(data["expires"]) if data["expires"] else None,
                source=str(data["source"]),
                channel=str(data["channel"]),
                facts_digest=check_digest(data["facts_digest"]),
                entries=tuple(LockEntry.from_json(e, f"entries[{i}]") for i, e in enumerate(data["entries"])),
                disabled=tuple(str(o) for o in data.get("disabled", ())),
            )
        except LockError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise LockError("malformed", f"not a lock: {error!r}") from error

    def sign(self, key: signing.SigningKey) -> dict[str, Any]:
        return key.sign_value(self.to_json(), name="rackforge.lock", predicate_type=signing.LOCK)


def open_lock(envelope: Mapping[str, Any] | bytes, keys: Iterable[signing.PublicKey]) -> Lock:
    """The lock of a signed envelope; LockError where the signature or the content is not right."""
    try:
        statement = signing.verify_value(envelope, keys, predicate_type=signing.LOCK)
    except signing.SignatureError as error:
        raise LockError("signature", str(error)) from error
    lock = Lock.from_json(statement.predicate)
    if lock.digest != statement.subject_digest:
        raise LockError("malformed", "the lock holds fields this version does not know")
    return lock


def check_lock(
    lock: Lock,
    *,
    now: dt.datetime,
    last_generation: int = 0,
    grace: dt.timedelta = dt.timedelta(0),
) -> None:
    """Raise LockError unless the lock may be used now.

    `last_generation` is the highest this host has accepted from the lock's source. `grace` is how long past
    its end a lock that was good once may serve while nothing newer is to be had.
    """
    if lock.source != LOCAL and lock.generation < last_generation:
        raise LockError(
            "rolled_back", f"generation {lock.generation} is older than {last_generation}, which this host has seen"
        )
    if lock.issued > now + CLOCK_SKEW:
        raise LockError("clock", f"issued at {write_time(lock.issued)}, in the future: is this host's clock right?")
    if lock.expires is not None and now > lock.expires + grace:
        raise LockError("expired", f"expired at {write_time(lock.expires)}")
    if lock.expires is None and lock.source != LOCAL:
        raise LockError("malformed", "a registry's lock must have an end")


def now_utc() -> dt.datetime:
    """The time in UTC, whole seconds, as locks write it."""
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def write_time(value: dt.datetime) -> str:
    return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(text: str) -> dt.datetime:
    return dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC)
