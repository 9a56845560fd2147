"""One candidate process: load, prepare, run what the socket asks for, one request at a time."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import traceback

from . import frames
from .frames import KINDS, Op, Segment, Status
from .memory import Segments
from .native import CannotLoad, NativeKernel
from .pythonic import PythonKernel

FOLDER = "/tmp/candidate"  # noqa: S108 - the private tmpfs of the sandbox


def unpack(blob: bytes, folder: str) -> None:
    """Write a candidate's files into an empty folder of our own."""
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    for name, data in frames.unpack_files(blob):
        path = os.path.join(folder, name)  # noqa: PTH118
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as f:  # noqa: PTH123
            f.write(data)


def serve(sock: socket.socket, segments: Segments, kind: str, blob: bytes, folder: str, held: int) -> None:
    """Answer requests until the socket closes. The first message is ours: which protections are in force."""
    sock.send(frames.pack_reply(0, Status.OK, held))
    kernel: NativeKernel | PythonKernel | None = None
    null = NativeKernel.null() if kind == "cpp" else PythonKernel.null()
    bound = null
    clock, recv, send, pack = time.perf_counter_ns, sock.recv, sock.send, frames.pack_reply
    gc.disable()
    gc.freeze()
    while data := recv(frames.MAX_REQUEST_BYTES):
        request = frames.unpack_request(data)
        op, nonce = request.op, request.nonce
        if op in (Op.GO, Op.NULL):
            call = bound if op == Op.GO else null
            start = clock()
            status = call()
            elapsed = clock() - start
            send(pack(nonce, status if status in (0, 1) else Status.CANDIDATE_ERROR, status, elapsed))
            continue
        code = 0
        try:
            if op == Op.LOAD and kernel is None:
                unpack(blob, folder)
                if kind == "cpp":
                    kernel = NativeKernel(f"{folder}/kernel.so", segments)
                else:
                    kernel = PythonKernel(folder, segments)
                status = Status.OK
            elif op == Op.POISON and kernel is None:
                from .vendor import poison

                poison()
                status = Status.OK
            elif op == Op.PREPARE and kernel is not None:
                segments.drop_guarded()
                code = kernel.prepare(request.state, request.inputs)
                status = Status(code) if code in (0, 1) else Status.CANDIDATE_ERROR
            elif op == Op.BIND and kernel is not None:
                bound = null
                segments.drop_guarded()
                bound = kernel.bind(request.state, request.inputs, request.outputs, request.threads)
                status = Status.OK
            else:
                status = Status.BAD_REQUEST
        except CannotLoad as error:
            print(error, file=sys.stderr)
            status = Status.CANNOT_LOAD
        except (ValueError, KeyError, MemoryError, frames.BadFrame):
            traceback.print_exc()
            status = Status.BAD_REQUEST
        sys.stderr.flush()
        send(pack(nonce, status, code))


def segments_of(descriptors: dict[int, int]) -> Segments:
    """Map the two shared segments whole."""
    return Segments(descriptors, {s: os.fstat(descriptors[s]).st_size for s in Segment})


__all__ = ["FOLDER", "KINDS", "segments_of", "serve"]
