"""`rackforge serve`: decide which kernels a server runs, lay them out, then become the server.

The ladder: a lock named by hand; a fresh one from the registry; the last good one within its grace; the one
baked into the image; the engine's own operators. Policy `open` (the default) always serves; `closed` refuses
where something was not as it should be, and says what.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rackforge_runtime import environments
from rackforge_runtime.activity import ENV_STATE
from rackforge_runtime.cache import BlobError, BlobStore, default_cache, read_json, write_atomic
from rackforge_runtime.locks import Lock, LockError, check_lock, now_utc, open_lock
from rackforge_runtime.manifests import ENVIRONMENT_KINDS
from rackforge_runtime.plan import (
    ENV_LOCK,
    ENV_SKIP,
    LOCKFILE,
    Plan,
    PlanEntry,
    Skipped,
    active_digest,
    load_plan,
    materialise,
    scope_compile_cache,
)
from rackforge_runtime.preflight import preflight
from rackforge_runtime.signing import KeyFileError, PublicKey, load_public_keys

ENV_KEYS = "RACKFORGE_KEYS"
ENV_POLICY = "RACKFORGE_POLICY"
ENV_URL = "RACKFORGE_URL"
ENV_CHANNEL = "RACKFORGE_CHANNEL"
ENV_TOKEN = "RACKFORGE_TOKEN"  # noqa: S105 - the name of a variable
ENV_BAKED = "RACKFORGE_BAKED_LOCK"
GRACE = dt.timedelta(days=7)
Policy = Literal["open", "closed"]
Rung = Literal["named", "fresh", "last_good", "baked", "stock"]


class Refused(RuntimeError):
    """Policy `closed` and something is not as it should be; the text says what."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that went wrong on the way down the ladder."""

    where: str
    reason: str
    text: str

    def to_json(self) -> dict[str, str]:
        return {"where": self.where, "reason": self.reason, "text": self.text}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to launch. `lock` names a lock file with its blobs beside it and ends the search."""

    cache: Path
    lock: Path | None = None
    url: str | None = None
    channel: str = "stable"
    keys: tuple[Path, ...] = ()
    policy: Policy = "open"
    timeout_s: float = 5.0
    baked: Path | None = None
    pins: tuple[str, ...] = ()
    grace: dt.timedelta = GRACE
    now: Callable[[], dt.datetime] = now_utc


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a server will run and how it came to that."""

    rung: Rung
    folder: Path | None = None
    lock: Lock | None = None
    active: tuple[PlanEntry, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()
    unfit: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str | None:
        """Identity of the active kernels; None for the engine's own operators."""
        return active_digest(self.active) if self.active else None

    def to_json(self) -> dict[str, Any]:
        return {
            "rung": self.rung,
            "lock_digest": self.lock.digest if self.lock else None,
            "generation": self.lock.generation if self.lock else None,
            "source": self.lock.source if self.lock else "none",
            "active_digest": self.digest,
            "active": [e.label.to_json() for e in self.active],
            "skipped": [s.to_json() for s in self.skipped],
            "problems": [p.to_json() for p in self.problems],
        }


def default_keys(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where pinned keys are: $RACKFORGE_KEYS (colon-separated), else the user's and the host's configuration."""
    named = environ.get(ENV_KEYS)
    if named:
        return tuple(Path(p) for p in named.split(os.pathsep) if p)
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return tuple(p for p in (config / "rackforge" / "keys", Path("/etc/rackforge/keys")) if p.is_dir())


def options_from(environ: Mapping[str, str], **given: Any) -> Options:
    """Options of the environment, those given by hand winning. ValueError for an unknown policy."""
    policy = given.get("policy") or environ.get(ENV_POLICY) or "open"
    if policy not in ("open", "closed"):
        raise ValueError(f"policy {policy!r} is neither open nor closed")
    baked = environ.get(ENV_BAKED)
    return Options(
        cache=given.get("cache") or default_cache(),
        lock=given.get("lock"),
        url=given.get("url") or environ.get(ENV_URL) or None,
        channel=given.get("channel") or environ.get(ENV_CHANNEL) or "stable",
        keys=given.get("keys") or default_keys(environ),
        policy=policy,
        timeout_s=given.get("timeout_s") or 5.0,
        baked=Path(baked) if baked else None,
        pins=given.get("pins") or (),
    )


def decide(options: Options, environ: Mapping[str, str]) -> Decision:
    """Go down the ladder. Never raises for what is wrong with a lock or a registry; Refused under `closed`."""
    problems: list[Problem] = []
    decision = _first_good(options, environ, problems)
    if options.policy == "closed":
        asked = options.lock or options.url or options.baked
        if asked and decision.rung == "stock":
            raise Refused("; ".join(p.text for p in decision.problems) or "no lock")
        if decision.unfit:
            raise Refused("; ".join(f"{k}: {why}" for k, why in decision.unfit.items()))
    return decision


def _first_good(options: Options, environ: Mapping[str, str], problems: list[Problem]) -> Decision:
    store = BlobStore(options.cache)
    try:
        keys = load_public_keys(options.keys)
    except KeyFileError as error:
        problems.append(Problem("keys", "keys", str(error)))
        keys = ()
    for rung, where, get in _rungs(options, environ, store, keys):
        try:
            folder, lock = get()
            plan = load_plan(folder)
        except (LockError, BlobError) as error:
            problems.append(Problem(where, error.reason, f"{where}: {error}"))
            continue
        except OSError as error:
            problems.append(Problem(where, "io", f"{where}: {error}"))
            continue
        return _examine(rung, folder, lock, plan, environ, problems)
    return Decision(rung="stock", problems=tuple(problems))


Get = Callable[[], tuple[Path, Lock]]


def _rungs(
    options: Options,
    environ: Mapping[str, str],
    store: BlobStore,
    keys: tuple[PublicKey, ...],
) -> list[tuple[Rung, str, Get]]:
    from rackforge_runtime import pull

    if options.lock is not None:
        named = options.lock
        return [("named", str(named), lambda: from_folder(named, store, keys, now=options.now()))]
    rungs: list[tuple[Rung, str, Get]] = []
    if options.url is not None:
        url = options.url
        request = pull.Request(
            url=url,
            channel=options.channel,
            pins=options.pins,
            token=environ.get(ENV_TOKEN),
            timeout_s=options.timeout_s,
        )
        rungs.append(("fresh", url, lambda: pull.fresh(request, store, keys, now=options.now())))
        rungs.append(
            ("last_good", f"last good lock of {url}", lambda: pull.last_good(
                request, store, keys, now=options.now(), grace=options.grace))
        )  # fmt: skip
    if options.baked is not None:
        baked = options.baked
        # A baked lock is as old as its image: its end is not held against it, its signature is.
        rungs.append(
            (
                "baked",
                f"baked lock {baked}",
                lambda: from_folder(baked, store, keys, now=options.now(), grace=dt.timedelta(days=36500)),
            )
        )
    return rungs


def from_folder(
    path: Path,
    store: BlobStore,
    keys: Sequence[PublicKey],
    *,
    now: dt.datetime,
    grace: dt.timedelta = dt.timedelta(0),
) -> tuple[Path, Lock]:
    """Materialise a lock file whose blobs lie in its folder; every byte is verified on its way."""
    file = path / LOCKFILE if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise LockError("missing", f"{file}: {error.strerror}") from error
    lock = open_lock(data, keys)
    check_lock(lock, now=now, grace=grace)
    # A materialised lock lies in locks/<digest>/ of the store that has its blobs.
    at = file.parent.parent.parent if file.parent.parent.name == "locks" else file.parent
    beside = BlobStore(at)
    for digest, size in lock.blobs.items():
        if not store.has(digest):
            source = beside.path(digest)
            try:
                with source.open("rb") as f:
                    store.put(digest, iter(lambda f=f: f.read(1 << 20), b""), size=size)  # type: ignore[misc]
            except FileNotFoundError:
                raise BlobError("missing", f"{digest}: not beside {file.name}") from None
    return materialise(lock, json.loads(data), store, keys), lock


def _examine(
    rung: Rung, folder: Path, lock: Lock, plan: Plan, environ: Mapping[str, str], problems: list[Problem]
) -> Decision:
    clean = {k: v for k, v in environ.items() if k != ENV_SKIP}
    active, skipped = plan.decide(clean)
    unfit: dict[str, str] = {}
    if active:
        wanted = {e.key for e in active}
        unfit = {o.key: o.reason for o in preflight(folder, env=environ) if o.reason and o.key in wanted}
        if unfit:
            active, skipped = plan.decide({**clean, ENV_SKIP: json.dumps(unfit)})
    return Decision(
        rung=rung,
        folder=folder,
        lock=lock,
        active=active,
        skipped=skipped,
        problems=tuple(problems),
        unfit=unfit,
    )


def prepare_environment(decision: Decision, environ: Mapping[str, str], *, pid: int) -> dict[str, str]:
    """The environment the server starts with; also writes the launch record of its state folder."""
    env = dict(environ)
    for name in (ENV_LOCK, ENV_SKIP):
        env.pop(name, None)
    state = Path(env[ENV_STATE]) if env.get(ENV_STATE) else new_state_folder(env, pid)
    env[ENV_STATE] = str(state)
    problems = list(decision.problems)
    if decision.folder is not None:
        env[ENV_LOCK] = str(decision.folder)
    if decision.unfit:
        env[ENV_SKIP] = json.dumps(dict(decision.unfit))
    for e in decision.active:
        if e.label.kind in ENVIRONMENT_KINDS:
            try:
                environments.apply(e, env, state / "environment")
            except (environments.CannotApply, OSError) as error:
                problems.append(Problem(e.key, "environment", f"{e.key}: {error}"))
    scope_compile_cache(env, decision.digest)
    allow_plugins(env)
    try:
        clear_workers(state)
        record = {**decision.to_json(), "problems": [p.to_json() for p in problems], "pid": pid}
        write_atomic(state / "launch.json", json.dumps(record, indent=1).encode())
    except OSError as error:
        # A full disk must not keep a server down: it serves, and counts into plain memory.
        print(f"rackforge: no activity report: {error}", file=sys.stderr)
        env.pop(ENV_STATE, None)
    return env


def allow_plugins(env: dict[str, str]) -> None:
    """Name our plugin in VLLM_PLUGINS: routes are only added for plugins named there.

    Naming one keeps every other out, so those that vLLM would have loaded on its own are named with it.
    """
    from importlib.metadata import entry_points

    if env.get("VLLM_PLUGINS") is not None:
        named = [n for n in env["VLLM_PLUGINS"].split(",") if n]
    else:
        groups = [g for g in entry_points().groups if g.startswith("vllm.") and g != "vllm.endpoint_plugins"]
        named = sorted({e.name for g in groups for e in entry_points(group=g)})
    env["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*named, "rackforge"]))


def new_state_folder(environ: Mapping[str, str], pid: int) -> Path:
    """A folder for one server's activity; those of servers long gone are removed on the way."""
    base = Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"rackforge-{os.geteuid()}"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.stat().st_uid != os.geteuid():
        return Path(tempfile.mkdtemp(prefix="rackforge-"))
    for old in base.iterdir():
        if old.name.isdigit() and not Path(f"/proc/{old.name}").exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = base / str(pid)
    folder.mkdir(exist_ok=True)
    return folder


def clear_workers(state: Path) -> None:
    """Counts of an earlier server in the same folder are not this one's."""
    for path in (state / "workers").glob("*"):
        path.unlink(missing_ok=True)
    (state / "workers").mkdir(parents=True, exist_ok=True)


def summary(decision: Decision) -> str:
    """A few lines for the server's log: what is active, what is not and why."""
    lines = ["rackforge: " + (f"{decision.rung} lock {decision.lock.digest[:19]}" if decision.lock else "no lock")]
    lines += [f"rackforge: active {e.key} ({e.label.kind} {e.label.op})" for e in decision.active]
    lines += [f"rackforge: skipped {s.key}: {s.reason}" for s in decision.skipped]
    lines += [f"rackforge: {p.text}" for p in decision.problems]
    if not decision.active:
        lines.append("rackforge: the engine's own operators serve")
    return "\n".join(lines)


def serve(options: Options, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Become the server: does not return. Refused under `closed`; OSError where the command does not start."""
    decision = decide(options, environ)
    env = prepare_environment(decision, environ, pid=os.getpid())
    print(summary(decision), file=sys.stderr, flush=True)
    os.execvpe(command[0], list(command), env)  # noqa: S606 - the user's own command


def launch_record(state: Path) -> Any:
    """What the launcher decided for a server, by its state folder; None where it left nothing."""
    return read_json(state / "launch.json")
