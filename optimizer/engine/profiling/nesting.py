"""Who called whom, and the time that is an event's own, from nothing but intervals on a thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.engine.profiling.tracedata import Events, Ints

_TOLERANCE_NS = 1_000  # stamps of nested events disagree by up to this without anything being wrong


@dataclass(frozen=True, eq=False)
class Nesting:
    """Of the rows given, in their order: the enclosing row (-1 for none) and the time no other row covers.

    `self_ns` of all rows of a track adds up to the track's covered time exactly, overlapping or not.
    `crossing` counts rows that start inside of another one and end after it.
    """

    rows: Ints
    parent: Ints  # a row of the events table
    self_ns: Ints
    crossing: int = 0


def nest(events: Events, rows: Ints) -> Nesting:
    """Nest rows track by track.

    At every moment the time belongs to the row that started last and has not ended. Where events are well
    nested this is the usual self time; where one outlives its parent, its own time goes on to its end and the
    parent's is what is left.
    """
    order = rows[np.lexsort((-events.duration[rows], events.start[rows], events.track[rows]))]
    starts = events.start[order].tolist()
    ends = events.end[order].tolist()
    tracks = events.track[order].tolist()
    self_ns = [0] * len(order)
    parent = [-1] * len(order)
    stack: list[int] = []
    cursor = 0
    crossing = 0
    last_track = None
    for i, start in enumerate(starts):
        if tracks[i] != last_track:
            while stack:
                top = stack.pop()
                if ends[top] > cursor:
                    self_ns[top] += ends[top] - cursor
                    cursor = ends[top]
            last_track = tracks[i]
            cursor = start
        while stack and ends[stack[-1]] <= start:
            top = stack.pop()
            if ends[top] > cursor:
                self_ns[top] += ends[top] - cursor
                cursor = ends[top]
        if stack:
            top = stack[-1]
            if start > cursor:
                self_ns[top] += start - cursor
            parent[i] = top
            if ends[i] > ends[top] + _TOLERANCE_NS:
                crossing += 1
        cursor = start
        stack.append(i)
    while stack:
        top = stack.pop()
        if ends[top] > cursor:
            self_ns[top] += ends[top] - cursor
            cursor = ends[top]
    # Back to the order of `rows`.
    sorted_at = np.argsort(order)
    by_order = sorted_at[np.searchsorted(order, rows, sorter=sorted_at)]
    parents = np.array(parent, np.int64)
    mapped = np.where(parents >= 0, order[np.maximum(parents, 0)], -1) if len(order) else parents
    return Nesting(rows, mapped[by_order], np.array(self_ns, np.int64)[by_order], crossing)
