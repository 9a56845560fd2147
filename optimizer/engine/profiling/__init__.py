"""Trace analysis: what holds a server back, from a profiler's trace of it."""

from __future__ import annotations

from optimizer.engine.profiling.bottlenecks import Bottleneck, Roofline, ShapeUse, rank_bottlenecks
from optimizer.engine.profiling.loading import load_trace
from optimizer.engine.profiling.reading.source import TraceCancelled, TraceUnreadable
from optimizer.engine.profiling.tracedata import Trace

__all__ = [
    "Bottleneck",
    "Roofline",
    "ShapeUse",
    "Trace",
    "TraceCancelled",
    "TraceUnreadable",
    "load_trace",
    "rank_bottlenecks",
]
