"""The warm process inside the wall: it imports what candidates need once and forks a fresh process for each.

A candidate's process lives in namespaces of its own, one level deeper: it cannot see, signal or trace this one,
and all that it started goes with it. Between them stands a waiter that reports how it ended.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence

from . import confine, frames
from .confine import Held
from .frames import KINDS, Segment, Status
from .serve import FOLDER, segments_of, serve

N_DESCRIPTORS = 6  # socket, files, stderr, inputs, outputs, status


def main(argv: Sequence[str]) -> None:
    """argv: number of the control socket, kind of candidate ("cpp", "python", "triton")."""
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    kind = argv[1]
    confine.drop_root()
    confine.die_with_parent()
    confine.no_new_privs()
    if kind != "cpp":
        warm_up(kind)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # waiters are reaped by the kernel
    control.send(frames.pack_reply(0, Status.OK, int(Held.NON_ROOT) if os.getuid() else 0))
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, N_DESCRIPTORS)
        if not data:
            return
        spawn = frames.unpack_spawn(data)
        if len(descriptors) != N_DESCRIPTORS:
            return
        if os.fork() == 0:
            control.close()
            try:
                waiter(spawn, descriptors)
            finally:
                os._exit(70)
        for fd in descriptors:
            os.close(fd)


def warm_up(kind: str) -> None:
    """Imports that cost seconds."""
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if kind == "triton":
        from . import interpreter

        interpreter.install()


def waiter(spawn: frames.Spawn, descriptors: list[int]) -> None:
    """Enter new namespaces, fork the candidate's process, wait for it, report its wait status."""
    confine.die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status_fd = descriptors[5]
    held = Held(0)
    if spawn.nested and confine.enter_namespaces():
        held |= Held.NAMESPACES
    pid = os.fork()
    if pid == 0:
        os.close(status_fd)
        try:
            candidate(spawn, descriptors[:5], held)
        except BaseException:  # noqa: BLE001 - nothing may fall through into the code of the waiter
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(71)
    for fd in descriptors[:5]:
        os.close(fd)
    _, status = os.waitpid(pid, 0)
    os.write(status_fd, struct.pack("<i", status))
    os._exit(0)


def candidate(spawn: frames.Spawn, descriptors: list[int], held: Held) -> None:
    """The candidate's process, before anything of the candidate's is loaded."""
    confine.die_with_parent()
    os.setsid()  # a signal to its process group must reach itself only
    confine.request_tiles()
    sock_fd, files_fd, stderr_fd, input_fd, output_fd = descriptors
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(stderr_fd, 2)
    blob = b""
    while chunk := os.pread(files_fd, 1 << 24, len(blob)):
        blob += chunk
    confine.limit_resources(
        cpu_s=spawn.cpu_s,
        memory=spawn.memory,
        file_size=spawn.file_size,
        processes=spawn.processes,
    )
    if held & Held.NAMESPACES and confine.private_tmp(spawn.tmp_size):
        held |= Held.PRIVATE_TMP
    # Only now: bubblewrap's own descriptors and the zygote's are none of the candidate's.
    keep = sorted({sock_fd, input_fd, output_fd})
    last = 2
    for fd in keep:
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, 4096)
    segments = segments_of({Segment.INPUT: input_fd, Segment.OUTPUT: output_fd})
    if os.getuid() != 0:
        held |= Held.NON_ROOT
    folder = FOLDER if held & Held.PRIVATE_TMP else f"{FOLDER}-{os.getpid()}"
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    if confine.no_new_privs():
        held |= Held.NO_NEW_PRIVS
        writable = ("/tmp",) if held & Held.PRIVATE_TMP else (folder,)  # noqa: S108
        if confine.landlock(writable):
            held |= Held.LANDLOCK
        if confine.seccomp():
            held |= Held.SECCOMP
    os.chdir(folder)
    sys.argv = ["kernel"]
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    serve(socket.socket(fileno=sock_fd), segments, KINDS[spawn.kind], blob, folder, int(held))
    os._exit(0)


# Nothing in a candidate's environment says what it is run for. Waiting OpenMP threads sleep.
ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "OMP_WAIT_POLICY": "passive",
    "PATH": "/usr/bin:/bin",
    "TMPDIR": "/tmp",  # noqa: S108
    "TRITON_INTERPRET": "1",
}
