"""A trace in memory: columns of events, the strings they refer to, and what is known about where it came from.

Times are whole nanoseconds from `origin_ns`: exact sums, no rounding of large microsecond stamps. One event takes
about 60 bytes, a fifth of its JSON text or less.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from optimizer.engine.profiling.reading.notes import TraceWarning

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Kind(enum.IntEnum):
    """What an event is, whatever its profiler called the category."""

    OTHER = 0
    OPERATOR = 1  # cpu_op
    ANNOTATION = 2  # user_annotation: steps, ranges
    PYTHON = 3  # python_function, nn.Module calls among them
    RUNTIME = 4  # calls of the CUDA or HIP runtime and driver
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    DEVICE_ANNOTATION = 8


DEVICE_WORK = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


@dataclass(frozen=True, slots=True)
class Track:
    """A line of the timeline: a thread of the host, or a stream of a device."""

    pid: int | str
    tid: int | str
    name: str = ""
    device: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The recorded arguments of an operator call, one entry per argument. One object for equal recordings."""

    dims: tuple[Any, ...]  # a list of lengths for a tensor, [] for a scalar, a list of lists for a tensor list
    types: tuple[str, ...]
    strides: tuple[Any, ...] = ()
    values: tuple[str, ...] = ()  # of scalars, as text; "" for tensors


@dataclass(frozen=True, slots=True)
class Collective:
    """What a communication kernel says of itself."""

    name: str
    elements_in: int
    elements_out: int
    dtype: str
    group_size: int
    group: str = ""


@dataclass(frozen=True, eq=False)
class Events:
    """Columns of equal length, sorted by start (longer first). -1 stands for absent."""

    start: Ints  # ns from the trace's origin
    duration: Ints  # ns
    name: NDArray[np.int32]  # index into Trace.names
    kind: NDArray[np.int8]  # Kind
    track: NDArray[np.int32]  # index into Trace.tracks
    external: Ints  # External id: ties runtime calls and kernels to operators
    correlation: Ints  # ties a kernel to the runtime call that launched it
    call: NDArray[np.int32]  # index into Trace.calls
    size: Ints  # bytes a copy moved
    launch: NDArray[np.int32]  # index into Trace.launches

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def end(self) -> Ints:
        return self.start + self.duration

    def where(self, *kinds: Kind) -> Ints:
        """Rows of these kinds, in order of start."""
        if len(kinds) == 1:
            return np.flatnonzero(self.kind == int(kinds[0]))
        return np.flatnonzero(np.isin(self.kind, [int(k) for k in kinds]))


@dataclass(frozen=True, eq=False)
class Trace:
    """One trace, or several ranks' together.

    format: torch (Kineto's Chrome trace), rocprofv3, or chrome (some other profiler's Chrome trace).
    window_ns: start and end of what the profiler recorded, where it says so.
    collectives: by row of `events`. metadata: the file's top-level keys. devices: properties as recorded.
    """

    source: str
    format: str
    events: Events
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    calls: tuple[Call, ...]
    launches: tuple[bytes, ...] = ()
    collectives: Mapping[int, Collective] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[Mapping[str, Any], ...] = ()
    origin_ns: int = 0
    window_ns: tuple[int, int] | None = None
    text_bytes: int = 0  # decompressed size
    warnings: tuple[TraceWarning, ...] = ()

    @cached_property
    def has_device(self) -> bool:
        """Whether an accelerator's work was recorded; a trace of a CPU server has none."""
        return bool(np.isin(self.events.kind, [int(k) for k in DEVICE_WORK]).any())

    @cached_property
    def has_shapes(self) -> bool:
        return bool((self.events.call >= 0).any())

    @cached_property
    def has_stacks(self) -> bool:
        return bool((self.events.kind == int(Kind.PYTHON)).any())

    @cached_property
    def vendor(self) -> str:
        """amd, nvidia or cpu, from what was recorded."""
        if not self.has_device:
            return "cpu"
        if self.format == "rocprofv3" or any("hip" in k or "roctracer" in k for k in self.metadata):
            return "amd"
        if any("cuda" in k or "cupti" in k for k in self.metadata):
            return "nvidia"
        launched = {self.names[i] for i in np.unique(self.events.name[self.events.where(Kind.RUNTIME)])}
        return "amd" if any(n.startswith("hip") for n in launched) else "nvidia"

    def name_of(self, row: int) -> str:
        return self.names[int(self.events.name[row])]

    def rows_named(self, name: str) -> Ints:
        """Rows of all events of exactly this name."""
        try:
            index = self.names.index(name)
        except ValueError:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.events.name == index)


class CallTable:
    """Recorded arguments, told apart by their JSON text and parsed once each."""

    def __init__(self) -> None:
        self._index: dict[tuple[bytes, ...], int] = {}

    def index(self, key: tuple[bytes, ...]) -> int:
        return self._index.setdefault(key, len(self._index))

    def calls(self) -> tuple[Call, ...]:
        return tuple(
            Call(_array(dims), tuple(str(t) for t in _array(types)), _array(strides), tuple(map(str, _array(values))))
            for dims, types, strides, values in self._index
        )


def _array(raw: bytes) -> tuple[Any, ...]:
    if not raw:
        return ()
    try:
        value = msgspec.json.decode(raw.decode("utf-8", "replace"))
    except msgspec.DecodeError:
        return ()
    return tuple(value) if isinstance(value, list) else ()
