"""From a trace to what a campaign can work on: the bottlenecks of a regime, and targets with their live shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.recipe import Regime
from optimizer.context import StepContext
from optimizer.engine.abtest import amdahl_gain
from optimizer.engine.host import Roofline as HostRoofline
from optimizer.engine.profiling import Roofline, load_trace, rank_bottlenecks
from optimizer.engine.tasks import builtin_tasks
from optimizer.steps.arms import Group

MAX_LISTED = 40


def regime_bottlenecks(context: StepContext, group: Group, regime: Regime, trace_path: Path) -> dict[str, Any]:
    """Rank a trace's operators by what could be won, and collect the live shapes of those with a task.

    A target's share is of the wall time of a decode step without the profiler, when that is larger than its share
    in the trace: the profiler's own cost is paid mostly by the small operators, which makes the large ones look
    smaller than they are.
    """
    measured = HostRoofline.from_dict(context.result_of("prepare")["roofline"])
    rates = measured.one if group.threads == 1 else measured.all
    trace = load_trace(trace_path, cancelled=context.stopping)
    context.check()
    ranked = rank_bottlenecks(
        trace,
        tasks=builtin_tasks(),
        roofline=Roofline(
            read_bw_gbps=rates.read_gbs,
            peak_gflops={"bfloat16": rates.bf16_gflops, "float32": rates.bf16_gflops},
            threads=group.threads,
        ),
    )
    baseline = context.result_of("baseline")["measured"][group.config.name][regime.name]
    step_us = float(baseline["tpot_median_ms"] or 0.0) * 1000
    tasks = builtin_tasks()
    targets: dict[str, Any] = {}
    for one in ranked:
        if one.task is None or tasks[one.task].swap is None:
            continue
        shapes = decode_shapes(one.shapes, batch_axis=tasks[one.task].batch_axis, batch=regime.concurrency)
        if not shapes:
            continue
        per_step = sum(shape["calls_per_step"] * shape["mean_us"] for shape in shapes)
        share = max(one.share, per_step / step_us if step_us else 0.0)
        share = min(share, 0.99)
        targets[one.task] = {
            "share": share,
            "share_in_trace": one.share,
            "attainable_speedup": max(1.0, one.attainable_speedup),
            "ceiling_pct": 100 * amdahl_gain(share, max(1.0, one.attainable_speedup)),
            "step_us": per_step,
            "shapes": shapes,
        }
    return {
        "bottlenecks": [one.to_dict() for one in ranked[:MAX_LISTED]],
        "targets": targets,
        "warnings": list(trace.warnings)[:50],
    }


def decode_shapes(shapes: Any, *, batch_axis: str | None, batch: int) -> list[dict[str, Any]]:
    """Shapes of the calls of full decode steps, with how often a step calls each.

    A full decode step has as many tokens as requests are in flight. The number of steps is that of the shape
    called least often at that batch (the last layer's, once a step).
    """
    full = [s for s in shapes if batch_axis is None or int(s["axes"].get(batch_axis, -1)) == batch]
    if not full:
        return []
    steps = max(1, min(int(s["calls"]) for s in full))
    return [
        {
            "shape": {axis: length for axis, length in s["axes"].items() if axis != batch_axis},
            "batch": batch,
            "calls": int(s["calls"]),
            "calls_per_step": max(1, round(int(s["calls"]) / steps)),
            "mean_us": float(s["mean_us"]),
        }
        for s in full
    ]
