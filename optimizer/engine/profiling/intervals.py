"""Arithmetic of sets of intervals, in whole nanoseconds."""

from __future__ import annotations

import numpy as np

from optimizer.engine.profiling.tracedata import Ints


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The merged intervals, sorted and apart from each other. Empty ones vanish, touching ones join."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate(([True], start[1:] > end[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return start[opens], end[closes]


def length(merged: tuple[Ints, Ints]) -> int:
    """Covered time of merged intervals."""
    return int((merged[1] - merged[0]).sum())


def covered(merged: tuple[Ints, Ints], start: Ints, end: Ints) -> Ints:
    """How much of each of [start, end) the merged intervals cover."""
    low, high = merged
    if not len(low):
        return np.zeros(len(start), np.int64)
    total = np.concatenate(([0], np.cumsum(high - low)))

    def until(at: Ints) -> Ints:
        index = np.searchsorted(low, at, side="right")
        last = np.maximum(index - 1, 0)
        return np.where(index > 0, total[last] + np.minimum(at - low[last], high[last] - low[last]), 0)

    return np.asarray(until(np.maximum(start, end)) - until(start), np.int64)


def subtract(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> int:
    """Time in a and not in b; both merged."""
    return length(a) - int(covered(b, a[0], a[1]).sum())
