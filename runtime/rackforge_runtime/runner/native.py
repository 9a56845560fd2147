"""C++ candidates: a shared object with the C interface of rackforge_kernel.h, called through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .frames import MAX_DIMS, Status, Tensor
from .memory import Segments, State

Call = Callable[[], int]


class RfTensor(ctypes.Structure):
    """struct rf_tensor"""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("stride", ctypes.c_int64 * MAX_DIMS),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class CannotLoad(RuntimeError):
    """The candidate is not one: no entry point, a wrong version, an import that fails."""


def _describe(tensors: tuple[Tensor, ...], segments: Segments) -> ctypes.Array[RfTensor]:
    out = (RfTensor * max(len(tensors), 1))()
    for slot, t in zip(out, tensors, strict=False):
        slot.data = segments.address(t)
        slot.ndim, slot.dtype = len(t.shape), t.dtype
        for i, (n, s) in enumerate(zip(t.shape, t.stride, strict=True)):
            slot.shape[i], slot.stride[i] = n, s
    return out


class NativeKernel:
    """A loaded object. Statuses of rf_status are those of the protocol for 0 and 1; anything else is an error."""

    def __init__(self, path: str, segments: Segments) -> None:
        self._segments = segments
        try:
            lib = ctypes.CDLL(path)
            self._run, abi = lib.rf_run, lib.rf_abi
        except (OSError, AttributeError) as error:
            raise CannotLoad(str(error)) from error
        if abi() != 1:
            raise CannotLoad("rf_abi() is not 1")
        self._bytes = getattr(lib, "rf_prepare_bytes", None)
        self._prepare = getattr(lib, "rf_prepare", None)
        for f in (self._run, self._bytes, self._prepare):
            if f is not None:
                f.restype = ctypes.c_int32
        self._states: dict[int, State] = {}

    def prepare(self, key: int, constants: tuple[Tensor, ...]) -> int:
        """Fill state `key` anew from the constants."""
        if self._prepare is None or self._bytes is None:
            return Status.OK
        old = self._states.pop(key, None)
        if old is not None:
            old.free()
        described, size = _describe(constants, self._segments), ctypes.c_int64(0)
        status = self._bytes(described, len(constants), ctypes.byref(size))
        if status != 0:
            return int(status)
        if size.value < 0:
            return Status.CANDIDATE_ERROR
        state = State(size.value)
        status = self._prepare(described, len(constants), ctypes.c_void_p(state.address))
        state.seal()
        self._states[key] = state
        return int(status)

    def bind(self, key: int, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], threads: int) -> Call:
        """The next call, ready to be made with nothing left to look up."""
        given, made = _describe(inputs, self._segments), _describe(outputs, self._segments)
        state = self._states.get(key)
        args = (
            given, ctypes.c_int32(len(inputs)), made, ctypes.c_int32(len(outputs)),
            ctypes.c_void_p(state.address if state else None), ctypes.c_int32(threads),
        )  # fmt: skip
        run = self._run
        return lambda: run(*args)

    @staticmethod
    def null() -> Call:
        """A call into C that does nothing, by the same way."""
        labs = ctypes.CDLL(None).labs
        zero = ctypes.c_long(0)
        return lambda: int(labs(zero))
