"""The bytes of a trace file, decompressed as they are read."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from optimizer.engine.profiling.reading.notes import Notes

CHUNK = 1 << 20  # bytes of the file read at once
_GZIP = b"\x1f\x8b"


class TraceUnreadable(ValueError):
    """Nothing of the file can be read as a trace; the text says what it is instead."""


class TraceCancelled(RuntimeError):
    """`cancelled()` turned true while the trace was being read."""


def read_chunks(
    path: Path,
    notes: Notes,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    limit_bytes: int | None = None,
) -> Iterator[bytes]:
    """Decompressed pieces of a file, plain or gzip (any number of members), at most a few MB each.

    A gzip stream that ends early or is damaged gives what came before, and a note. `on_progress(done, total)`
    counts bytes of the file as stored. `limit_bytes` bounds the decompressed size (a small file can unpack to
    anything). Raises TraceUnreadable when there is no such file, TraceCancelled when `cancelled()` says so.
    """
    try:
        total = path.stat().st_size
        handle = path.open("rb")
    except OSError as error:
        raise TraceUnreadable(f"{path}: {error.strerror or error}") from error
    given = 0
    with handle:
        head = handle.read(2)
        handle.seek(0)
        unpack = zlib.decompressobj(wbits=31) if head == _GZIP else None
        done = 0
        while piece := handle.read(CHUNK):
            if cancelled is not None and cancelled():
                raise TraceCancelled(f"{path}: reading was cancelled")
            done += len(piece)
            for out in (piece,) if unpack is None else _inflate(unpack, piece):
                if out is None:
                    notes.add("gzip-damaged", f"the gzip data is damaged after {given:,} bytes; what follows is lost")
                    return
                if isinstance(out, bytes):
                    given += len(out)
                    if limit_bytes is not None and given > limit_bytes:
                        notes.add("too-large", f"unpacks to more than {limit_bytes:,} bytes; the rest is not read")
                        return
                    yield out
                else:
                    unpack = out
            if on_progress is not None:
                on_progress(done, total)
        if unpack is not None and not unpack.eof:
            notes.add("gzip-truncated", f"the gzip data ends early, after {given:,} bytes; what follows is lost")


def _inflate(unpack: zlib._Decompress, piece: bytes) -> Iterator[bytes | zlib._Decompress | None]:
    """Output for one piece of input: bytes, a new decompressor where a member follows another, None for damage."""
    while piece:
        spare = unpack.copy()
        try:
            out = unpack.decompress(piece, 4 * CHUNK)
        except zlib.error:
            yield from _until_damage(spare, piece)
            yield None
            return
        if out:
            yield out
        if unpack.eof:
            piece = unpack.unused_data.lstrip(b"\0")  # padding after a member is legal
            if not piece:
                return
            unpack = zlib.decompressobj(wbits=31)
            yield unpack
        else:
            piece = unpack.unconsumed_tail
            if not piece and not out:
                return


def _until_damage(unpack: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    """What a damaged piece still holds: one call would give nothing of it, small steps give all but the last."""
    for at in range(0, len(piece), 64):
        try:
            out = unpack.decompress(piece[at : at + 64])
        except zlib.error:
            return
        if out:
            yield out
