"""Calling a kernel's shared object from the server with as little Python as can be.

About forty calls sit in a decoding step of a few milliseconds, so everything that can be is made once per
layer: the C structures are filled in advance and only pointers and the batch size change.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

OK, UNSUPPORTED, ERROR = 0, 1, 2
FLOAT64, FLOAT32, BFLOAT16, FLOAT16 = 1, 2, 3, 4
MAX_DIMS = 8
WORDS = 18  # 64-bit words of an rf_tensor: data, shape[8], stride[8], ndim and dtype
_HUGE = 2 << 20
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
_RUN_ARGS = (
    ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32,
)  # fmt: skip

RunFunction = Callable[[int, int, int, int, int | None, int], int]


class CannotUse(RuntimeError):
    """A kernel that does not run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor for C: address, lengths, strides in elements, rf_dtype."""

    data: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: int


def allow_amx() -> bool:
    """Ask Linux for the AMX tiles, which a process may only use after asking; whether it has them now.

    oneDNN asks when its first product runs, and vLLM's attention relies on that: where our kernels answer in
    its place nobody would have asked, and the attention kernel would die of an illegal instruction.
    """
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    try:
        return int(ctypes.CDLL(None, use_errno=True).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)) == 0
    except (OSError, AttributeError):
        return False


class Frame:
    """An array of rf_tensor whose words can be set by index: word 18*i is the data pointer of tensor i."""

    __slots__ = ("_keep", "address", "words")

    def __init__(self, tensors: Sequence[Described]) -> None:
        self._keep = (ctypes.c_int64 * (WORDS * max(len(tensors), 1)))()
        self.address = ctypes.addressof(self._keep)
        self.words = memoryview(self._keep).cast("B").cast("q")
        for i, t in enumerate(tensors):
            base = WORDS * i
            self.words[base] = t.data
            for d, (n, s) in enumerate(zip(t.shape, t.stride, strict=True)):
                self.words[base + 1 + d], self.words[base + 1 + MAX_DIMS + d] = n, s
            self.words[base + 17] = len(t.shape) | t.dtype << 32


class Prepared:
    """A kernel's prepared state of one layer: huge pages where the system gives them, 64-byte aligned."""

    __slots__ = ("_map", "address", "bytes")

    def __init__(self, size: int) -> None:
        self.bytes = size
        if size == 0:
            self._map, self.address = None, None
            return
        whole = -(-size // _HUGE) * _HUGE + _HUGE if size >= _HUGE else -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if size >= _HUGE:
            with contextlib.suppress(OSError, AttributeError):  # a kernel without transparent huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
            start = -(-start // _HUGE) * _HUGE
        self.address: int | None = start


class NativeObject:
    """A loaded shared object with the C interface of rackforge_kernel.h, version 1."""

    def __init__(self, path: Path) -> None:
        try:
            lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
            abi, self.run = lib.rf_abi, lib.rf_run
        except (OSError, AttributeError) as error:
            raise CannotUse(f"does not load: {error}") from error
        abi.restype = ctypes.c_int32
        if abi() != 1:
            raise CannotUse(f"interface version {abi()}, not 1")
        self.run.argtypes, self.run.restype = _RUN_ARGS, ctypes.c_int32
        self._lib = lib
        self._bytes = getattr(lib, "rf_prepare_bytes", None)
        self._prepare = getattr(lib, "rf_prepare", None)
        for f, args in (
            (self._bytes, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)),
            (self._prepare, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)),
        ):
            if f is not None:
                f.argtypes, f.restype = args, ctypes.c_int32

    def prepare(self, constants: Sequence[Described]) -> Prepared:
        """Prepared state of some constants. CannotUse where the kernel refuses them or memory is out."""
        if self._bytes is None or self._prepare is None:
            return Prepared(0)
        frame, size = Frame(constants), ctypes.c_int64(0)
        status = self._bytes(frame.address, len(constants), ctypes.addressof(size))
        if status != OK or size.value < 0:
            raise CannotUse(f"rf_prepare_bytes answered {status} for {[t.shape for t in constants]}")
        try:
            state = Prepared(size.value)
        except (OSError, ValueError, OverflowError) as error:
            raise CannotUse(f"no memory for {size.value} bytes of prepared weights: {error}") from error
        if size.value:
            status = self._prepare(frame.address, len(constants), state.address)
            if status != OK:
                raise CannotUse(f"rf_prepare answered {status} for {[t.shape for t in constants]}")
        return state
