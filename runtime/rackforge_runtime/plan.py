"""A lock laid out on disk for the engine's plugin: read-only, one file per kernel version, and its plan.

The plan is the lock with every manifest's envelope beside its entry, so that the plugin needs no network,
no keys and no cache: what it reads was verified before the engine started.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackforge_runtime import signing
from rackforge_runtime.activity import KernelLabel
from rackforge_runtime.cache import BlobError, BlobStore, make_read_only, place_file, remove_tree
from rackforge_runtime.canonical import canonical_json, digest_json
from rackforge_runtime.locks import Lock, LockEntry, LockError
from rackforge_runtime.manifests import Manifest, ManifestError, Variant

ENV_LOCK = "RACKFORGE_LOCK"
ENV_DISABLE = "RACKFORGE_DISABLE"
ENV_SKIP = "RACKFORGE_SKIP"
PLAN = "plan.json"
LOCKFILE = "lock.json"
NATIVE_ABI = "rackforge-c-1"


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One kernel as the plugin sees it. `object` is the entry file's absolute path."""

    label: KernelLabel
    abi: str
    selector: Mapping[str, Any]
    object: Path
    folder: Path

    @property
    def key(self) -> str:
        return f"{self.label.name}@{self.label.version}#{self.label.variant}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something of the lock that does not run here, and why."""

    key: str
    op: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"kernel": self.key, "op": self.op, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Plan:
    """The kernels of a materialised lock."""

    folder: Path
    lock_digest: str
    generation: int
    source: str
    channel: str
    entries: tuple[PlanEntry, ...]
    disabled: tuple[str, ...]

    def decide(self, environ: Mapping[str, str]) -> tuple[tuple[PlanEntry, ...], tuple[Skipped, ...]]:
        """Which entries run under an environment: all but those switched off or found unfit before the start.

        The same in every process of a server, since they inherit the environment.
        """
        off = disabled_ops(environ.get(ENV_DISABLE, ""))
        unfit = _skips(environ.get(ENV_SKIP, ""))
        active, skipped = [], []
        for e in self.entries:
            if reason := unfit.get(e.key):
                skipped.append(Skipped(e.key, e.label.op, reason))
            elif "*" in self.disabled or e.label.op in self.disabled:
                skipped.append(Skipped(e.key, e.label.op, "switched off for the fleet"))
            elif "*" in off or e.label.op in off or e.label.kind in off:
                skipped.append(Skipped(e.key, e.label.op, f"switched off on this host ({ENV_DISABLE})"))
            else:
                active.append(e)
        return tuple(active), tuple(skipped)


def active_digest(entries: Iterable[PlanEntry]) -> str:
    """Identity of what runs: two servers with the same one may share compiled graphs, others never."""
    return digest_json(sorted([e.label.digest, e.label.variant, e.label.object_digest] for e in entries))


def disabled_ops(text: str) -> frozenset[str]:
    """RACKFORGE_DISABLE: 1 (or all, true) is everything, 0 or nothing is nothing, else operators by comma."""
    items = {t.strip() for t in text.split(",") if t.strip()}
    if items & {"1", "all", "true", "yes", "on", "*"}:
        return frozenset("*")
    return frozenset(items - {"0", "false", "no", "off"})


def materialise(lock: Lock, envelope: Mapping[str, Any], store: BlobStore, keys: Iterable[signing.PublicKey]) -> Path:
    """Lay a lock out under the store; its folder comes back, the same if it was there already.

    Every byte is hashed on the way: manifests against the lock and their signatures against the pinned keys,
    files against the manifests. Raises BlobError or LockError; a part of a folder is never seen by others.
    """
    target = store.root / "locks" / lock.digest.removeprefix("sha256:")
    keys = tuple(keys)
    if (target / PLAN).is_file():
        try:
            _check_laid_out(target, lock)
            return target
        except BlobError:
            with contextlib.suppress(OSError):
                remove_tree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
    try:
        rows = [_lay_out(e, store, keys, scratch) for e in lock.entries]
        (scratch / LOCKFILE).write_bytes(canonical_json(dict(envelope)))
        plan = {
            "lock_digest": lock.digest,
            "generation": lock.generation,
            "source": lock.source,
            "channel": lock.channel,
            "disabled": list(lock.disabled),
            "entries": rows,
        }
        (scratch / PLAN).write_bytes(canonical_json(plan))
        make_read_only(scratch)
        try:
            scratch.rename(target)
        except OSError:
            if not (target / PLAN).is_file():
                raise
    finally:
        if scratch.exists():
            remove_tree(scratch)
    return target


def load_plan(folder: Path) -> Plan:
    """Read a materialised lock. LockError where it is not one."""
    try:
        data = json.loads((folder / PLAN).read_bytes())
        return Plan(
            folder,
            data["lock_digest"],
            data["generation"],
            data["source"],
            data["channel"],
            tuple(
                PlanEntry(
                    KernelLabel(**row["label"]),
                    row["abi"],
                    row["selector"],
                    folder / row["folder"] / row["entry"],
                    folder / row["folder"],
                )
                for row in data["entries"]
            ),
            tuple(data["disabled"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LockError("malformed", f"{folder}: no materialised lock: {error!r}") from error


def verified_manifest(
    entry: LockEntry, store: BlobStore, keys: Iterable[signing.PublicKey]
) -> tuple[Manifest, Variant]:
    """The manifest and variant of an entry, checked against the lock and the pinned keys."""
    where = f"{entry.name} {entry.version}"
    try:
        manifest = Manifest.parse(json.loads(store.read(entry.manifest_digest)))
        variant = manifest.variant(entry.variant)
    except (ManifestError, ValueError) as error:
        raise LockError("manifest", f"{where}: {error}") from error
    try:
        signing.verify(
            store.read(entry.signature_digest),
            keys,
            predicate_type=signing.MANIFEST,
            subject_digest=entry.manifest_digest,
        )
    except signing.SignatureError as error:
        raise LockError("signature", f"{where}: {error}") from error
    if (manifest.name, manifest.version, manifest.kind, manifest.target) != (
        entry.name,
        entry.version,
        entry.kind,
        entry.target,
    ) or variant.files != entry.files:
        raise LockError("manifest", f"{where}: the lock and the manifest do not agree")
    return manifest, variant


def _lay_out(entry: LockEntry, store: BlobStore, keys: Iterable[signing.PublicKey], scratch: Path) -> dict[str, Any]:
    manifest, variant = verified_manifest(entry, store, keys)
    # Versions differ in their path: an engine that caches by file name must not take one for another.
    folder = Path("kernels") / f"{entry.manifest_digest[7:23]}-{variant.id}"
    for f in variant.files:
        place_file(store.verified(f.digest), scratch / folder / f.path)
    return {
        "label": KernelLabel(
            op=entry.target,
            kind=entry.kind,
            name=entry.name,
            version=entry.version,
            variant=variant.id,
            digest=entry.manifest_digest,
            object_digest=variant.file(variant.entry).digest if variant.files else entry.manifest_digest,
        ).to_json(),
        "abi": manifest.abi,
        "selector": dict(variant.selector),
        "entry": variant.entry,
        "folder": folder.as_posix(),
    }


def _check_laid_out(folder: Path, lock: Lock) -> None:
    """Hash a folder that is already there: disks flip bits, and files are only names."""
    from rackforge_runtime.canonical import digest_file

    for e in lock.entries:
        place = folder / "kernels" / f"{e.manifest_digest[7:23]}-{e.variant}"
        for f in e.files:
            try:
                found = digest_file(place / f.path)
            except OSError as error:
                raise BlobError("missing", f"{place / f.path}: {error.strerror}") from error
            if found != f.digest:
                raise BlobError("digest", f"{place / f.path}: damaged")


def _skips(text: str) -> dict[str, str]:
    try:
        return {str(k): str(v) for k, v in json.loads(text or "{}").items()}
    except (ValueError, AttributeError):
        return {}


def scope_compile_cache(environ: dict[str, str] | os._Environ[str], digest: str | None) -> None:
    """Give each set of active kernels compile caches of its own; None is the engine's own operators.

    vLLM's cache key does not see a kernel's body, and a graph compiled with one set names operators that do
    not exist under another. Idempotent, and follows a change of what is active.
    """
    for name, default in (
        ("VLLM_CACHE_ROOT", os.path.join(environ.get("XDG_CACHE_HOME", "~/.cache"), "vllm")),  # noqa: PTH118
        ("TORCHINDUCTOR_CACHE_DIR", None),
    ):
        base_name = f"RACKFORGE_BASE_{name}"
        base = environ.get(base_name, environ.get(name, default))
        if base is None:
            continue
        if digest is None:
            if base_name in environ:
                environ[name] = base
        else:
            environ[base_name] = base
            environ[name] = os.path.join(os.path.expanduser(base), f"rackforge-{digest[7:23]}")  # noqa: PTH111, PTH118
