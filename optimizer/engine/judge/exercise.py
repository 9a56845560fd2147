"""One call of a candidate with everything around it that keeps it honest.

Fresh places for every tensor, outputs poisoned with secret bytes and fenced with more of them, the process frozen
while its outputs are read, inputs compared with what was given, and all of it looked at again a little later.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimizer.engine.judge.compare import dtype_of
from optimizer.engine.judge.policy import JudgePolicy
from optimizer.engine.judge.sandbox import (
    CandidateFault,
    Op,
    SandboxFault,
    Segment,
    Session,
    Status,
    new_nonce,
    punch,
)
from optimizer.engine.tasks.base import Array, Inputs, KernelTask, Shape, TensorSpec
from rackforge_runtime.runner.frames import Left, Request, Tensor, pack_request
from rackforge_runtime.runner.frames import Segment as Where

PAGE = mmap.PAGESIZE
FENCE = 4096  # bytes of secret pattern on each side of an output
RF_DTYPE: Mapping[str, int] = {
    "float64": 1, "float32": 2, "bfloat16": 3, "float16": 4, "int64": 5, "int32": 6, "int8": 7, "uint8": 8,
    "bool": 9,
}  # fmt: skip
# CPU time used after a call has returned and its process is only waiting; the waiting itself costs none.
IDLE_CPU_NS = 1_000_000
SLACK_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tensors of one call lie; offsets in elements. alias: outputs share memory with the inputs they may."""

    misalign: int = 0
    input_pad: int = 0  # extra elements between rows
    output_pad: int = 0
    guarded: bool = False  # an unmapped page after the last byte of every tensor
    alias: bool = False


PLAIN = Layout()


@dataclass(frozen=True, slots=True)
class Made:
    """What one call made. Times in ns: ours around the request, what the runner claims, and the CPU time that all
    threads of the process used meanwhile by the kernel's account (threads that have ended are not in it)."""

    outputs: dict[str, Array]
    supported: bool
    elapsed_ns: int
    claimed_ns: int
    cpu_ns: int


@dataclass(slots=True)
class _Pending:
    """What is looked at again later."""

    zones: list[tuple[int, bytes]]
    cpu_ns: int
    at: float
    inputs: list[tuple[int, bytes]] = field(default_factory=list)


def span_elements(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a strided tensor, 0 for an empty one."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def strides(shape: Sequence[int], pad: int) -> tuple[int, ...]:
    """Row-major strides in elements, with `pad` elements after each row of a tensor of two or more axes."""
    out: list[int] = []
    step = 1
    for i in range(len(shape) - 1, -1, -1):
        out.append(step)
        step *= max(shape[i], 1)
        if i == len(shape) - 1 and len(shape) > 1:
            step += pad
    return tuple(reversed(out))


def dims_of(spec: TensorSpec, shape: Shape) -> tuple[int, ...]:
    """Lengths of a tensor's axes at a shape."""
    return tuple(shape[d] if d in shape else int(d) for d in spec.dims)


def arena_bytes(task: KernelTask, shapes: Sequence[Shape]) -> tuple[int, int]:
    """Sizes of the input and output segments: two sets of constants, room to vary places, fences."""
    constants = calls = made = 0
    for shape in shapes:
        size = {t.name: _bytes(t, shape) for t in (*task.inputs, *task.outputs)}
        constants = max(constants, sum(size[t.name] for t in task.constants))
        calls = max(calls, sum(size[t.name] for t in task.calls))
        made = max(made, sum(size[t.name] for t in task.outputs))
    slack = 16 * PAGE * (len(task.inputs) + len(task.outputs) + 4)
    return 2 * constants + 4 * calls + slack + (1 << 20), 6 * made + slack + (1 << 20)


def _bytes(spec: TensorSpec, shape: Shape) -> int:
    dims = dims_of(spec, shape)
    row = dims[-1] if dims else 1
    whole = int(np.prod(dims, dtype=np.int64)) if dims else 1
    # Rows may be padded by up to 32 elements.
    return (whole + 32 * (whole // max(row, 1) + 1)) * dtype_of(spec.dtype).itemsize


class Exerciser:
    """Calls one candidate process. Not thread-safe; one per Session."""

    def __init__(self, session: Session, task: KernelTask, policy: JudgePolicy, rng: np.random.Generator) -> None:
        self.session, self.task, self.policy = session, task, policy
        self._rng = rng
        self._tile = rng.bytes(1 << 16)
        self._pending: _Pending | None = None
        self._replayed: int | None = None
        self.calls = 0
        self.late_cpu_ns = 0

    # --- requests

    def load(self, *, poison: int = 0) -> None:
        """Load the candidate, after spoiling parts of its framework; CandidateFault("cannot-load") if it is none."""
        if poison:
            spoil = Request(Op.POISON, new_nonce(), poison)
            if self.session.request(spoil, timeout_s=self.policy.load_timeout_s).status != Status.OK:
                raise SandboxFault(f"the framework cannot be poisoned: {self.session.stderr()[-500:]}")
        status = self._ask(Op.LOAD, self.policy.load_timeout_s)
        if status is not Status.OK:
            raise CandidateFault("cannot-load", self.session.stderr() or "the candidate cannot be loaded")

    def _ask(self, op: Op, timeout_s: float) -> Status:
        reply = self.session.request(Request(op, new_nonce()), timeout_s=timeout_s)
        return _status(reply.status)

    def prepare(self, inputs: Inputs, shape: Shape, *, key: int = 0, forget: bool = True) -> bool:
        """Hand over the constants of state `key`; afterwards they are overwritten, as a server frees its weights.

        False when the kernel declines them. True at once for a task without constants.
        """
        if not self.task.constants:
            return True
        segment = self.session.inputs
        at = self._start(segment, sum(_bytes(t, shape) for t in self.task.constants) + 64 * 8)
        tensors, regions = [], []
        for spec in self.task.constants:
            array = _array(spec, inputs)
            at = -(-at // 64) * 64
            tensors.append(_tensor(spec, array.shape, strides(array.shape, 0), Where.INPUT, at, guarded=False))
            _view(segment, spec, array.shape, strides(array.shape, 0), at)[...] = array
            regions.append((at, array.nbytes))
            at += array.nbytes
        request = Request(Op.PREPARE, new_nonce(), key, 1, tuple(tensors))
        reply = self.session.request(request, timeout_s=self.policy.load_timeout_s)
        status = _status(reply.status)
        for (start, length), spec in zip(regions, self.task.constants, strict=True):
            if segment.map[start : start + length] != _array(spec, inputs).tobytes():
                raise CandidateFault("inputs-changed", f"{spec.name} during prepare")
            if forget:
                self._fill(segment, start, length)
        total = sum(n for _, n in regions)
        if total > 1 << 24:
            punch(segment, -(-regions[0][0] // PAGE) * PAGE, total & -PAGE)
        if status is Status.OK:
            return True
        if status is Status.UNSUPPORTED:
            return False
        raise CandidateFault("error", f"prepare failed with {reply.code}: {self.session.stderr()[-500:]}")

    def finish(self) -> None:
        """Look at the last call once more, and at what the candidate left behind."""
        self.settle()
        reply = self.session.request(Request(Op.CHECK, new_nonce()), timeout_s=self.policy.call_timeout_s)
        left = Left(reply.code & 7)
        if left & (Left.FLUSH_DENORMALS | Left.ROUNDING):
            raise CandidateFault("float-environment", "changed the rounding or denormals of the thread that calls it")
        if left & Left.VENDOR_CALLED:
            raise CandidateFault("vendor-call", "called a vendor operator of the framework")

    def replay_places(self) -> None:
        """From now on, every call's tensors lie where those of the call before did."""
        self._replayed = 0

    def fresh_places(self) -> None:
        """Back to places of their own for each call."""
        self._replayed = None

    def null_ns(self, count: int = 21, *, frozen: bool = True) -> list[int]:
        """What the channel itself costs: round trips of a call that does nothing, let go from the frozen state
        inside the timed span as every real call is, or without that.
        """
        times = []
        for _ in range(count):
            nonce = new_nonce()
            packed = pack_request(Request(Op.NULL, nonce))
            if frozen:
                self.session.stop()
            _, elapsed = self.session.timed(packed, nonce, timeout_s=self.policy.call_timeout_s, resume=frozen)
            times.append(elapsed)
        return times

    def call(
        self, inputs: Inputs, shape: Shape, *, key: int = 0, threads: int = 1, layout: Layout = PLAIN,
        align_to: int = 64, noop: bool = False, settle: bool = True,
    ) -> Made:  # fmt: skip
        """One call. CandidateFault for an error, a touched fence, changed inputs, writes after a refusal."""
        self.settle(wait=settle)
        task, session = self.task, self.session
        given: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        at = self._start(session.outputs, sum(_bytes(t, shape) + 2 * FENCE + 2 * PAGE for t in task.outputs))
        zones: list[tuple[int, int]] = []
        for spec in task.outputs:
            dims = dims_of(spec, shape)
            tensor, at = self._place(spec, dims, layout, layout.output_pad, Where.OUTPUT, at + FENCE, align_to)
            length = span_elements(dims, tensor.stride) * dtype_of(spec.dtype).itemsize
            start, end = max(tensor.offset - FENCE, 0), min(tensor.offset + length + FENCE, session.outputs.size)
            zones.append((start, end))
            made[spec.name] = tensor
            at = max(at, end)
        aliased = {t.may_alias: made[t.name] for t in task.outputs if layout.alias and t.may_alias}
        at = self._start(session.inputs, sum(_bytes(t, shape) + 2 * PAGE for t in task.calls))
        arrays = {t.name: _array(t, inputs) for t in task.calls}
        for spec in task.calls:
            if spec.name in aliased:
                given[spec.name] = aliased[spec.name]
                continue
            dims = arrays[spec.name].shape
            given[spec.name], at = self._place(spec, dims, layout, layout.input_pad, Where.INPUT, at, align_to)
        bind = Request(
            Op.BIND, new_nonce(), key, threads, tuple(given[t.name] for t in task.calls),
            tuple(made[t.name] for t in task.outputs),
        )  # fmt: skip
        status = _status(session.request(bind, timeout_s=self.policy.call_timeout_s).status)
        if status is not Status.OK:
            raise CandidateFault("bind", session.stderr()[-500:])
        # The process is frozen before the first value of this call can be seen and let go inside the timed span,
        # so that a thread which watches the memory gains nothing.
        session.stop()
        for start, end in zones:
            self._fill(session.outputs, start, end - start)
        kept: list[tuple[int, bytes]] = []
        for spec in task.calls:
            array, tensor = arrays[spec.name], given[spec.name]
            segment = session.outputs if spec.name in aliased else session.inputs
            length = span_elements(array.shape, tensor.stride) * array.dtype.itemsize
            if spec.name not in aliased:
                self._fill(segment, tensor.offset, length)
            _view(segment, spec, array.shape, tensor.stride, tensor.offset)[...] = array
            if spec.name not in aliased:
                kept.append((tensor.offset, segment.map[tensor.offset : tensor.offset + length]))
        before = [session.outputs.map[a:b] for a, b in zones]
        nonce = new_nonce()
        cpu_before = session.cpu_ns()
        packed = pack_request(Request(Op.NOOP if noop else Op.GO, nonce))
        reply, elapsed = session.timed(packed, nonce, timeout_s=self.policy.call_timeout_s, resume=True)
        session.stop()
        after = [session.outputs.map[a:b] for a, b in zones]
        outputs = {
            t.name: np.array(_view(session.outputs, t, dims_of(t, shape), made[t.name].stride, made[t.name].offset))
            for t in task.outputs
        }
        cpu = session.cpu_ns()
        session.resume()
        self.calls += 1
        self._pending = _Pending(
            [(a, data) for (a, _), data in zip(zones, after, strict=True)], cpu, time.monotonic(), kept
        )
        status = _status(reply.status)
        if status is Status.CANDIDATE_ERROR:
            raise CandidateFault("error", f"run failed with {reply.code}: {session.stderr()[-500:]}")
        if status not in (Status.OK, Status.UNSUPPORTED):
            raise CandidateFault("channel", f"answered {status.name}")
        for spec, (start, _), old, new in zip(task.outputs, zones, before, after, strict=True):
            if status is Status.UNSUPPORTED:
                if old != new:
                    raise CandidateFault("declined-but-wrote", spec.name)
                continue
            scratch = bytearray(new)
            tensor, dims = made[spec.name], dims_of(spec, shape)
            if span_elements(dims, tensor.stride):
                where = (dims, dtype_of(spec.dtype), tensor.offset - start, tensor.stride)
                _over(scratch, *where)[...] = _over(bytearray(old), *where)
            if bytes(scratch) != old:
                raise CandidateFault("out-of-bounds-write", f"around {spec.name}")
        self._check_inputs(kept)
        return Made(outputs, status is Status.OK, elapsed, reply.claimed_ns, max(cpu - cpu_before, 0))

    def settle(self, *, wait: bool = True) -> None:
        """Look again at the call before: outputs as they were at its return, inputs too, nobody still at work."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        left = pending.at + self.policy.settle_s - time.monotonic()
        if wait and left > 0:
            time.sleep(left)
        used = self.session.cpu_ns() - pending.cpu_ns
        waited_ns = (time.monotonic() - pending.at) * 1e9
        self.late_cpu_ns = max(self.late_cpu_ns, used)
        for start, data in pending.zones:
            if self.session.outputs.map[start : start + len(data)] != data:
                raise CandidateFault("wrote-after-return", "an output changed after the call had returned")
        self._check_inputs(pending.inputs)
        if used > IDLE_CPU_NS and used > SLACK_SHARE * waited_ns:
            raise CandidateFault("works-after-return", f"{used / 1e6:.1f} ms of CPU time after the call had returned")
        if self.session.children():
            raise CandidateFault("left-a-process", "a child process is alive after the call")

    def _check_inputs(self, kept: Sequence[tuple[int, bytes]]) -> None:
        for start, data in kept:
            if self.session.inputs.map[start : start + len(data)] != data:
                raise CandidateFault("inputs-changed", "an input is not what it was before the call")

    # --- places

    def _start(self, segment: Segment, need: int) -> int:
        """A random 64-byte aligned place with `need` bytes behind it."""
        if self._replayed is not None:
            return self._replayed
        room = segment.size - need - 4 * PAGE
        if room < 0:
            raise ValueError(f"a call needs {need} bytes, the segment has {segment.size}")
        return int(self._rng.integers(0, room // 64 + 1)) * 64

    def _place(
        self, spec: TensorSpec, dims: tuple[int, ...], layout: Layout, pad: int, where: Where, at: int, align_to: int
    ) -> tuple[Tensor, int]:  # fmt: skip
        item = dtype_of(spec.dtype).itemsize
        stride = strides(dims, pad)
        length = span_elements(dims, stride) * item
        if layout.guarded:
            start = -(-at // PAGE) * PAGE
            offset = -(-(start + length) // PAGE) * PAGE - length
        else:
            offset = -(-at // align_to) * align_to + layout.misalign * item
        return _tensor(spec, dims, stride, where, offset, guarded=layout.guarded), offset + length

    def _fill(self, segment: Segment, start: int, length: int) -> None:
        tile = self._tile
        shift = int(self._rng.integers(0, len(tile)))
        turned = tile[shift:] + tile[:shift]
        full, rest = divmod(length, len(tile))
        for i in range(full):
            segment.map[start + i * len(tile) : start + (i + 1) * len(tile)] = turned
        if rest:
            segment.map[start + length - rest : start + length] = turned[:rest]


def _status(value: int) -> Status:
    try:
        return Status(value)
    except ValueError:
        raise CandidateFault("channel", f"an unknown status {value}") from None


def _array(spec: TensorSpec, inputs: Inputs) -> Array:
    kind = dtype_of(spec.dtype)
    array = np.asarray(inputs[spec.name])
    return array if array.dtype == kind else array.astype(kind)


def _tensor(
    spec: TensorSpec, dims: Sequence[int], stride: Sequence[int], where: Where, offset: int, *, guarded: bool
) -> Tensor:
    return Tensor(int(where), int(guarded), offset, RF_DTYPE[spec.dtype], tuple(dims), tuple(stride))


def _view(segment: Segment, spec: TensorSpec, dims: Sequence[int], stride: Sequence[int], offset: int) -> Array:
    return _over(segment.map, dims, dtype_of(spec.dtype), offset, stride)


def _over(buffer: Any, dims: Sequence[int], kind: np.dtype[Any], offset: int, stride: Sequence[int]) -> Array:
    if any(n == 0 for n in dims):
        return np.empty(tuple(dims), dtype=kind)
    byte_strides = tuple(s * kind.itemsize for s in stride)
    return np.ndarray(tuple(dims), dtype=kind, buffer=buffer, offset=offset, strides=byte_strides)
