"""Child processes that end when they must: own process group, resource limits, deadline, bounded output.

For tools we trust (compilers, our own scripts). Hostile code runs behind the judge's wall instead.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one child may use. `None` leaves a limit as it is inherited."""

    wall_s: float = 60.0
    cpu_s: int | None = None
    address_space: int | None = None  # bytes
    file_size: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child ended. `returncode` is negative for a signal, as in subprocess."""

    returncode: int
    stdout: str
    stderr: str
    wall_s: float
    timed_out: bool
    cancelled: bool

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.timed_out and not self.cancelled


def kill_group(pid: int, sig: int = signal.SIGKILL) -> None:
    """Signal the process group that `pid` leads; silent where it is gone."""
    try:
        os.killpg(pid, sig)
    except (ProcessLookupError, PermissionError):
        return


def run(
    argv: Sequence[str],
    *,
    limits: Limits | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Finished:
    """Run a program to its end, its deadline or a cancel; its whole process group is gone afterwards.

    Output past OUTPUT_LIMIT bytes a stream is read and dropped, so a flood neither blocks nor fills memory.
    """
    limits = limits or Limits()

    def restrict() -> None:
        # Inherited by everything the child starts.
        if limits.cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
        if limits.address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limits.address_space, limits.address_space))
        if limits.file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_size, limits.file_size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    start = time.monotonic()
    with subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=restrict,  # noqa: PLW1509 - only async-signal-safe calls in there
    ) as child:
        assert child.stdout is not None  # noqa: S101
        assert child.stderr is not None  # noqa: S101
        kept: dict[int, bytearray] = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
        timed_out = was_cancelled = False
        with selectors.DefaultSelector() as selector:
            for fd in kept:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            if stdin is not None and child.stdin is not None:
                try:
                    child.stdin.write(stdin)
                    child.stdin.close()
                except BrokenPipeError:
                    pass
            while selector.get_map():
                left = start + limits.wall_s - time.monotonic()
                was_cancelled = cancelled is not None and cancelled()
                timed_out = left <= 0
                if timed_out or was_cancelled:
                    break
                for key, _ in selector.select(min(left, 0.2)):
                    try:
                        data = os.read(key.fd, 1 << 16)
                    except BlockingIOError:
                        continue
                    if not data:
                        selector.unregister(key.fd)
                        continue
                    room = OUTPUT_LIMIT - len(kept[key.fd])
                    kept[key.fd] += data[: max(room, 0)]
                if child.poll() is not None and not selector.select(0):
                    break  # a grandchild may hold the pipe open; the child itself is done
        if not (timed_out or was_cancelled):
            try:
                child.wait(max(start + limits.wall_s - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                timed_out = True
        kill_group(child.pid)
        child.wait()
        out, err = (bytes(kept[f.fileno()]).decode(errors="replace") for f in (child.stdout, child.stderr))
    return Finished(child.returncode, out, err, time.monotonic() - start, timed_out, was_cancelled)
