"""Everything that changes the registry: one function per change, atomic, with an audit event."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from rackforge.audit.services import record
from rackforge_runtime import signing
from rackforge_runtime.cache import BlobError
from rackforge_runtime.canonical import canonical_json, digest_bytes
from rackforge_runtime.manifests import Manifest, semver_key
from rackforge_runtime.staging import sign_manifest
from registry import schemas
from registry.blobs import blob_store
from registry.keys import rotate_private, signing_key, trusted_keys
from registry.models import (
    Blob,
    Channel,
    ChannelEvent,
    Kernel,
    PublicKey,
    RegistryState,
    Version,
    VersionBlob,
    VersionEvent,
    VersionEventKind,
)

RENEW = dt.timedelta(days=1)
GARBAGE_AFTER = dt.timedelta(days=1)


class Conflict(RuntimeError):
    """Another version, or somebody was quicker."""


class Stale(Conflict):
    """The channel is not where the caller saw it."""


class NotThere(LookupError):
    """No such kernel, version, channel or blob."""


class NotAllowed(ValueError):
    """A change that may not be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published version. `created` is False when the same one was there already."""

    version: Version
    created: bool


def put_blob(*, digest: str, chunks: Iterable[bytes], size: int | None = None, kept: bool = False) -> Blob:
    """Store a blob, verified while it is written; the same one again changes nothing.

    Raises BlobError where the content is not what the digest says. No transaction is held while bytes flow.
    """
    store = blob_store()
    row = Blob.objects.filter(digest=digest).first()
    if row is not None and store.has(digest):
        for _ in chunks:  # the caller's stream is read to its end, or the connection would break
            pass
    else:
        got = store.put(digest, chunks, size=size)
        row, _ = Blob.objects.get_or_create(digest=digest, defaults={"size": got, "kept": kept})
    if kept and not row.kept:
        Blob.objects.filter(digest=digest).update(kept=True)
    return row


@transaction.atomic
def publish_version(
    *, manifest: Mapping[str, Any], actor: str, signature: Mapping[str, Any] | None = None
) -> Published:
    """Publish an immutable version. The same digest again is no change; Conflict for another.

    Every blob the manifest names must be there (BlobError "missing"). `signature` is a publisher's own envelope
    and must be of a trusted key; without one the registry signs. Raises ManifestError, SignatureError.
    """
    schemas.check_manifest(manifest)
    parsed = Manifest.parse(dict(manifest))
    body = canonical_json(dict(manifest))
    digest = digest_bytes(body)
    if signature is not None:
        signing.verify(signature, trusted_keys(), predicate_type=signing.MANIFEST, subject_digest=digest)
    found = Version.objects.select_related("kernel").filter(digest=digest).first()
    if found is not None:
        return Published(found, created=False)
    missing = sorted(d for d in parsed.blobs if not Blob.objects.filter(digest=d).exists() or not blob_store().has(d))
    if missing:
        raise BlobError("missing", f"upload first: {', '.join(missing)}")
    _check_sizes(parsed)
    envelope = canonical_json(dict(signature) if signature is not None else sign_manifest(parsed, signing_key()))
    stored = [put_blob(digest=digest_bytes(data), chunks=[data]) for data in (body, envelope)]
    kernel, _ = Kernel.objects.get_or_create(name=parsed.name, defaults={"kind": parsed.kind, "op": parsed.target})
    kernel = Kernel.objects.select_for_update().get(pk=kernel.pk)  # publishers of one kernel, one after another
    if (kernel.kind, kernel.op) != (parsed.kind, parsed.target):
        raise Conflict(f"{kernel.name} is {kernel.kind} for {kernel.op}; choose another name")
    try:
        with transaction.atomic():
            version = Version.objects.create(
                kernel=kernel,
                version=parsed.version,
                order=order_key(parsed.version),
                digest=digest,
                signature_digest=stored[1].digest,
                manifest=dict(manifest),
                published_by=actor,
            )
    except IntegrityError as error:
        # Whoever held the lock before us has committed: it may have been the very same version.
        same = Version.objects.select_related("kernel").filter(digest=digest).first()
        if same is not None:
            return Published(same, created=False)
        if "version_is_published_once" not in str(error):
            raise
        other = Version.objects.get(kernel=kernel, version=parsed.version)
        raise Conflict(
            f"{kernel.name}@{parsed.version} is published as {other.digest}; a version never changes, take a new one"
        ) from error
    VersionBlob.objects.bulk_create(
        [VersionBlob(version=version, blob_id=d) for d in sorted({*parsed.blobs, *(b.digest for b in stored)})]
    )
    record(
        actor=actor,
        action="registry.publish",
        object_type="kernel",
        object_id=kernel.name,
        after={"version": parsed.version, "digest": digest},
    )
    return Published(version, created=True)


def _check_sizes(manifest: Manifest) -> None:
    sizes = dict(Blob.objects.filter(digest__in=manifest.blobs).values_list("digest", "size"))
    for v in manifest.variants:
        for f in v.files:
            if sizes[f.digest] != f.size:
                raise BlobError("digest", f"{v.id}/{f.path}: the blob has {sizes[f.digest]} bytes, not {f.size}")


def order_key(version: str) -> str:
    """Semver's precedence as text that sorts the same way (PostgreSQL's C collation or Python)."""
    major, minor, patch, released, pre = semver_key(version)
    parts = ".".join(f"{'n' if kind == 0 else 's'}{number:012d}{text}" for kind, number, text in _padded(pre))
    return f"{major:09d}.{minor:09d}.{patch:09d}.{1 if released else 0}{parts}"


def _padded(pre: tuple[tuple[Any, ...], ...]) -> list[tuple[int, int, str]]:
    return [(p[0], int(p[1]), str(p[2])) for p in pre]


@transaction.atomic
def move_channel(
    *,
    kernel: Kernel,
    channel: str,
    version: Version,
    actor: str,
    reason: str = "",
    expected: int | None = None,
    rollback: bool = False,
) -> Channel:
    """Point a channel at a version. `expected` is the sequence the caller saw (0: no such channel yet).

    Raises Stale where somebody moved it meanwhile, NotAllowed for a yanked or revoked version.
    """
    if version.kernel_id != kernel.pk:
        raise NotAllowed(f"{version} is not a version of {kernel.name}")
    if version.revoked or version.yanked:
        raise NotAllowed(f"{version} is {'revoked' if version.revoked else 'yanked'}; a channel cannot point to it")
    row = Channel.objects.select_related("version").filter(kernel=kernel, name=channel).first()
    sequence = row.sequence if row else 0
    if expected is not None and expected != sequence:
        raise Stale(f"{channel} of {kernel.name} was moved meanwhile (move {sequence}, you saw {expected})")
    if row is not None and row.version_id == version.pk:
        return row
    before = row.version if row else None
    try:
        with transaction.atomic():
            ChannelEvent.objects.create(
                kernel=kernel,
                channel=channel,
                sequence=sequence + 1,
                before=before,
                after=version,
                rollback=rollback,
                reason=reason,
                actor=actor,
            )
    except IntegrityError as error:
        raise Stale(f"{channel} of {kernel.name} was moved meanwhile by somebody else") from error
    if row is None:
        row = Channel.objects.create(kernel=kernel, name=channel, version=version, sequence=1)
    else:
        # The event above holds the number: nobody else can be here with the same one.
        Channel.objects.filter(pk=row.pk, sequence=sequence).update(version=version, sequence=sequence + 1)
        row.refresh_from_db()
    bump_generation()
    record(
        actor=actor,
        action="registry.rollback" if rollback else "registry.promote",
        object_type="kernel",
        object_id=kernel.name,
        before={"channel": channel, "version": before.version if before else None},
        after={"channel": channel, "version": version.version, "reason": reason},
    )
    return row


def roll_back(*, kernel: Kernel, channel: str, actor: str, reason: str, expected: int | None = None) -> Channel:
    """Move a channel back to what it pointed to before its last move that still may be served.

    NotThere where it never pointed to anything else. A second rollback goes further back.
    """
    row = Channel.objects.filter(kernel=kernel, name=channel).first()
    if row is None:
        raise NotThere(f"{kernel.name} has no channel {channel!r}")
    target = _before(kernel, channel, row)
    if target is None:
        raise NotThere(f"{channel} of {kernel.name} has no earlier version to go back to")
    return move_channel(
        kernel=kernel,
        channel=channel,
        version=target,
        actor=actor,
        reason=reason,
        expected=row.sequence if expected is None else expected,
        rollback=True,
    )


def _before(kernel: Kernel, channel: str, row: Channel) -> Version | None:
    """What the channel's history says was there before: moves are a stack and rollbacks take from it."""
    stack: list[int] = []
    events = ChannelEvent.objects.filter(kernel=kernel, channel=channel).order_by("sequence")
    for event in events:
        if event.rollback:
            while stack and stack[-1] != event.after_id:
                stack.pop()
        if not stack or stack[-1] != event.after_id:
            stack.append(event.after_id)
    usable = {v.pk: v for v in Version.objects.filter(pk__in=stack, yanked=False, revoked=False)}
    for pk in reversed(stack):
        if pk != row.version_id and pk in usable:
            return usable[pk]
    return None


@transaction.atomic
def yank(*, version: Version, actor: str, reason: str) -> Version:
    """Leave a version out of resolution; an exact pin still gets it, with a warning."""
    return _mark(version, VersionEventKind.YANK, actor, reason, where={"yanked": False}, to={"yanked": True})


@transaction.atomic
def unyank(*, version: Version, actor: str, reason: str) -> Version:
    """Put a yanked version back."""
    return _mark(version, VersionEventKind.UNYANK, actor, reason, where={"yanked": True}, to={"yanked": False})


@transaction.atomic
def revoke(*, version: Version, actor: str, reason: str) -> Version:
    """Refuse a version everywhere, also where it is locked. There is no way back."""
    return _mark(version, VersionEventKind.REVOKE, actor, reason, where={"revoked": False}, to={"revoked": True})


def _mark(
    version: Version,
    kind: VersionEventKind,
    actor: str,
    reason: str,
    *,
    where: dict[str, bool],
    to: dict[str, bool],
) -> Version:
    if not reason.strip():
        raise NotAllowed("a reason is needed")
    if Version.objects.filter(pk=version.pk, **where).update(**to):
        VersionEvent.objects.create(version=version, kind=kind, reason=reason, actor=actor)
        bump_generation()
        record(
            actor=actor,
            action=f"registry.{kind.value}",
            object_type="kernel",
            object_id=version.kernel.name,
            before=dict(where),
            after={**to, "version": version.version, "reason": reason},
        )
    version.refresh_from_db()
    return version


@transaction.atomic
def set_disabled(*, ops: Sequence[str], actor: str, reason: str) -> RegistryState:
    """The fleet's kill switch: operators no host may replace; "*" is all, nothing switches everything on again."""
    wanted = sorted(set(ops))
    state = _state(lock=True)
    if wanted != state.disabled:
        before = {"disabled": state.disabled}
        RegistryState.objects.filter(pk=1).update(disabled=wanted, disabled_reason=reason)
        bump_generation()
        record(
            actor=actor,
            action="registry.kill_switch",
            object_type="registry",
            object_id="fleet",
            before=before,
            after={"disabled": wanted, "reason": reason},
        )
    return current_state()


@transaction.atomic
def add_key(*, key: signing.PublicKey, name: str, actor: str) -> PublicKey:
    """Take signatures of a public key from now on."""
    row, created = PublicKey.objects.get_or_create(
        keyid=key.keyid, defaults={"public": key.value, "name": name, "added_by": actor}
    )
    if created:
        record(actor=actor, action="registry.add_key", object_type="key", object_id=key.keyid, after={"name": name})
    return row


@transaction.atomic
def retire_key(*, keyid: str, actor: str) -> PublicKey:
    """Take no new signatures of a key. The registry's own present key cannot be retired: rotate it first."""
    if keyid == signing_key().public.keyid:
        raise NotAllowed("this is the key that signs now; rotate first")
    try:
        row = PublicKey.objects.get(keyid=keyid)
    except PublicKey.DoesNotExist:
        raise NotThere(f"no key {keyid}") from None
    if PublicKey.objects.filter(keyid=keyid, retired_at__isnull=True).update(retired_at=timezone.now()):
        record(actor=actor, action="registry.retire_key", object_type="key", object_id=keyid)
    row.refresh_from_db()
    return row


@transaction.atomic
def rotate_key(*, actor: str) -> signing.PublicKey:
    """Sign with a new key from now on; hosts must have pinned it before the old one is retired."""
    old = signing_key().public
    add_key(key=old, name="registry, before rotation", actor=actor)
    new = rotate_private().public
    bump_generation()
    record(
        actor=actor,
        action="registry.rotate_key",
        object_type="key",
        object_id=new.keyid,
        before={"keyid": old.keyid},
        after={"keyid": new.keyid},
    )
    return new


def collect_garbage(*, older_than: dt.timedelta = GARBAGE_AFTER, actor: str = "registry") -> int:
    """Delete blobs nothing names: not kept, no manifest, older than a day. How many.

    The row goes first, under a lock that a publish of the same blob waits for or fails at: a manifest never
    names a blob that is being deleted.
    """
    removed = 0
    old = Blob.objects.filter(kept=False, named_by__isnull=True, created_at__lt=timezone.now() - older_than)
    for digest in old.values_list("digest", flat=True):
        with transaction.atomic():
            row = Blob.objects.select_for_update(skip_locked=True).filter(digest=digest).first()
            if row is None or row.kept or row.named_by.exists():
                continue
            row.delete()
            blob_store().delete(digest)
            removed += 1
    if removed:
        record(
            actor=actor,
            action="registry.garbage",
            object_type="registry",
            object_id="blobs",
            after={"removed": removed},
        )
    return removed


def bump_generation() -> int:
    """Count a change that alters what hosts resolve; called inside the change's transaction."""
    state = _state(lock=True)
    RegistryState.objects.filter(pk=1).update(
        generation=state.generation + 1, changed_at=timezone.now().replace(microsecond=0)
    )
    return state.generation + 1


def current_state() -> RegistryState:
    """The registry's generation. One that is older than a day is renewed, so that its locks do not run out."""
    state = _state(lock=False)
    if timezone.now() - state.changed_at > RENEW:
        # Compare and swap: of many hosts that come at once one renews it.
        RegistryState.objects.filter(pk=1, generation=state.generation).update(
            generation=state.generation + 1, changed_at=timezone.now().replace(microsecond=0)
        )
        state = _state(lock=False)
    return state


def _state(*, lock: bool) -> RegistryState:
    rows = RegistryState.objects.select_for_update() if lock else RegistryState.objects
    state = rows.filter(pk=1).first()
    if state is None:
        RegistryState.objects.get_or_create(pk=1, defaults={"changed_at": timezone.now().replace(microsecond=0)})
        state = rows.get(pk=1)
    return state
