"""What holds a server back, in the order of what could be won.

For each operator: its share f of the engine's busy step time, the speed-up s that the host's roofline still allows
(measured time over max(bytes / bandwidth, operations / peak)), and the end-to-end ceiling of Amdahl's law,
1 / (1 - f (1 - 1/s)) - 1. The score is f (1 - 1/s), the part of the step that could vanish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.engine.profiling.categories import operator_category
from optimizer.engine.profiling.composites import find_composites, subtree_mask
from optimizer.engine.profiling.dtypes import dtype_family, dtype_name
from optimizer.engine.profiling.models import estimate
from optimizer.engine.profiling.nesting import Nesting, nest
from optimizer.engine.profiling.steps import PHASES, find_steps
from optimizer.engine.profiling.tracedata import Call, Ints, Kind, Mask, Trace
from optimizer.engine.tasks.base import KernelTask

HOST = "(host)"
OVER_ROOFLINE = "faster than the roofline of main memory: its data was in the cache"


@dataclass(frozen=True, slots=True)
class Roofline:
    """What the machine reaches, all threads of the server together.

    read_bw_gbps: GB/s (1e9). peak_gflops: by element type (`bfloat16`, `float32`, ...), 1e9 operations a second.
    """

    read_bw_gbps: float
    peak_gflops: Mapping[str, float]
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.read_bw_gbps > 0:
            raise ValueError(f"read_bw_gbps has to be positive, not {self.read_bw_gbps}")

    def peak(self, dtype: str) -> float | None:
        """GFLOP/s for a type; None where it was not measured."""
        return self.peak_gflops.get(dtype_name(dtype)) or self.peak_gflops.get(dtype_family(dtype))

    def floor_us(self, *, bytes_moved: float, flops: float, dtype: str) -> float:
        """The least time this much work can take, in us; memory alone counts where the peak is unknown."""
        memory = bytes_moved / (self.read_bw_gbps * 1e3)
        peak = self.peak(dtype)
        return max(memory, flops / (peak * 1e3)) if peak else memory


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """One shape an operator ran with. phase: prefill, decode, mixed or unknown, of the steps it ran in."""

    axes: Mapping[str, int]
    dtype: str
    calls: int
    total_us: float
    mean_us: float
    phase: str = "unknown"
    floor_us: float | None = None  # of one call, by the roofline

    def to_dict(self) -> dict[str, Any]:
        return {
            "axes": dict(self.axes),
            "dtype": self.dtype,
            "calls": self.calls,
            "total_us": self.total_us,
            "mean_us": self.mean_us,
            "phase": self.phase,
            "floor_us": self.floor_us,
        }


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One operator of the step.

    total_us: own time, without that of operators it called (with it where a task replaces the whole operator).
    share: of the busy step time. attainable: the largest speed-up the roofline allows, at least 1; None where
    the work is not known. gain_ceiling_pct: of end-to-end throughput, when `attainable` is reached. by_phase:
    us in prefill, decode, mixed and unknown steps. Exactly one of `task` and `no_swap_reason` is set.
    """

    op: str
    category: str
    task: str | None
    no_swap_reason: str | None
    calls: int
    total_us: float
    share: float
    mean_us: float
    shapes: tuple[ShapeUse, ...] = ()
    gbps: float | None = None
    gflops: float | None = None
    attainable: float | None = None
    gain_ceiling_pct: float | None = None
    score: float = 0.0
    by_phase: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "category": self.category,
            "task": self.task,
            "no_swap_reason": self.no_swap_reason,
            "calls": self.calls,
            "total_us": self.total_us,
            "share": self.share,
            "mean_us": self.mean_us,
            "shapes": [s.to_dict() for s in self.shapes],
            "gbps": self.gbps,
            "gflops": self.gflops,
            "attainable": self.attainable,
            "gain_ceiling_pct": self.gain_ceiling_pct,
            "score": self.score,
            "by_phase": dict(self.by_phase or {}),
            "notes": list(self.notes),
        }


def amdahl_gain_pct(share: float, speedup: float) -> float:
    """End-to-end throughput gain in percent when `share` of the time runs `speedup` times as fast."""
    saved = share * (1.0 - 1.0 / speedup)
    return (1.0 / (1.0 - saved) - 1.0) * 100.0 if saved < 1.0 else float("inf")


def main_track(trace: Trace) -> int | None:
    """The host thread that runs the model: the one whose operators cover the most time."""
    rows = trace.events.where(Kind.OPERATOR)
    if not len(rows):
        return None
    own = nest(trace.events, rows).self_ns
    totals = np.bincount(trace.events.track[rows], weights=own.astype(np.float64))
    return int(totals.argmax())


def rank_bottlenecks(
    trace: Trace, *, tasks: Mapping[str, KernelTask], roofline: Roofline, top: int | None = None
) -> list[Bottleneck]:
    """Operators of a CPU server's main thread by what could be won, best first; ties by share.

    Operators that no task can replace are listed too, with the reason. An operator whose calls only partly fit
    a task gives two lines. Empty for a trace without operators.
    """
    track = main_track(trace)
    if track is None:
        return []
    events = trace.events
    rows = events.where(Kind.OPERATOR)
    rows = rows[events.track[rows] == track]
    steps = find_steps(trace)
    if len(steps):
        rows = rows[steps.inside(events.start[rows])]
        busy_us = steps.busy_ns / 1e3
    else:
        busy_us = float(events.end[rows].max() - events.start[rows].min()) / 1e3 if len(rows) else 0.0
    if not len(rows) or busy_us <= 0:
        return []
    nesting = nest(events, rows)
    groups = _groups(trace, nesting, tasks, steps.phase_at(events.start))
    lines = _lines(groups, tasks, roofline, busy_us)
    rest = busy_us - sum(line.total_us for line in lines)
    if rest > 0:
        lines.append(_host(rest, busy_us, max(1, len(steps))))
    lines.sort(key=lambda b: (-b.score, -b.share, b.op))
    return lines[:top] if top is not None else lines


def _host(us: float, busy_us: float, steps: int) -> Bottleneck:
    return Bottleneck(
        op=HOST,
        category="host",
        task=None,
        no_swap_reason="time between operators, in the interpreter and the engine's own code: no kernel runs",
        calls=steps,
        total_us=us,
        share=us / busy_us,
        mean_us=us / steps,
        by_phase={},
    )


@dataclass(slots=True)
class _Group:
    op: str
    decomposed: bool
    by_call: dict[tuple[Call | None, int], list[int]]  # (arguments, phase) -> durations in ns


def _groups(trace: Trace, nesting: Nesting, tasks: Mapping[str, KernelTask], phase: Any) -> list[_Group]:
    """Composites first, then operators tasks replace whole, then the rest by own time: no time counts twice."""
    events = trace.events
    groups: dict[tuple[str, bool], _Group] = {}

    def add(op: str, decomposed: bool, call: Call | None, row: int, ns: int) -> None:
        group = groups.get((op, decomposed))
        if group is None:
            group = groups[op, decomposed] = _Group(op, decomposed, {})
        group.by_call.setdefault((call, int(phase[row])), []).append(ns)

    # Calls are told apart by identity of their text; equal ones have one object.
    taken: Mask = np.zeros(len(nesting.rows), np.bool_)
    composites = find_composites(trace, nesting)
    interned: dict[str, Call] = {}
    if composites:
        taken |= subtree_mask(trace, nesting, np.array([r for c in composites for r in c.members], np.int64))
        for c in composites:
            call = interned.setdefault(repr(c.call), c.call) if c.call is not None else None
            # From the first member's start to the last one's end: the calls between them go, too.
            add(c.operator, True, call, c.first, int(events.end[c.last] - events.start[c.first]))
        taken |= _within(events.start[nesting.rows], composites, events)
    replaced = {name for task in tasks.values() if task.match for name in task.match.names}
    whole = np.array([n in replaced for n in trace.names], np.bool_)
    tops = nesting.rows[whole[events.name[nesting.rows]] & ~taken]
    if len(tops):
        below = subtree_mask(trace, nesting, tops) & ~taken
        for row in tops.tolist():
            index = int(events.call[row])
            add(trace.name_of(row), False, trace.calls[index] if index >= 0 else None, row, int(events.duration[row]))
        taken |= below
    for row, own in zip(nesting.rows[~taken].tolist(), nesting.self_ns[~taken].tolist(), strict=True):
        index = int(events.call[row])
        add(trace.name_of(row), False, trace.calls[index] if index >= 0 else None, row, own)
    return list(groups.values())


def _within(starts: Ints, composites: Sequence[Any], events: Any) -> Mask:
    """Rows (view makers mostly) that start inside of a composite's span."""
    low = np.array([events.start[c.first] for c in composites], np.int64)
    high = np.array([events.end[c.last] for c in composites], np.int64)
    order = np.argsort(low)
    low, high = low[order], high[order]
    index = np.searchsorted(low, starts, side="right") - 1
    return np.asarray((index >= 0) & (starts < high[np.maximum(index, 0)]))


def _lines(
    groups: Sequence[_Group], tasks: Mapping[str, KernelTask], roofline: Roofline, busy_us: float
) -> list[Bottleneck]:
    by_name: dict[str, list[KernelTask]] = {}
    for known in tasks.values():
        for op in known.match.names if known.match else ():
            by_name.setdefault(op, []).append(known)
    by_task = {task.name: task for task in tasks.values()}
    lines = []
    for group in groups:
        split: dict[tuple[str | None, str | None], list[tuple[dict[str, int], Call | None, int, list[int]]]] = {}
        for (call, phase), durations in group.by_call.items():
            task, axes, why_not = _choose(group, call, by_name.get(group.op, ()))
            split.setdefault((task.name if task else None, why_not), []).append((axes, call, phase, durations))
        for (name, why_not), parts in split.items():
            chosen = by_task[name] if name is not None else None
            lines.append(_line(group, chosen, why_not, parts, roofline, busy_us))
    return lines


def _choose(
    group: _Group, call: Call | None, candidates: Sequence[KernelTask]
) -> tuple[KernelTask | None, dict[str, int], str | None]:
    """The task for one argument list with its axes, or why there is none."""
    if not candidates:
        if group.op.startswith("## Call CompiledFxGraph") or group.op.startswith("Torch-Compiled Region"):
            return None, {}, "kernels the compiler generated and fused: the graph has no operator left to replace"
        if operator_category(group.op) == "view":
            return None, {}, "makes views or allocates: no kernel, the cost is the call itself"
        return None, {}, f"no kernel task replaces {group.op}"
    if group.decomposed:
        usable = [t for t in candidates if t.swap is not None and t.swap.kind == "vllm.ir-provider"]
        if not usable:
            return None, {}, f"runs as separate torch operators here: {group.op}, the swap point, is never called"
        candidates = usable
    swappable = [t for t in candidates if t.swap is not None]
    if not swappable:
        return None, {}, f"{candidates[0].name} has no swap point in this engine"
    if call is None:
        return swappable[0], {}, None
    for task in swappable:
        axes = task.match.shape(list(call.dims), list(call.types)) if task.match is not None else None
        if axes is not None:
            return task, axes, None
    seen = ", ".join(f"{dtype_name(t)}{list(d)}" for d, t in zip(call.dims, call.types, strict=False) if d)
    return None, {}, f"these calls are not {swappable[0].name}'s: {seen}"[:300]


def _line(
    group: _Group,
    task: KernelTask | None,
    reason: str | None,
    parts: Sequence[tuple[dict[str, int], Call | None, int, list[int]]],
    roofline: Roofline,
    busy_us: float,
) -> Bottleneck:
    shapes = []
    calls = total_ns = 0
    floor = known_us = work_bytes = work_flops = 0.0
    by_phase: dict[str, float] = {}
    for axes, call, phase, durations in parts:
        ns = sum(durations)
        us = ns / 1e3
        calls += len(durations)
        total_ns += ns
        by_phase[PHASES[phase]] = by_phase.get(PHASES[phase], 0.0) + us
        dtype, flops, moved = "", 0.0, 0.0
        if call is not None:
            dtype = next((dtype_name(t) for t, d in zip(call.types, call.dims, strict=False) if d), "")
        if task is not None and axes:
            flops, moved = task.flops(axes), task.bytes_moved(axes)
            dtype = task.inputs[0].dtype
        elif call is not None:
            work = estimate(group.op, call)
            if work is not None:
                flops, moved, dtype, axes = work.flops, work.bytes_moved, work.dtype, dict(work.axes)
        one_floor = roofline.floor_us(bytes_moved=moved, flops=flops, dtype=dtype) if moved or flops else None
        if one_floor is not None:
            floor += one_floor * len(durations)
            known_us += us
            work_bytes += moved * len(durations)
            work_flops += flops * len(durations)
        if axes or call is not None:
            shapes.append(ShapeUse(axes, dtype, len(durations), us, us / len(durations), PHASES[phase], one_floor))
    shapes.sort(key=lambda s: (-s.total_us, sorted(s.axes.items())))
    total_us = total_ns / 1e3
    share = total_us / busy_us
    attainable = gain = None
    score = 0.0
    notes: list[str] = []
    if group.decomposed:
        notes.append("found as a row of torch operators; its time includes the interpreter between them")
    if floor > 0 and known_us > 0:
        attainable = max(1.0, known_us / floor)
        if known_us < floor:
            notes.append(OVER_ROOFLINE)
        if known_us < total_us:
            notes.append(f"the work of {100 * (1 - known_us / total_us):.0f} % of its time is not known")
        usable = known_us / busy_us
        gain = amdahl_gain_pct(usable, attainable)
        score = usable * (1.0 - 1.0 / attainable)
    return Bottleneck(
        op=group.op,
        category=operator_category(group.op),
        task=task.name if task else None,
        no_swap_reason=reason,
        calls=calls,
        total_us=total_us,
        share=share,
        mean_us=total_us / calls,
        shapes=tuple(shapes),
        gbps=work_bytes / known_us / 1e3 if known_us else None,
        gflops=work_flops / known_us / 1e3 if known_us else None,
        attainable=attainable,
        gain_ceiling_pct=gain,
        score=score,
        by_phase=by_phase,
        notes=tuple(notes),
    )
