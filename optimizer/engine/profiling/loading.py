"""Open a trace, whatever wrote it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from optimizer.engine.profiling.reading.notes import Notes
from optimizer.engine.profiling.reading.source import TraceUnreadable, read_chunks
from optimizer.engine.profiling.reading.stream import JsonStream
from optimizer.engine.profiling.reading.torch_trace import read_torch
from optimizer.engine.profiling.tracedata import Trace


def load_trace(
    path: Path | str,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    limit_bytes: int | None = None,
    rank: int = 0,
) -> Trace:
    """Read a trace: torch profiler JSON or rocprofv3 JSON, plain or gzip.

    Damaged files give what can be read, with `warnings`. `on_progress(done, total)` counts bytes of the file.
    `rank` is used where the file does not say its own. Raises TraceUnreadable when nothing of it is a trace,
    TraceCancelled when `cancelled()` turns true.
    """
    path = Path(path)
    notes = Notes()
    chunks = read_chunks(path, notes, on_progress=on_progress, cancelled=cancelled, limit_bytes=limit_bytes)
    stream = JsonStream(chunks, notes)
    # Millions of small records live for a moment: the collector would walk them again and again for nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        head = stream.peek(1 << 16)
        if not head.strip():
            raise TraceUnreadable(f"{path}: the file is empty")
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
            raise TraceUnreadable(f"{path}: not JSON; a trace is a profiler's .json or .json.gz file")
        if b'"rocprofiler-sdk-tool"' in head:
            from optimizer.engine.profiling.reading.rocprof import read_rocprof

            return read_rocprof(stream, path, notes, rank=rank)
        return read_torch(stream, path, notes, rank=rank)
    finally:
        if collecting:
            gc.enable()
