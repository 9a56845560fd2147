"""The runner's side of shared memory: mappings of the judge's segments, private guarded ones, kernel state."""

from __future__ import annotations

import ctypes
import mmap

from .frames import Segment, Tensor

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
PAGE = mmap.PAGESIZE
READ, WRITE, SHARED, PRIVATE, FIXED, ANONYMOUS = 1, 2, 1, 2, 0x10, 0x20
HUGEPAGE, POPULATE_READ, POPULATE_WRITE = 14, 22, 23
_FAILED = ctypes.c_void_p(-1).value
ITEM_SIZE = {1: 8, 2: 4, 3: 2, 4: 2, 5: 8, 6: 4, 7: 1, 8: 1, 9: 1}  # by rf_dtype


def _map(size: int, protection: int, flags: int, fd: int = -1, offset: int = 0, at: int | None = None) -> int:
    address = _libc.mmap(at, size, protection, flags, fd, offset)
    if address is None or address == _FAILED:
        raise MemoryError(f"mmap of {size} bytes failed (errno {ctypes.get_errno()})")
    return int(address)


class Segments:
    """The two shared mappings. `address(tensor)` gives where a tensor's first element is."""

    def __init__(self, descriptors: dict[Segment, int], sizes: dict[Segment, int]) -> None:
        self._fds, self._sizes = descriptors, sizes
        self._protection = {Segment.INPUT: READ, Segment.OUTPUT: READ | WRITE}
        self._base = {s: _map(sizes[s], self._protection[s], SHARED, descriptors[s]) for s in sizes}
        self._guarded: list[tuple[int, int]] = []

    def address(self, tensor: Tensor) -> int:
        """ValueError for a tensor outside of its segment."""
        segment, span = Segment(tensor.segment), span_bytes(tensor)
        if tensor.offset < 0 or tensor.offset + span > self._sizes[segment]:
            raise ValueError("a tensor outside of its segment")
        if tensor.guarded:
            return self._map_guarded(segment, tensor.offset, span)
        address = self._base[segment] + tensor.offset
        if span:
            start = address & -PAGE
            advice = POPULATE_READ if segment == Segment.INPUT else POPULATE_WRITE
            _libc.madvise(start, address + span - start, advice)  # no page faults inside the timed call
        return address

    def _map_guarded(self, segment: Segment, offset: int, span: int) -> int:
        start = offset & -PAGE
        length = max((offset + span - start + PAGE - 1) & -PAGE, PAGE)
        whole = _map(length + 2 * PAGE, 0, PRIVATE | ANONYMOUS)
        self._guarded.append((whole, length + 2 * PAGE))
        if offset + span == start:  # nothing to map: any touch is out of bounds
            return whole + PAGE + (offset - start)
        _map(length, self._protection[segment], SHARED | FIXED, self._fds[segment], start, whole + PAGE)
        return whole + PAGE + (offset - start)

    def drop_guarded(self) -> None:
        """Unmap the private mappings of the call before."""
        for address, length in self._guarded:
            _libc.munmap(address, length)
        self._guarded.clear()


def span_bytes(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to its last one, 0 when it has none."""
    if any(n == 0 for n in tensor.shape):
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride, strict=True))
    return (last + 1) * ITEM_SIZE[tensor.dtype]


class State:
    """Prepared state of a C++ kernel: page-aligned, read-only once it is filled (rf_run gets it const)."""

    def __init__(self, size: int) -> None:
        self.size = (size + PAGE - 1) & -PAGE
        self.address = _map(self.size, READ | WRITE, PRIVATE | ANONYMOUS) if size else 0
        if size:
            _libc.madvise(self.address, self.size, HUGEPAGE)

    def seal(self) -> None:
        if self.size:
            _libc.mprotect(self.address, self.size, READ)

    def free(self) -> None:
        if self.size:
            _libc.munmap(self.address, self.size)
