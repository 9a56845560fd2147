"""A real vLLM server on this machine: started, adopted by whoever comes next, stopped with its children."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from optimizer.engine.serving import processes
from optimizer.engine.serving.bench import Endpoint
from optimizer.engine.serving.environment import SCRIPTS, ServingEnvironment
from optimizer.engine.serving.errors import ServerAnswered, ServerDied, StartCancelled, StartFailed
from optimizer.engine.serving.metrics import LiveMetrics, parse_metrics
from optimizer.engine.serving.spec import HOST, ServerSpec, build_command
from optimizer.engine.serving.startlog import cause_of, read_tail, stage_of

STATE = "server.json"
LOG = "server.log"
START_DEADLINE_S = 300.0  # a first compilation of the reference model takes 80 s on two quiet cores
STOP_GRACE_S = 15.0
_POLL_S = 0.2

Progress = Callable[[str, float], None]
"""Called with how far a start has come, in words, and the seconds since it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """The state file: which process a server is. `pid` None: about to start, or never did."""

    id: str
    port: int
    spec_digest: str
    log: str
    scratch: str
    boot_id: str
    owner: str = ""
    pid: int | None = None
    start_ticks: int | None = None
    shared_memory: tuple[str, ...] = ()  # names under /dev/shm, known once the server is up

    @property
    def alive(self) -> bool:
        """Whether the very process that was started still runs."""
        return (
            self.pid is not None
            and self.boot_id == processes.boot_id()
            and processes.start_ticks(self.pid) == self.start_ticks
        )

    @classmethod
    def read(cls, state: Path) -> ServerRecord | None:
        """The record in a state file; None where there is none or it is unreadable."""
        try:
            fields = json.loads(state.read_text())
            return cls(**{**fields, "shared_memory": tuple(fields.get("shared_memory", ()))})
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def write(self, state: Path) -> None:
        scratch = state.with_name(f"{state.name}.{os.getpid()}")
        scratch.write_text(json.dumps(asdict(self)))
        scratch.replace(state)


class LocalServer:
    """A running server. Made by `start`, `attach` or `ensure`; a context manager that stops it at the end."""

    def __init__(self, spec: ServerSpec, record: ServerRecord, state_dir: Path) -> None:
        self.spec = spec
        self.record = record
        self.state_dir = state_dir
        # Plain HTTP on the loopback: no certificates to load, no proxy to ask.
        self.http = httpx.Client(base_url=self.base_url, trust_env=False, verify=False, timeout=30)  # noqa: S501

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self.record.port

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def endpoint(self) -> Endpoint:
        """What the benchmark client needs to know of this server."""
        return Endpoint(base_url=self.base_url, served_name=self.spec.served_name, tokenizer=self.spec.model)

    @property
    def log(self) -> Path:
        return Path(self.record.log)

    @property
    def pids(self) -> list[int]:
        """Every process of the server: the API server, the engine core, its workers."""
        return processes.marked(self.record.id)

    # -- life --------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        spec: ServerSpec,
        *,
        environment: ServingEnvironment,
        state_dir: Path,
        port: int | None = None,
        owner: str = "",
        deadline_s: float = START_DEADLINE_S,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> LocalServer:
        """Start a server and wait until it answers.

        Its state and log lie in `state_dir` (one server at a time). `port` None picks a free one. `owner` is
        any text that lets `reap` ask whether the server is still wanted. Raises StartFailed with the cause
        from the log, StartCancelled when `cancelled` said so; nothing is left running in either case.
        """
        _check_paths(spec, environment)
        for attempt in range(3):
            try:
                return cls._start_once(
                    spec, environment, state_dir, port, owner, deadline_s, progress, cancelled or (lambda: False)
                )
            except StartFailed as error:
                # Between choosing a free port and binding it somebody else may take it.
                if error.kind != "port_in_use" or port is not None or attempt == 2:
                    raise
        raise AssertionError("unreachable")

    @classmethod
    def _start_once(
        cls,
        spec: ServerSpec,
        environment: ServingEnvironment,
        state_dir: Path,
        port: int | None,
        owner: str,
        deadline_s: float,
        progress: Progress | None,
        cancelled: Callable[[], bool],
    ) -> LocalServer:
        state, log = state_dir / STATE, state_dir / LOG
        old = ServerRecord.read(state)
        if old is not None and old.alive:
            raise StartFailed("other", f"a server (process {old.pid}) already runs from {state_dir}: stop it first")
        begun = time.monotonic()
        chosen = _free_port() if port is None else _check_port(port)
        server_id = secrets.token_hex(8)
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            # Sockets and temporary files in a short folder of its own (a socket's path has 107 bytes).
            scratch = tempfile.mkdtemp(prefix="rackforge-serve-")
            record = ServerRecord(
                id=server_id,
                port=chosen,
                spec_digest=spec.digest,
                log=str(log),
                scratch=scratch,
                boot_id=processes.boot_id(),
                owner=owner,
            )
            record.write(state)
            if progress is not None:
                progress(stage_of(""), 0.0)
            pid = _spawn(spec, environment, record, state)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StartFailed("no_space", f"no space left on the disk of {state_dir}: free some") from error
            raise StartFailed("other", f"{error.strerror}: {error.filename}") from error
        server = cls(spec, record, state_dir)
        try:
            server._wait(pid, state, begun, deadline_s, progress, cancelled)
        except BaseException:
            server._end(pid, grace_s=2.0)
            raise
        return server

    def _wait(
        self,
        pid: int,
        state: Path,
        begun: float,
        deadline_s: float,
        progress: Progress | None,
        cancelled: Callable[[], bool],
    ) -> None:
        told = ""
        told_at = begun
        while True:
            # Whether it ended is asked first: what the log then says is all that it will ever say.
            status = processes.exit_status(pid)
            now = time.monotonic()
            if status is not None:
                tail = read_tail(self.log)
                kind, cause = cause_of(tail, status)
                raise StartFailed(kind, cause, log=self.log, tail=tail[-4000:])
            if cancelled():
                raise StartCancelled(log=self.log)
            if progress is not None:
                stage = stage_of(read_tail(self.log))
                if stage != told or now - told_at >= 1:
                    told, told_at = stage, now
                    progress(stage, now - begun)
            if self.healthy():
                record = ServerRecord.read(state)
                if record is not None and record.pid == pid:
                    self.record = record
                    if self._owns_port():
                        self.record = replace(record, shared_memory=processes.shared_memory(record.id))
                        self.record.write(state)
                        return
            if now - begun > deadline_s:
                tail = read_tail(self.log)
                raise StartFailed(
                    "deadline",
                    f"not ready after {deadline_s:.0f} s, last seen {stage_of(tail)}: allow more time",
                    log=self.log,
                    tail=tail[-4000:],
                )
            time.sleep(_POLL_S)

    @classmethod
    def attach(cls, spec: ServerSpec, *, state_dir: Path) -> LocalServer | None:
        """Adopt the server that a worker left in `state_dir`, if it is this spec's and answers; else None.

        Nothing is ended here: `ensure` does that, or `reap`.
        """
        record = ServerRecord.read(state_dir / STATE)
        if record is None or not record.alive or record.spec_digest != spec.digest:
            return None
        server = cls(spec, record, state_dir)
        if server.healthy() and server._owns_port():
            return server
        server.http.close()
        return None

    @classmethod
    def ensure(
        cls,
        spec: ServerSpec,
        *,
        environment: ServingEnvironment,
        state_dir: Path,
        owner: str = "",
        deadline_s: float = START_DEADLINE_S,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> LocalServer:
        """The server of `state_dir` if it can be adopted; otherwise what is there is ended and one started."""
        server = cls.attach(spec, state_dir=state_dir)
        if server is not None:
            return server
        end_recorded(state_dir)
        return cls.start(
            spec,
            environment=environment,
            state_dir=state_dir,
            owner=owner,
            deadline_s=deadline_s,
            progress=progress,
            cancelled=cancelled,
        )

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End the server with all its children and verify that none is left. Calling it twice is harmless.

        Raises StopFailed where a process cannot be ended.
        """
        self._end(self.record.pid, grace_s=grace_s)

    def _end(self, pid: int | None, *, grace_s: float) -> None:
        self.http.close()
        _end(self.record, pid, self.state_dir / STATE, grace_s=grace_s)

    # -- asking ------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        if self.record.pid is not None:
            processes.exit_status(self.record.pid)
        return self.record.alive

    def check(self) -> None:
        """ServerDied, with the cause from the log, unless the server's process is there."""
        if not self.alive:
            raise ServerDied(cause_of(read_tail(self.log))[1], log=self.log)

    def healthy(self, *, timeout_s: float = 5) -> bool:
        """Whether /health answers 200."""
        try:
            return self.http.get("/health", timeout=timeout_s).status_code == 200
        except httpx.HTTPError:
            return False

    def request(self, method: str, path: str, *, timeout_s: float = 60, **kwargs: Any) -> httpx.Response:
        """One request; ServerAnswered for an error status or no answer, ServerDied where it is gone."""
        what = f"{method} {path} on port {self.port}"
        try:
            response = self.http.request(method, path, timeout=timeout_s, **kwargs)
        except httpx.HTTPError as error:
            self.check()
            raise ServerAnswered(what, 0, f"{type(error).__name__}: {error}") from error
        if response.status_code >= 400:
            raise ServerAnswered(what, response.status_code, response.text)
        return response

    def metrics(self) -> LiveMetrics:
        """What the server counts right now."""
        return parse_metrics(self.request("GET", "/metrics", timeout_s=10).text)

    def max_model_len(self) -> int:
        """Tokens of context the server accepts, as it says itself."""
        models = self.request("GET", "/v1/models", timeout_s=10).json()["data"]
        return int(models[0]["max_model_len"])

    def _owns_port(self) -> bool:
        """Whether it is this server that listens there, and not a stranger that answers /health."""
        for pid in self.pids:
            try:
                connections = psutil.Process(pid).net_connections("tcp")
            except psutil.Error:
                continue
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == self.port for c in connections):
                return True
        return False


def end_recorded(state_dir: Path, *, grace_s: float = STOP_GRACE_S) -> None:
    """End whatever server a state folder knows of, without asking whose it is."""
    record = ServerRecord.read(state_dir / STATE)
    if record is not None:
        _end(record, record.pid if record.alive else None, state_dir / STATE, grace_s=grace_s)


def reap(root: Path, *, keep: Callable[[ServerRecord], bool], grace_s: float = 5.0) -> list[str]:
    """End every server under `root` that nobody wants any more; its ids come back.

    `keep` is asked for each recorded server that lives. Also ended: processes whose state file is gone, and
    what is left of a server whose main process has died.
    """
    root = root.resolve()
    ended: list[str] = []
    kept: set[str] = set()
    for state in sorted(root.rglob(STATE)):
        record = ServerRecord.read(state)
        if record is None:
            continue
        if (record.alive or record.pid is None) and keep(record):
            kept.add(record.id)
            continue
        _end(record, record.pid if record.alive else None, state, grace_s=grace_s)
        ended.append(record.id)
    for mark in set(processes.all_marked().values()):
        if mark.server_id not in kept and mark.state.is_relative_to(root):
            processes.end(mark.server_id, leader=None, grace_s=0)
            ended.append(mark.server_id)
    return sorted(set(ended))


def _end(record: ServerRecord, pid: int | None, state: Path, *, grace_s: float) -> None:
    processes.end(record.id, leader=pid, grace_s=grace_s)
    shutil.rmtree(record.scratch, ignore_errors=True)
    for name in record.shared_memory:  # a clean end removes them itself
        (Path("/dev/shm") / name).unlink(missing_ok=True)  # noqa: S108
    now = ServerRecord.read(state)
    if now is not None and now.id == record.id:
        state.unlink(missing_ok=True)


def _spawn(spec: ServerSpec, environment: ServingEnvironment, record: ServerRecord, state: Path) -> int:
    command = build_command(spec, environment, port=record.port)
    request = {"record": asdict(record), "argv": list(command.argv), "cwd": str(state.parent)}
    launcher = [sys.executable, "-I", "-S", str(SCRIPTS / "launch.py"), str(state.absolute()), json.dumps(request)]
    env = {
        **command.env,
        "TMPDIR": record.scratch,
        processes.MARKER: processes.Mark(record.id, state.resolve()).text(),
    }
    # A log of an earlier start would be taken for this one's.
    log = os.open(record.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    try:
        return os.posix_spawn(
            sys.executable,
            launcher,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,  # a Ctrl-C in the terminal is the platform's to handle, not the server's
        )
    finally:
        os.close(log)


def _check_paths(spec: ServerSpec, environment: ServingEnvironment) -> None:
    """What can be known before a start that would take half a minute to fail."""
    if not environment.python.exists():
        raise StartFailed(
            "environment",
            f"no Python at {environment.python}: create the serving environment (`make run` does) "
            "or set RACKFORGE_SERVING_PYTHON",
        )
    looks_like_path = spec.model.startswith(("/", "./", "../", "~"))
    if looks_like_path and not (Path(spec.model) / "config.json").is_file():
        raise StartFailed(
            "model_missing", f"no model at {spec.model!r}: give the path of a folder with a config.json"
        )
    if spec.lock is not None and not Path(spec.lock).is_file():
        raise StartFailed("other", f"no lockfile at {spec.lock!r}: pull the kernels first")


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.bind((HOST, 0))
        return int(s.getsockname()[1])


def _check_port(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartFailed(
                    "port_in_use", f"port {port} of {HOST} is in use: stop what listens there or choose another"
                ) from error
            raise StartFailed("other", f"port {port} of {HOST}: {error.strerror}") from error
    return port
