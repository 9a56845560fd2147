"""Reads over the registry's tables, and the resolve."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db.models import QuerySet

from rackforge_runtime import signing
from rackforge_runtime.canonical import digest_json
from rackforge_runtime.locks import Lock, LockEntry, write_time
from rackforge_runtime.manifests import Manifest
from registry.keys import signing_key
from registry.models import Channel, Kernel, Version, VersionEvent, VersionEventKind
from registry.resolving import Facts, Offer, Resolution, resolve, resolve_key
from registry.services import NotThere, current_state

LIFETIME = dt.timedelta(days=7)
SOURCE = "registry"
_LOCKS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Resolved:
    """A signed lock and how it came to be."""

    lock: Lock
    envelope: Mapping[str, Any]
    resolution: Resolution
    left_out: Mapping[str, Any]  # versions no rule looked at: their kernel's channel does not point to them

    @property
    def etag(self) -> str:
        return self.lock.digest


def get_kernel(name: str) -> Kernel:
    """NotThere for an unknown one."""
    try:
        return Kernel.objects.get(name=name)
    except Kernel.DoesNotExist:
        raise NotThere(f"no kernel {name!r}") from None


def get_version(name: str, version: str) -> Version:
    """By number, by digest, or by the name of a channel. NotThere for an unknown one."""
    rows = Version.objects.select_related("kernel").filter(kernel__name=name)
    found = rows.filter(digest=version) if version.startswith("sha256:") else rows.filter(version=version)
    row = found.first()
    if row is None:
        channel = Channel.objects.select_related("version__kernel").filter(kernel__name=name, name=version).first()
        row = channel.version if channel else None
    if row is None:
        raise NotThere(f"no version {version!r} of {name!r}")
    return row


def resolve_for(
    *, facts: Mapping[str, Any], channel: str = "stable", pins: Sequence[str] = (), trace: bool = False
) -> Resolved:
    """The signed lock of a host. The same facts in the same generation give the same lock, byte for byte.

    `pins` are `namespace/kernel@version`; NotThere for one that does not exist. Raises FactsError. `trace` lists
    every version left out by its channel, not only how many.
    """
    parsed = Facts.parse(facts)
    state = current_state()
    key = (resolve_key(parsed, channel, pins), state.generation, signing_key().public.keyid)
    found = _cache.get(key)
    if found is None:
        offers = [*_channel_offers(channel, state.generation)]
        pinned = [_pinned(pin) for pin in pins]
        names = {o.manifest.name for o in pinned}
        offers = [o for o in offers if o.manifest.name not in names] + pinned
        resolution = resolve(parsed, offers)
        lock = Lock(
            generation=state.generation,
            issued=state.changed_at,
            expires=state.changed_at + LIFETIME,
            source=SOURCE,
            channel=channel,
            facts_digest=digest_json(parsed.to_json()),
            entries=tuple(
                LockEntry(
                    c.offer.manifest.kind,
                    c.offer.manifest.target,
                    c.offer.manifest.name,
                    c.offer.manifest.version,
                    c.offer.digest,
                    c.offer.signature_digest,
                    c.variant.id,
                    c.variant.files,
                )
                for c in resolution.chosen
            ),
            disabled=tuple(state.disabled),
        )
        found = Resolved(lock, lock.sign(signing_key()), resolution, {})
        _cache.put(key, found)
    left_out = _left_out(found, channel, listed=trace)
    return Resolved(found.lock, found.envelope, found.resolution, left_out)


class _Locks:
    """Locks already made, least recently used first out; threads of a web process share it."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Any, Resolved] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: Any) -> Resolved | None:
        with self._guard:
            found = self._rows.get(key)
            if found is not None:
                self._rows.move_to_end(key)
            return found

    def put(self, key: Any, value: Resolved) -> None:
        with self._guard:
            self._rows[key] = value
            while len(self._rows) > _LOCKS_KEPT:
                self._rows.popitem(last=False)

    def clear(self) -> None:
        with self._guard:
            self._rows.clear()


_cache = _Locks()


def clear_caches() -> None:
    """Forget what was computed; for tests, which roll generations back."""
    _cache.clear()
    _channel_offers.cache_clear()
    _counts.cache_clear()


@lru_cache(maxsize=64)
def _channel_offers(channel: str, _generation: int) -> tuple[Offer, ...]:
    """What a channel points to. Every move makes a new generation, so this holds for its one."""
    rows = Channel.objects.filter(name=channel).select_related("version")
    return tuple(_offer(row.version, pinned=False) for row in rows)


def _pinned(pin: str) -> Offer:
    name, _, version = pin.partition("@")
    return _offer(get_version(name, version), pinned=True)


@lru_cache(maxsize=4096)
def _parsed(digest: str) -> Manifest:  # manifests never change
    return Manifest.parse(Version.objects.only("manifest").get(digest=digest).manifest)


def _offer(version: Version, *, pinned: bool) -> Offer:
    reasons = {}
    if version.yanked or version.revoked:
        reasons = reasons_of(version)
    return Offer(
        _parsed(version.digest),
        version.digest,
        version.signature_digest,
        pinned=pinned,
        yanked=reasons.get(VersionEventKind.YANK, "") if version.yanked else "",
        revoked=reasons.get(VersionEventKind.REVOKE, "") if version.revoked else "",
    )


def reasons_of(version: Version) -> dict[str, str]:
    """The last reason given for each kind of event."""
    return dict(VersionEvent.objects.filter(version=version).order_by("id").values_list("kind", "reason"))


def _left_out(found: Resolved, channel: str, *, listed: bool) -> dict[str, Any]:
    looked_at = {(v.name, v.version) for v in found.resolution.trace}
    if not listed:
        counts = _counts(channel, found.lock.generation)
        seen = Counter(name for name, _ in looked_at)
        rest = {name: n - seen[name] for name, n in counts.items() if n > seen[name]}
        return {"not_in_channel": rest}
    rest_rows: dict[str, list[dict[str, str]]] = {}
    for name, version, yanked, revoked in Version.objects.order_by("kernel__name", "-order").values_list(
        "kernel__name", "version", "yanked", "revoked"
    ):
        if (name, version) not in looked_at:
            why = "revoked" if revoked else "yanked" if yanked else f"channel {channel} does not point to it"
            rest_rows.setdefault(name, []).append({"version": version, "reason": why})
    return {"not_in_channel": rest_rows}


@lru_cache(maxsize=64)
def _counts(_channel: str, _generation: int) -> dict[str, int]:
    from django.db.models import Count

    return dict(Kernel.objects.annotate(n=Count("versions")).values_list("name", "n"))


def kill_switch() -> dict[str, Any]:
    """The signed statement of what is switched off and revoked; the same bytes within a generation."""
    state = current_state()
    revoked = []
    rows: QuerySet[VersionEvent] = (
        VersionEvent.objects.filter(kind=VersionEventKind.REVOKE, version__revoked=True)
        .select_related("version__kernel")
        .order_by("version__digest", "id")
    )
    for event in rows:
        v = event.version
        revoked.append({"digest": v.digest, "name": v.kernel.name, "version": v.version, "reason": event.reason})
    value = {
        "schemaVersion": 1,
        "generation": state.generation,
        "issued": write_time(state.changed_at),
        "disabled": list(state.disabled),
        "revoked": revoked,
    }
    return signing_key().sign_value(value, name="rackforge.kill-switch", predicate_type=signing.SWITCH)


def diff(a: Version, b: Version) -> dict[str, Any]:
    """What two versions differ in: manifest fields, and files by path."""
    left, right = Manifest.parse(a.manifest), Manifest.parse(b.manifest)

    def files(m: Manifest) -> dict[str, str]:
        return {f"{v.id}/{f.path}": f.digest for v in m.variants for f in v.files}

    fa, fb = files(left), files(right)
    return {
        "a": {"name": left.name, "version": left.version, "digest": a.digest},
        "b": {"name": right.name, "version": right.version, "digest": b.digest},
        "fields": {
            key: [a.manifest.get(key), b.manifest.get(key)]
            for key in sorted({*a.manifest, *b.manifest})
            if a.manifest.get(key) != b.manifest.get(key) and key != "version"
        },
        "files": {
            "added": sorted(fb.keys() - fa.keys()),
            "removed": sorted(fa.keys() - fb.keys()),
            "changed": sorted(k for k in fa.keys() & fb.keys() if fa[k] != fb[k]),
        },
    }
