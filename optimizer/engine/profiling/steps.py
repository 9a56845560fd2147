"""Steps of a serving engine: which requests ran in them, and the phase they were in."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.engine.profiling.tracedata import Ints, Kind, Trace

# vLLM: execute_context_1(8)_generation_0(0), the second form with sums of sequence lengths behind `sq`.
_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)")
# SGLang: step[EXTEND bs=4 toks=2048], step[DECODE bs=8]
_SGLANG = re.compile(r"step\[(\w+)\s+bs=(\d+)(?:\s+toks=(\d+))?", re.IGNORECASE)
_PROFILER = re.compile(r"ProfilerStep#\d+")

NO_PHASE, PREFILL, DECODE, MIXED = range(4)
PHASES = ("unknown", "prefill", "decode", "mixed")


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps in order of time. `start`, `end` in ns; a step's period reaches to the next one's start.

    Where the engine waits for requests (`idle_after_ns` between two steps), the period ends with the step.
    """

    rows: Ints
    start: Ints
    end: Ints
    period_end: Ints
    phase: NDArray[np.int8]
    prefill_tokens: Ints
    decode_tokens: Ints

    def __len__(self) -> int:
        return len(self.start)

    @property
    def busy_ns(self) -> int:
        """Time of all periods: what Amdahl's law divides by."""
        return int((self.period_end - self.start).sum())

    def phase_at(self, at: Ints) -> NDArray[np.int8]:
        """Phase of the step whose period covers each time."""
        if not len(self):
            return np.zeros(len(at), np.int8)
        index = np.searchsorted(self.start, at, side="right") - 1
        inside = (index >= 0) & (at < self.period_end[np.maximum(index, 0)])
        return np.where(inside, self.phase[np.maximum(index, 0)], NO_PHASE).astype(np.int8)

    def inside(self, at: Ints) -> NDArray[np.bool_]:
        """Whether each time falls into a period."""
        if not len(self):
            return np.zeros(len(at), np.bool_)
        index = np.searchsorted(self.start, at, side="right") - 1
        return np.asarray((index >= 0) & (at < self.period_end[np.maximum(index, 0)]))


def parse_step(name: str) -> tuple[int, int, int] | None:
    """(phase, prefill tokens, decode tokens) of an annotation's name; None where it names no engine step."""
    found = _VLLM.search(name)
    if found:
        prefill, decode = int(found[2]), int(found[4])
        if int(found[1]) == 0:
            prefill = 0
        if int(found[3]) == 0:
            decode = 0
        return (
            MIXED if prefill and decode else PREFILL if prefill else DECODE if decode else NO_PHASE,
            prefill,
            decode,
        )
    found = _SGLANG.search(name)
    if found:
        mode, size, tokens = found[1].lower(), int(found[2]), int(found[3] or 0)
        if mode == "decode":
            return DECODE, 0, size
        if mode in ("extend", "prefill"):
            return PREFILL, tokens or size, 0
        if mode == "mixed":
            return MIXED, tokens, size
    return None


def find_steps(trace: Trace, *, idle_after_ns: int = 20_000_000) -> Steps:
    """The engine's steps from its annotations; profiler steps where there are none; empty where neither is.

    Steps that ran no request (vLLM's empty polls) are left out.
    """
    events = trace.events
    rows = events.where(Kind.ANNOTATION)
    parsed = {int(i): parse_step(trace.names[i]) for i in np.unique(events.name[rows])}
    known = np.array([parsed[int(i)] is not None for i in events.name[rows]], np.bool_)
    if not known.any():
        generic = {i for i in parsed if _PROFILER.fullmatch(trace.names[i])}
        known = np.array([int(i) in generic for i in events.name[rows]], np.bool_)
        parsed = {**parsed, **dict.fromkeys(generic, (NO_PHASE, 0, 0))}
        rows = rows[known] if len(rows) else rows
        facts = [parsed[int(i)] for i in events.name[rows]]
        return _steps(trace, rows, facts, idle_after_ns)
    rows = rows[known]
    facts = [parsed[int(i)] for i in events.name[rows]]
    return _steps(trace, rows, facts, idle_after_ns, drop_empty=True)


def _steps(
    trace: Trace,
    rows: Ints,
    facts: list[tuple[int, int, int] | None],
    idle_after_ns: int,
    *,
    drop_empty: bool = False,
) -> Steps:
    events = trace.events
    start, end = events.start[rows], events.end[rows]
    table = np.array([f or (NO_PHASE, 0, 0) for f in facts], np.int64).reshape(-1, 3)
    following = np.concatenate((start[1:], end[-1:])) if len(start) else start
    # A pause longer than this (or twice the step) is waiting for work, not part of the loop.
    gap = following - end
    waits = (gap > np.maximum(idle_after_ns, 2 * (end - start))) | (gap < 0)
    period_end = np.where(waits, end, following)
    if drop_empty and len(start):
        keep = table[:, 1] + table[:, 2] > 0
        rows, start, end, period_end, table = rows[keep], start[keep], end[keep], period_end[keep], table[keep]
    return Steps(rows, start, end, period_end, table[:, 0].astype(np.int8), table[:, 1], table[:, 2])
