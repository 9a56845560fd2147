"""Asking the registry: resolve, fetch what is not there yet, and remember what was good."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rackforge_runtime.cache import BlobError, BlobStore, read_json, write_atomic
from rackforge_runtime.canonical import canonical_json
from rackforge_runtime.facts import HostFacts, collect_facts
from rackforge_runtime.locks import Lock, LockError, check_lock, open_lock
from rackforge_runtime.plan import materialise
from rackforge_runtime.signing import PublicKey

API = "/api/v1"
_FETCHERS = 4
_ATTEMPTS = 3
_MAX_LOCK = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a registry. `timeout_s` bounds the resolve as a whole; fetching bounds each read."""

    url: str
    channel: str = "stable"
    pins: tuple[str, ...] = ()
    token: str | None = None
    timeout_s: float = 5.0
    extra: dict[str, Any] = field(default_factory=dict)  # model, tp, compile, dtype: what the host cannot see
    facts: HostFacts | None = None

    @property
    def state_name(self) -> str:
        text = f"{self.url.rstrip('/')}\n{self.channel}"
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A lock that is laid out. `fetched` counts blobs that came over the network, `bytes` theirs."""

    folder: Path
    lock: Lock
    fetched: int
    bytes: int
    not_modified: bool


def resolve_facts(host: HostFacts, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The facts that decide what a host gets, as `POST /resolve` takes them."""
    gpus = host.gpus
    facts: dict[str, Any] = {
        "backend": {"amd": "rocm", "nvidia": "cuda"}.get(gpus[0].vendor, gpus[0].vendor) if gpus else "cpu",
        "isa": [] if gpus else list(host.isa),
        "arch": gpus[0].arch if gpus else None,
        "cu_num": gpus[0].units if gpus else None,
        "device_name": gpus[0].name if gpus else host.cpu_model,
        "machine": host.machine,
        **{name: host.versions.get(name) for name in ("torch", "triton", "vllm")},
        "rocm": host.versions.get("rocm"),
    }
    return facts | (extra or {})


def client(request: Request) -> httpx.Client:
    headers = {"User-Agent": "rackforge-runtime"}
    if request.token:
        headers["Authorization"] = f"Bearer {request.token}"
    return httpx.Client(base_url=request.url.rstrip("/"), headers=headers, timeout=request.timeout_s)


def fresh(request: Request, store: BlobStore, keys: Sequence[PublicKey], *, now: dt.datetime) -> tuple[Path, Lock]:
    """Resolve, fetch, verify, lay out, remember. LockError or BlobError says what was wrong."""
    pulled = pull(request, store, keys, now=now)
    return pulled.folder, pulled.lock


def pull(
    request: Request,
    store: BlobStore,
    keys: Sequence[PublicKey],
    *,
    now: dt.datetime,
    progress: Callable[[str, int, int], None] | None = None,
) -> Pulled:
    """As `fresh`, telling how much came over the network. `progress(digest, done, total)` is called per blob."""
    state = store.root / "state" / f"{request.state_name}.json"
    facts = resolve_facts(request.facts or collect_facts(), request.extra)
    before = read_json(state) or {}
    with client(request) as http:
        data, etag, same = _resolve(http, request, facts, before)
        lock = open_lock(data, keys)
        check_lock(lock, now=now, last_generation=int(before.get("generation", 0)))
        missing = [(d, s) for d, s in lock.blobs.items() if not store.has(d)]
        size = 0
        if missing:
            with ThreadPoolExecutor(min(_FETCHERS, len(missing))) as pool:
                for n, (digest, got) in enumerate(
                    pool.map(lambda item: (item[0], fetch(http, store, item[0], item[1])), missing), 1
                ):
                    size += got
                    if progress:
                        progress(digest, n, len(missing))
    folder = materialise(lock, json.loads(data), store, keys)
    _remember(state, lock, data, etag, facts)
    return Pulled(folder, lock, len(missing), size, same)


def last_good(
    request: Request, store: BlobStore, keys: Sequence[PublicKey], *, now: dt.datetime, grace: dt.timedelta
) -> tuple[Path, Lock]:
    """The lock of the last good pull, while its grace lasts; verified from its signature down, as ever."""
    state = store.root / "state" / f"{request.state_name}.json"
    before = read_json(state)
    if not before:
        raise LockError("missing", "no lock was pulled before")
    data = canonical_json(before["envelope"])
    lock = open_lock(data, keys)
    check_lock(lock, now=now, last_generation=int(before.get("generation", 0)), grace=grace)
    return materialise(lock, before["envelope"], store, keys), lock


def _resolve(
    http: httpx.Client, request: Request, facts: dict[str, Any], before: dict[str, Any]
) -> tuple[bytes, str, bool]:
    body = {"facts": facts, "channel": request.channel, "pins": list(request.pins)}
    headers = {}
    if before.get("etag") and before.get("facts") == facts and before.get("envelope"):
        headers["If-None-Match"] = before["etag"]
    try:
        answer = http.post(f"{API}/resolve", json=body, headers=headers)
    except httpx.HTTPError as error:
        raise LockError("unreachable", f"the registry does not answer: {error!r}") from error
    if answer.status_code == httpx.codes.NOT_MODIFIED:
        return canonical_json(before["envelope"]), before["etag"], True
    if answer.status_code != httpx.codes.OK:
        raise LockError("registry", f"the registry answers {answer.status_code}: {answer.text[:300]}")
    if len(answer.content) > _MAX_LOCK:
        raise LockError("malformed", "the registry's answer is too large to be a lock")
    try:
        envelope = answer.json()["lock"]
    except (ValueError, KeyError, TypeError) as error:
        raise LockError("malformed", "the registry's answer holds no lock") from error
    return canonical_json(envelope), answer.headers.get("ETag", ""), False


def fetch(http: httpx.Client, store: BlobStore, digest: str, size: int | None) -> int:
    """One blob into the store, verified while written; how many bytes came. BlobError or LockError."""
    error: Exception | None = None
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.2 * 2**attempt)
        try:
            with http.stream("GET", f"{API}/blobs/{digest}") as answer:
                if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.GONE):
                    raise BlobError("missing", f"{digest}: the registry does not have it")
                answer.raise_for_status()
                got = _Counted(answer.iter_bytes(1 << 18))
                store.put(digest, got, size=size)
                return got.bytes
        except httpx.HTTPError as failed:
            error = failed
        except BlobError as failed:
            if failed.reason == "missing":
                raise
            error = failed
    if isinstance(error, BlobError):
        raise error
    raise LockError("unreachable", f"{digest} could not be fetched: {error!r}") from error


class _Counted:
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self.bytes = chunks, 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.bytes += len(chunk)
            yield chunk


def _remember(state: Path, lock: Lock, data: bytes, etag: str, facts: dict[str, Any]) -> None:
    """Note the lock as the last good one. A generation never goes back, also where two processes pull at once."""
    state.parent.mkdir(parents=True, exist_ok=True)
    with _locked(state.with_suffix(".flock")):
        before = read_json(state) or {}
        if int(before.get("generation", 0)) > lock.generation:
            return
        body = {"generation": lock.generation, "etag": etag, "facts": facts, "envelope": json.loads(data)}
        write_atomic(state, json.dumps(body).encode())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def say_progress(digest: str, done: int, total: int) -> None:
    """A progress callback for people: one line on standard error."""
    print(f"rackforge: {done}/{total} {digest[:19]}", file=sys.stderr)
