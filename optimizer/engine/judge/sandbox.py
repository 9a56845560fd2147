"""Sandboxes and the candidate processes inside them, as the judge sees them.

A Sandbox is a warm process behind the wall. `spawn` gives a Session: one fresh candidate process with its socket and
its two shared segments. Everything that comes back is treated as hostile: its size, its nonce, its timing, its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from optimizer.engine.judge import wall
from rackforge_runtime.runner import frames
from rackforge_runtime.runner.confine import Held
from rackforge_runtime.runner.frames import KINDS, Op, Reply, Request, Status

STDERR_BYTES = 1 << 16
# Packages of the serving environment whose kernels a candidate is to replace, not to call.
HIDDEN = ("vllm",)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_CRED = struct.Struct("iII")


class SandboxFault(RuntimeError):
    """Our side failed: the sandbox did not start or died without a candidate's doing. INFRA_ERROR."""


class CandidateFault(RuntimeError):
    """The candidate's process did what it must not, or ended. `reason` is a stable code."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class Cancelled(RuntimeError):
    """The caller asked to stop."""


class Segment:
    """A shared memory file of fixed, sealed size, mapped writable here."""

    def __init__(self, name: str, size: int) -> None:
        self.size = max((size + mmap.PAGESIZE - 1) & -mmap.PAGESIZE, mmap.PAGESIZE)
        self.fd = os.memfd_create(name, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.size)
        # A file that the child could shrink would turn the judge's own reads into bus errors.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self.map = mmap.mmap(self.fd, self.size)

    def read_only(self) -> int:
        """A new descriptor that cannot be written through, nor mapped writable. The caller closes it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        # The mapping goes when its last numpy view does.
        with contextlib.suppress(BufferError):
            self.map.close()
        os.close(self.fd)


class Sandbox:
    """A warm process behind the wall, for one kind of candidate. Used by one thread at a time."""

    def __init__(
        self, *, kind: str, python: Path, bwrap: str | None, trusted: bool = False, start_timeout_s: float = 60.0
    ) -> None:
        self.kind, self.walled = kind, bwrap is not None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = wall.command(
            bwrap=bwrap, kind=kind, python=python, control_fd=theirs.fileno(), hide=() if trusted else HIDDEN
        )
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=wall.environment(),
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            raise SandboxFault(f"{argv[0]}: {error}") from error
        finally:
            theirs.close()
        assert self._process.stderr is not None  # noqa: S101
        os.set_blocking(self._process.stderr.fileno(), False)
        ready, _, _ = select.select([self._control], [], [], start_timeout_s)
        hello = b""
        if ready:
            with contextlib.suppress(OSError):
                hello = self._control.recv(frames.REPLY_BYTES)
        if not hello:
            why = self._diagnostics() or f"no answer within {start_timeout_s:.0f} s"
            self.close()
            raise SandboxFault(why)

    def _diagnostics(self) -> str:
        stream = self._process.stderr
        data = stream.read() if stream is not None else None
        return (data or b"").decode(errors="replace").strip()[-2000:]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def spawn(
        self,
        *,
        files: Sequence[tuple[str, bytes]],
        input_bytes: int,
        output_bytes: int,
        memory: int = 4 << 30,
        cpu_s: int = 600,
        cancelled: Callable[[], bool] | None = None,
        timeout_s: float = 20.0,
    ) -> Session:
        """A fresh candidate process around some files. SandboxFault when it does not come up."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        inputs, outputs = Segment("inputs", input_bytes), Segment("outputs", output_bytes)
        blob = frames.pack_files(files)
        errors = Segment("stderr", STDERR_BYTES)
        payload_fd = os.memfd_create("files", os.MFD_CLOEXEC)
        view = memoryview(blob)
        while view:
            view = view[os.write(payload_fd, view) :]
        status_read, status_write = os.pipe()
        read_only = inputs.read_only()
        request = frames.Spawn(
            kind=KINDS.index(self.kind),
            memory=memory + inputs.size + outputs.size,
            tmp_size=len(blob) * 2 + (64 << 20),
            file_size=max(len(blob) + 4096, 16 << 20),
            cpu_s=cpu_s,
            processes=64,
            nested=1,
        )
        try:
            socket.send_fds(
                self._control,
                [frames.pack_spawn(request)],
                [theirs.fileno(), payload_fd, errors.fd, read_only, outputs.fd, status_write],
            )
        except OSError as error:
            for fd in (payload_fd, status_read, status_write, read_only):
                os.close(fd)
            for thing in (ours, theirs, inputs, outputs, errors):
                thing.close()
            raise SandboxFault(f"the sandbox is gone: {self._diagnostics() or error}") from error
        for fd in (payload_fd, status_write, read_only):
            os.close(fd)
        theirs.close()
        return Session(ours, inputs, outputs, errors, status_read, cancelled, timeout_s)

    def close(self) -> None:
        """End the sandbox and everything in it."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()  # bwrap's --die-with-parent takes its PID namespace along
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """One candidate process. Requests go out one at a time; each reply must carry the request's nonce."""

    def __init__(
        self,
        sock: socket.socket,
        inputs: Segment,
        outputs: Segment,
        errors: Segment,
        status_fd: int,
        cancelled: Callable[[], bool] | None,
        timeout_s: float,
    ) -> None:
        self._sock, self.inputs, self.outputs, self._errors = sock, inputs, outputs, errors
        self._status_fd, self._cancelled = status_fd, cancelled
        self._pidfd = -1
        self.pid = 0
        self.held = Held(0)
        try:
            self._hello(timeout_s)
        except BaseException:
            self.close()
            raise

    def _hello(self, timeout_s: float) -> None:
        if not select.select([self._sock], [], [], timeout_s)[0]:
            raise SandboxFault(f"no candidate process within {timeout_s:.0f} s")
        data, ancillary, _, _ = self._sock.recvmsg(frames.REPLY_BYTES + 1, 1024)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.pid = _CRED.unpack(payload[: _CRED.size])[0]
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        try:
            reply = frames.unpack_reply(data)
            self._pidfd = os.pidfd_open(self.pid) if self.pid else -1
        except (frames.BadFrame, OSError) as error:
            raise SandboxFault(f"the candidate process did not start: {self.stderr() or error}") from error
        self.held = Held(reply.code)

    # --- requests

    def request(self, request: Request, *, timeout_s: float) -> Reply:
        """Send one request and wait for its reply. CandidateFault for every kind of misbehaviour."""
        return self.timed(frames.pack_request(request), request.nonce, timeout_s=timeout_s)[0]

    def timed(self, packed: bytes, nonce: int, *, timeout_s: float, resume: bool = False) -> tuple[Reply, int]:
        """The reply to a packed request and the nanoseconds between sending it and having it, by our clock.

        resume: the process is frozen and is let go inside the timed span: nothing it does is outside of it.
        """
        self._expect_silence()
        sock = self._sock
        deadline = time.monotonic() + timeout_s
        try:
            sock.settimeout(min(timeout_s, 0.25))
            start = time.perf_counter_ns()
            if resume:
                self.resume()
            sock.send(packed)
            while True:
                try:
                    data = sock.recv(frames.REPLY_BYTES + 1)
                    break
                except TimeoutError:
                    if self._cancelled is not None and self._cancelled():
                        raise Cancelled from None
                    if time.monotonic() > deadline:
                        raise CandidateFault("hang", f"no answer within {timeout_s:.1f} s") from None
            elapsed = time.perf_counter_ns() - start
        except (BrokenPipeError, ConnectionResetError):
            data, elapsed = b"", 0
        except OSError as error:
            raise CandidateFault("channel", f"the socket failed: {error}") from error
        if not data:
            raise CandidateFault("exit", self.ending())
        try:
            reply = frames.unpack_reply(data)
        except frames.BadFrame as error:
            raise CandidateFault("channel", str(error)) from error
        if reply.nonce != nonce:
            raise CandidateFault("channel", "an answer to a request that was not made")
        if reply.claimed_ns > elapsed:
            raise CandidateFault("clock", "claims more time than passed")
        return reply, elapsed

    def _expect_silence(self) -> None:
        if select.select([self._sock], [], [], 0)[0]:
            try:
                data = self._sock.recv(frames.REPLY_BYTES + 1, socket.MSG_DONTWAIT)
            except OSError:
                data = b""
            if data:
                raise CandidateFault("channel", "spoke without being asked")
            raise CandidateFault("exit", self.ending())

    # --- what we do to it and see of it

    def stop(self, timeout_s: float = 2.0) -> None:
        """Freeze every thread of the candidate, and see that they are."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + timeout_s
        while not self._stopped():
            if time.monotonic() > deadline:
                raise CandidateFault("channel", "the process cannot be stopped")
            time.sleep(20e-6)  # a waiting thread has to run for a moment to stop

    def _stopped(self) -> bool:
        """All threads stopped, or gone; True where the kernel's account of them is hidden from us."""
        try:
            tasks = os.listdir(f"/proc/{self.pid}/task")  # noqa: PTH208 - twice in each timed call
        except OSError:
            return True
        for task in tasks:
            try:
                with open(f"/proc/{self.pid}/task/{task}/stat", "rb") as f:  # noqa: PTH123
                    state = f.read().rpartition(b") ")[2][:1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in b"TtZX":
                return False
        return True

    def statics(self, name: str = "kernel.so") -> dict[int, bytes] | None:
        """The writable memory of a loaded object, zero-initialised part included; None where it is hidden."""
        found: dict[int, bytes] = {}
        try:
            ranges, inside = [], False
            for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
                span, mode, _, _, inode, *path = line.split(maxsplit=5)
                ours = bool(path) and path[0].endswith(f"/{name}")
                if "w" in mode and (ours or (inside and inode == "0" and not path)):
                    start, end = (int(x, 16) for x in span.split("-"))
                    ranges.append((start, end))
                inside = ours
            with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as f:  # noqa: PTH123
                for start, end in ranges:
                    f.seek(start)
                    found[start] = f.read(min(end - start, 16 << 20))
        except (OSError, ValueError):
            return None
        return found

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def cpu_ns(self) -> int:
        """CPU time that all threads of the process have used, by the kernel's account; 0 where it is hidden."""
        total = 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    total += int((task / "schedstat").read_text().split()[0])
        return total

    def threads(self) -> int:
        """Threads that the process has now; 0 where it is gone or hidden."""
        try:
            return len(list(Path(f"/proc/{self.pid}/task").iterdir()))
        except OSError:
            return 0

    def children(self) -> int:
        """Processes that it has started and that still are there."""
        count = 0
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                count += len((task / "children").read_text().split())
        return count

    def ending(self) -> str:
        """How the process ended, as its waiter saw it."""
        if not select.select([self._status_fd], [], [], 2.0)[0]:
            return "closed its socket"
        data = os.read(self._status_fd, 4)
        if len(data) != 4:
            return "was killed with its sandbox"
        (status,) = struct.unpack("<i", data)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            try:
                return f"killed by {signal.Signals(number).name}"
            except ValueError:
                return f"killed by signal {number}"
        return f"exited with {os.waitstatus_to_exitcode(status)}"

    def stderr(self) -> str:
        """What it wrote to stderr: text for people, never for a decision."""
        raw = bytes(self._errors.map)
        return raw.rstrip(b"\0").decode(errors="replace").strip()[-4000:]

    def close(self) -> None:
        """Kill the process and all that it started; forget its memory."""
        self._signal(signal.SIGKILL)
        if self._pidfd >= 0:
            select.select([self._pidfd], [], [], 5.0)  # readable once it is dead
            os.close(self._pidfd)
            self._pidfd = -1
        self._sock.close()
        os.close(self._status_fd)
        for segment in (self.inputs, self.outputs, self._errors):
            segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def new_nonce() -> int:
    """64 secret random bits."""
    return secrets.randbits(64)


def punch(segment: Segment, start: int, length: int) -> None:
    """Give pages of a segment back to the system."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    libc.fallocate(segment.fd, 3, start, length)


__all__ = [
    "Cancelled", "CandidateFault", "Op", "Sandbox", "SandboxFault", "Segment", "Session", "Status", "new_nonce",
]  # fmt: skip
