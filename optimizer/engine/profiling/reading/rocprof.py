"""rocprofv3's JSON results."""

from __future__ import annotations

from pathlib import Path

from optimizer.engine.profiling.reading.notes import Notes
from optimizer.engine.profiling.reading.source import TraceUnreadable
from optimizer.engine.profiling.reading.stream import JsonStream
from optimizer.engine.profiling.tracedata import Trace


def read_rocprof(stream: JsonStream, path: Path, notes: Notes, *, rank: int = 0) -> Trace:
    del stream, notes, rank
    raise TraceUnreadable(f"{path}: rocprofv3 results are not read yet")
