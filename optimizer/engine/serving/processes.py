"""Which processes belong to a server, and ending them all.

A process is known by its id, its start time and the machine's boot: an id alone may have been given to
somebody else. All processes of a server carry its id in their environment, so that also a child that left
the process group, or outlived its parent, is found.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from optimizer.engine.serving.errors import StopFailed

MARKER = "RACKFORGE_SERVER"
_PROC = Path("/proc")


def boot_id() -> str:
    """Changes with every boot, since start times count from it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third (state) on, None where there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None where it is gone (a zombie counts as gone)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True, slots=True)
class Mark:
    """What a server's processes carry in MARKER: its id and where its state file is."""

    server_id: str
    state: Path

    def text(self) -> str:
        return f"{self.server_id} {self.state}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        server_id, _, state = text.partition(" ")
        return cls(server_id, Path(state))


def marked(server_id: str) -> list[int]:
    """Living processes that carry a server's id, in the order of their ids."""
    return sorted(pid for pid, mark in all_marked().items() if mark.server_id == server_id)


def all_marked() -> dict[int, Mark]:
    """Every living process of ours that belongs to some server."""
    needle = f"{MARKER}=".encode()
    found: dict[int, Mark] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:  # gone, or somebody else's
            continue
        for item in environ.split(b"\0"):
            if item.startswith(needle):
                if start_ticks(int(entry.name)) is not None:
                    text = item.removeprefix(needle).decode(errors="replace")
                    found[int(entry.name)] = Mark.parse(text)
                break
    return found


def shared_memory(server_id: str) -> tuple[str, ...]:
    """Names under /dev/shm that a server's processes have mapped: what stays behind when they are killed."""
    names: set[str] = set()
    for pid in marked(server_id):
        try:
            maps = (_PROC / str(pid) / "maps").read_text(errors="replace")
        except OSError:
            continue
        names.update(re.findall(r"\s/dev/shm/((?:psm_|sem\.mp-)\S+)$", maps, re.MULTILINE))
    return tuple(sorted(names))


def end(server_id: str, *, leader: int | None, grace_s: float) -> None:
    """End every process of a server: SIGTERM to the leader, a grace, then SIGKILL to all that is left.

    StopFailed where something outlives SIGKILL by ten seconds.
    """
    if leader is not None:
        _signal([leader], signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        # The engine core ends after its parent, by itself: it is given the same grace.
        while marked(server_id) and time.monotonic() < deadline:
            exit_status(leader)
            time.sleep(0.05)
    deadline = time.monotonic() + 10
    while left := marked(server_id):
        _signal(left, signal.SIGKILL)
        if leader is not None:
            exit_status(leader)
        if time.monotonic() > deadline:
            raise StopFailed(f"processes {left} of server {server_id} do not end; look at them with `ps -p`")
        time.sleep(0.02)
    if leader is not None:
        exit_status(leader)
    _sweep_shared_memory()


def _sweep_shared_memory() -> None:
    """Intel's OpenMP registers each process in shared memory and leaves that behind when it is killed."""
    for leftover in Path("/dev/shm").glob("__KMP_REGISTERED_LIB_*"):  # noqa: S108
        pid = leftover.name.split("_")[-2]
        if pid.isdigit() and not (_PROC / pid).exists():
            with contextlib.suppress(OSError):  # somebody else's, or swept by another
                leftover.unlink()


def exit_status(pid: int) -> int | None:
    """Collect a child of ours that has ended: its status as subprocess gives it, None otherwise.

    A server adopted from another worker is not our child; that it ended is seen from its start time.
    """
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done else None


def _signal(pids: Iterable[int], sig: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, sig)
        except (ProcessLookupError, PermissionError):
            continue
