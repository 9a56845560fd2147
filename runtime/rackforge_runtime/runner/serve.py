"""One candidate process: load, prepare, run what the socket asks for, one request at a time."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import traceback

from . import frames
from .frames import KINDS, Left, Op, Segment, Status
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
            elif op == Op.POISON and kernel is None and kind != "cpp":
                from . import poison

                poison.install(request.state)
                status = Status.OK
            elif op == Op.CHECK:
                code, status = left_behind(), Status.OK
            elif op == Op.NOOP and kernel is not None:
                status = Status(null())
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


def left_behind() -> int:
    """Bits of `Left`: the floating-point environment of this thread, and poisoned operators that were called."""
    one, tiny, smallest, half_ulp = (float(x) for x in ("1", "2.2250738585072014e-308", "5e-324", "1e-16"))
    left = Left(0)
    if tiny / 2 == 0.0 or smallest * one == 0.0:
        left |= Left.FLUSH_DENORMALS
    if one + half_ulp != one or -one - half_ulp != -one:
        left |= Left.ROUNDING
    spoiled = sys.modules.get(__name__.rpartition(".")[0] + ".poison")
    if spoiled is not None and spoiled.CALLED:
        left |= Left.VENDOR_CALLED
    return int(left)


def segments_of(descriptors: dict[Segment, int]) -> Segments:
    """Map the two shared segments whole."""
    return Segments(descriptors, {s: os.fstat(descriptors[s]).st_size for s in Segment})


__all__ = ["FOLDER", "KINDS", "segments_of", "serve"]
