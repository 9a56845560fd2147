"""The Chrome trace that torch.profiler (Kineto) writes, and others like it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct

from optimizer.engine.profiling.reading.columns import Columns
from optimizer.engine.profiling.reading.notes import Notes
from optimizer.engine.profiling.reading.source import TraceUnreadable
from optimizer.engine.profiling.reading.stream import JsonStream
from optimizer.engine.profiling.tracedata import CallTable, Collective, Kind, Trace, Track

EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_HEAD_LIMIT = 64 << 20
_TAIL_LIMIT = 16 << 20

# Category to kind; Kineto's present names and those of older versions.
_KINDS: dict[str | None, Kind] = {
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.DEVICE_ANNOTATION,
}
_ABSENT = Raw(b"")
Number = int | float | str | None


class Args(Struct, gc=False):
    """The arguments we use; the rest is skipped without being built."""

    external: Number = msgspec.field(name="External id", default=None)
    correlation: Number = None
    dims: Raw = msgspec.field(name="Input Dims", default=_ABSENT)
    types: Raw = msgspec.field(name="Input type", default=_ABSENT)
    strides: Raw = msgspec.field(name="Input Strides", default=_ABSENT)
    values: Raw = msgspec.field(name="Concrete Inputs", default=_ABSENT)
    size: Number = msgspec.field(name="bytes", default=None)
    grid: Raw = _ABSENT
    block: Raw = _ABSENT
    name: Any = None
    labels: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements_in: Number = msgspec.field(name="In msg nelems", default=None)
    elements_out: Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    group_size: Number = msgspec.field(name="Group size", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)


class Event(Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None


_DECODER = msgspec.json.Decoder(list[Event])


def read_torch(stream: JsonStream, path: Path, notes: Notes, *, rank: int = 0) -> Trace:
    """Read a Chrome trace. Raises TraceUnreadable where the text has no list of events."""
    metadata: dict[str, Any] = {}
    if stream.peek(4096).lstrip()[:1] == b"[":
        stream.seek(re.compile(rb"\["))  # the bare list form of a Chrome trace
    else:
        found = stream.seek(EVENTS, keep=_HEAD_LIMIT)
        if found is None:
            raise TraceUnreadable(f"{path}: no traceEvents in it; this is not a profiler's trace")
        metadata |= _keys(found[0].rstrip().rstrip(b",") + b"}", notes)
    reader = _Reader(notes)
    for batch in stream.objects(_DECODER, Event):
        reader.take(batch)
    tail = stream.rest(_TAIL_LIMIT).strip()
    if tail.startswith(b","):
        metadata |= _keys(b"{" + tail[1:], notes)
    return reader.finish(path, metadata, stream.read_bytes, rank)


def _keys(text: bytes, notes: Notes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        notes.add("metadata-damaged", "the trace's description of itself (version, devices, ranks) is damaged")
        return {}
    return value if isinstance(value, dict) else {}


def _whole(value: Number) -> int:
    """An identifier or a count; -1 for none. Text of digits counts."""
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else -1
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and abs(value) < 2**63 else -1
    if isinstance(value, str):
        try:
            return _whole(int(value))
        except ValueError:
            return -1
    return -1


def _real(value: Number) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return float(value) if value is not None else math.nan
    except ValueError:
        return math.nan


class _Reader:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.columns = Columns()
        self.names: dict[str, int] = {}
        self.tracks: dict[tuple[Any, Any, bool], int] = {}
        self.calls = CallTable()
        self.launches: dict[bytes, int] = {}
        self.collectives: dict[int, Collective] = {}
        self.track_names: dict[tuple[Any, Any], str] = {}
        self.process_names: dict[Any, str] = {}
        self.open: dict[tuple[Any, Any], list[Event]] = {}
        self.base: int | None = None
        self.window: tuple[float, float] | None = None

    def take(self, batch: list[Event]) -> None:
        spans = [e for e in batch if e.ph == "X"]
        if len(spans) != len(batch):
            spans += self._others(batch)
        if not spans:
            return
        try:
            ts = np.array([e.ts for e in spans], np.float64)
            dur = np.array([0.0 if e.dur is None else e.dur for e in spans], np.float64)
        except (TypeError, ValueError, OverflowError):
            ts = np.array([_real(e.ts) for e in spans], np.float64)
            dur = np.array([0.0 if e.dur is None else _real(e.dur) for e in spans], np.float64)
        good = np.isfinite(ts) & np.isfinite(dur) & (np.abs(ts) < 9e15) & (np.abs(dur) < 9e12)
        if not good.all():
            self.notes.add("no-time", "events without a usable start or duration were left out", int((~good).sum()))
            spans = [e for e, ok in zip(spans, good, strict=True) if ok]
            ts, dur = ts[good], dur[good]
            if not spans:
                return
        if (dur < 0).any():
            self.notes.add(
                "negative-duration", "events that end before they start were read as 0 long", int((dur < 0).sum())
            )
            dur = np.maximum(dur, 0.0)
        # Kineto's stamps are decimals of 1 ns: rounding gives back what the double could not hold.
        start = np.rint(ts * 1000.0).astype(np.int64)
        if self.base is None:
            self.base = int(start[0])
        self._add(spans, start - self.base, np.rint(dur * 1000.0).astype(np.int64))

    def _add(self, spans: list[Event], start: Any, duration: Any) -> None:
        names, tracks, index, launches = self.names, self.tracks, self.calls.index, self.launches
        kinds = [_KINDS.get(e.cat, Kind.OTHER) for e in spans]
        external, correlation, call, size, launch = [], [], [], [], []
        row = self.columns.rows
        for event, kind in zip(spans, kinds, strict=True):
            args = event.args
            if args is None or kind is Kind.PYTHON:
                external.append(-1)
                correlation.append(-1)
                call.append(-1)
                size.append(-1)
                launch.append(-1)
            else:
                external.append(args.external if type(args.external) is int else _whole(args.external))
                correlation.append(args.correlation if type(args.correlation) is int else _whole(args.correlation))
                dims = bytes(args.dims)
                call.append(index((dims, bytes(args.types), bytes(args.strides), bytes(args.values))) if dims else -1)
                size.append(-1 if args.size is None else _whole(args.size))
                grid = bytes(args.grid)
                launch.append(launches.setdefault(grid + b"x" + bytes(args.block), len(launches)) if grid else -1)
                if args.collective is not None:
                    self.collectives[row] = Collective(
                        name=str(args.collective),
                        elements_in=max(0, _whole(args.elements_in)),
                        elements_out=max(0, _whole(args.elements_out)),
                        dtype=str(args.dtype or ""),
                        group_size=max(0, _whole(args.group_size)),
                        group=str(args.group or ""),
                    )
            row += 1
        try:
            wide = np.array([external, correlation, size], np.int64)
        except OverflowError:
            wide = np.array([[_whole(v) for v in part] for part in (external, correlation, size)], np.int64)
        self.columns.add(
            len(spans),
            start=start,
            duration=duration,
            name=[names.setdefault(e.name, len(names)) for e in spans],  # type: ignore[arg-type]
            kind=kinds,
            track=[
                tracks.setdefault((e.pid, e.tid, k >= Kind.KERNEL), len(tracks))
                for e, k in zip(spans, kinds, strict=True)
            ],
            external=wide[0],
            correlation=wide[1],
            call=call,
            size=wide[2],
            launch=launch,
        )

    def _others(self, batch: list[Event]) -> Iterator[Event]:
        """Metadata is noted; begin and end pairs become spans."""
        for event in batch:
            if event.ph == "M":
                text = None if event.args is None else event.args.name
                if event.name == "process_name" and text is not None:
                    self.process_names[event.pid] = str(text)
                elif event.name == "thread_name" and text is not None:
                    self.track_names[event.pid, event.tid] = str(text)
            elif event.ph == "B":
                self.open.setdefault((event.pid, event.tid), []).append(event)
            elif event.ph == "E":
                opened = self.open.get((event.pid, event.tid))
                if opened:
                    begin = opened.pop()
                    begin.dur = _real(event.ts) - _real(begin.ts)
                    yield begin

    def finish(self, path: Path, metadata: dict[str, Any], text_bytes: int, rank: int) -> Trace:
        if self.columns.rows == 0:
            self.notes.add("no-events", "the trace holds no timed event")
        unclosed = sum(len(v) for v in self.open.values())
        self.notes.add("unclosed", "events that began and never ended were left out", unclosed)
        events, order = self.columns.finish()
        first = int(events.start[0]) if len(events) else 0
        events.start.__isub__(first)
        collectives: dict[int, Collective] = {}
        if self.collectives:
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            collectives = {int(place[row]): c for row, c in self.collectives.items()}
        distributed = metadata.get("distributedInfo")
        if isinstance(distributed, dict) and isinstance(distributed.get("rank"), int):
            rank = distributed["rank"]
        names = tuple(n if isinstance(n, str) else str(n) if n is not None else "" for n in self.names)
        origin = metadata.get("baseTimeNanoseconds")
        devices = metadata.get("deviceProperties")
        return Trace(
            source=str(path),
            format="torch" if "schemaVersion" in metadata or "baseTimeNanoseconds" in metadata else "chrome",
            events=events,
            names=names,
            tracks=tuple(
                Track(
                    pid if pid is not None else "",
                    tid if tid is not None else "",
                    self.track_names.get((pid, tid), self.process_names.get(pid, "")),
                    device,
                    rank,
                )
                for pid, tid, device in self.tracks
            ),
            calls=self.calls.calls(),
            launches=tuple(self.launches),
            collectives=collectives,
            metadata=metadata,
            devices=tuple(d for d in devices if isinstance(d, dict)) if isinstance(devices, list) else (),
            origin_ns=(origin if isinstance(origin, int) else 0) + (self.base or 0) + first,
            window_ns=None,
            text_bytes=text_bytes,
            warnings=self.notes.warnings(),
        )
