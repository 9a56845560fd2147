"""Frames between the judge and the runner: fixed little-endian structs, one per SOCK_SEQPACKET message.

No pickles and no text. A frame that is not exactly as long as its kind says is refused, on both sides.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

MAGIC = b"RFJ1"
MAX_DIMS = 8
MAX_TENSORS = 32


class Op(IntEnum):
    """What the judge asks of a runner."""

    SPAWN = 1  # of the zygote: fork a fresh candidate process around the file descriptors that come along
    LOAD = 2  # load the candidate; once
    PREPARE = 3  # constants -> state `state`
    BIND = 4  # describe the next call: its tensors, its state
    GO = 5  # run the bound call; the only timed request
    NULL = 6  # do nothing, by the same path: what the channel itself costs
    NOOP = 7  # answer as GO would without running the kernel (provenance)
    POISON = 8  # make parts of the framework give wrong results (`state` says which, see Poison); before LOAD
    CHECK = 9  # what the candidate left behind in its process, as bits of Left


class Poison(IntFlag):
    """What POISON spoils, so that an output which changes shows what it was made by."""

    VENDOR = 1  # the framework's own matrix products, softmaxes, norms, ...
    KERNELS = 2  # launches of Triton kernels do nothing


class Left(IntFlag):
    """What a candidate changed for the rest of its process."""

    FLUSH_DENORMALS = 1
    ROUNDING = 2
    VENDOR_CALLED = 4  # a poisoned vendor operator was called


class Segment(IntEnum):
    """Which shared mapping a tensor lives in."""

    INPUT = 0  # the runner's descriptor is read-only: an input cannot be written at all
    OUTPUT = 1


class Status(IntEnum):
    """How a runner answers. UNSUPPORTED is the candidate's right to decline; nothing may be written then."""

    OK = 0
    UNSUPPORTED = 1
    CANDIDATE_ERROR = 2
    BAD_REQUEST = 3
    CANNOT_LOAD = 4


class Tensor(NamedTuple):
    """A tensor in shared memory: `offset` in bytes, strides in elements; `guarded` asks for a private mapping
    with an unmapped page right after its last byte."""

    segment: int
    guarded: int
    offset: int
    dtype: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `nonce` must come back in the reply; it is drawn anew for each request."""

    op: int
    nonce: int
    state: int = 0
    threads: int = 1
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


class Reply(NamedTuple):
    """A runner's answer: `claimed_ns` is its own clock around the kernel, a claim like all the rest."""

    nonce: int
    status: int
    code: int
    claimed_ns: int


_REQUEST = struct.Struct("<4sHHQIIII")
_TENSOR = struct.Struct("<HHIiiQ" + "q" * MAX_DIMS + "q" * MAX_DIMS)
_REPLY = struct.Struct("<4sHHQqQ")
REPLY_BYTES = _REPLY.size
MAX_REQUEST_BYTES = _REQUEST.size + MAX_TENSORS * _TENSOR.size


class BadFrame(ValueError):
    """Bytes that are not a frame of this protocol."""


def pack_request(request: Request) -> bytes:
    """Bytes of a request. ValueError when it has too many tensors or dimensions, or a number out of range."""
    tensors = (*request.inputs, *request.outputs)
    if len(tensors) > MAX_TENSORS:
        raise ValueError(f"{len(tensors)} tensors, more than {MAX_TENSORS}")
    try:
        head = _REQUEST.pack(
            MAGIC, 1, request.op, request.nonce, request.state, request.threads,
            len(request.inputs), len(request.outputs),
        )  # fmt: skip
        return head + b"".join(_pack_tensor(t) for t in tensors)
    except struct.error as error:
        raise ValueError(f"a request that does not fit its frame: {error}") from error


def _pack_tensor(t: Tensor) -> bytes:
    n = len(t.shape)
    if n > MAX_DIMS or len(t.stride) != n:
        raise ValueError(f"a tensor of {n} dimensions with {len(t.stride)} strides")
    fill = (0,) * (MAX_DIMS - n)
    return _TENSOR.pack(t.segment, t.guarded, 0, n, t.dtype, t.offset, *t.shape, *fill, *t.stride, *fill)


def unpack_request(data: bytes) -> Request:
    """The request in some bytes; BadFrame for anything else."""
    if len(data) < _REQUEST.size:
        raise BadFrame(f"{len(data)} bytes are no request")
    magic, version, op, nonce, state, threads, n_in, n_out = _REQUEST.unpack_from(data)
    total = n_in + n_out
    if magic != MAGIC or version != 1 or total > MAX_TENSORS:
        raise BadFrame("not a request of this protocol")
    if len(data) != _REQUEST.size + total * _TENSOR.size:
        raise BadFrame(f"{len(data)} bytes for {total} tensors")
    tensors = [_unpack_tensor(data, _REQUEST.size + i * _TENSOR.size) for i in range(total)]
    return Request(op, nonce, state, threads, tuple(tensors[:n_in]), tuple(tensors[n_in:]))


def _unpack_tensor(data: bytes, at: int) -> Tensor:
    segment, guarded, _, ndim, dtype, offset, *dims = _TENSOR.unpack_from(data, at)
    if not 0 <= ndim <= MAX_DIMS:
        raise BadFrame(f"{ndim} dimensions")
    return Tensor(segment, guarded, offset, dtype, tuple(dims[:ndim]), tuple(dims[MAX_DIMS : MAX_DIMS + ndim]))


def pack_reply(nonce: int, status: int, code: int = 0, claimed_ns: int = 0) -> bytes:
    """Bytes of a reply."""
    return _REPLY.pack(MAGIC, 1, status, nonce, code, claimed_ns)


def unpack_reply(data: bytes) -> Reply:
    """The reply in some bytes; BadFrame for anything else."""
    if len(data) != REPLY_BYTES:
        raise BadFrame(f"{len(data)} bytes, a reply has {REPLY_BYTES}")
    magic, version, status, nonce, code, claimed_ns = _REPLY.unpack(data)
    if magic != MAGIC or version != 1:
        raise BadFrame("not a reply of this protocol")
    return Reply(nonce, status, code, claimed_ns)


_SPAWN = struct.Struct("<4sHHQQQQIIII")


class Spawn(NamedTuple):
    """What the zygote needs to start a candidate process. Sizes in bytes."""

    kind: int  # index into KINDS
    memory: int
    tmp_size: int
    file_size: int
    cpu_s: int
    processes: int
    nested: int  # 1: own namespaces for this candidate


KINDS = ("cpp", "python", "triton")


def pack_spawn(spawn: Spawn) -> bytes:
    """Bytes of a spawn request; the descriptors travel beside it."""
    return _SPAWN.pack(
        MAGIC, 1, Op.SPAWN, 0, spawn.memory, spawn.tmp_size, spawn.file_size, spawn.cpu_s, spawn.processes,
        spawn.kind, spawn.nested,
    )  # fmt: skip


def unpack_spawn(data: bytes) -> Spawn:
    """The spawn request in some bytes; BadFrame for anything else."""
    if len(data) != _SPAWN.size:
        raise BadFrame(f"{len(data)} bytes are no spawn request")
    magic, version, op, _, memory, tmp_size, file_size, cpu_s, processes, kind, nested = _SPAWN.unpack(data)
    if magic != MAGIC or version != 1 or op != Op.SPAWN or kind >= len(KINDS):
        raise BadFrame("not a spawn request of this protocol")
    return Spawn(kind, memory, tmp_size, file_size, cpu_s, processes, nested)


_ENTRY = struct.Struct("<IQ")


def pack_files(files: Sequence[tuple[str, bytes]]) -> bytes:
    """A candidate's files as one blob: for each the length of its name, of its data, and both."""
    out = [struct.pack("<I", len(files))]
    for name, data in files:
        raw = name.encode()
        out += [_ENTRY.pack(len(raw), len(data)), raw, data]
    return b"".join(out)


def unpack_files(blob: bytes) -> list[tuple[str, bytes]]:
    """The files of a blob; BadFrame when it is cut or has more than it says."""
    try:
        (count,) = struct.unpack_from("<I", blob)
        at, files = 4, []
        for _ in range(count):
            n, size = _ENTRY.unpack_from(blob, at)
            at += _ENTRY.size
            if at + n + size > len(blob):
                raise BadFrame("a file blob that is cut")
            files.append((blob[at : at + n].decode(), blob[at + n : at + n + size]))
            at += n + size
    except (struct.error, UnicodeDecodeError) as error:
        raise BadFrame(f"not a file blob: {error}") from error
    if at != len(blob):
        raise BadFrame("a file blob with bytes after its end")
    return files
