"""G7: time of single calls, by the judge's clock, beside the baseline in one run; and what no honest time can be."""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

from optimizer.engine.judge.context import JudgeContext, failed, label, not_applicable, passed
from optimizer.engine.judge.exercise import Exerciser
from optimizer.engine.judge.sandbox import CandidateFault
from optimizer.engine.judge.verdict import GateOutcome, GateResult
from optimizer.engine.tasks.base import Inputs, Shape

WARMUP = 3
# The runner's clock is held against the kernel's account of CPU time, which waiting for a processor does not
# lengthen: a call that used so much more of it, on each thread, than the runner says it lasted was told wrong.
CLOCK_SHARE, CLOCK_NS = 0.5, 200_000


class Timing:
    """Fixed counts, per shape, interleaved with the baseline; every timed call has fresh values and places and is
    checked like any other."""

    name, version, title = "G7", 1, "micro timing"

    def check(self, ctx: JudgeContext) -> GateResult:
        if not ctx.policy.timing:
            return not_applicable(self, "timing: not asked for")
        if ctx.candidate.kind == "triton":
            return not_applicable(self, "interpreter: its numerics are plausible, its time says nothing of a GPU")
        shapes: dict[str, Any] = {}
        problems: list[tuple[GateOutcome, str]] = []
        speedups: dict[str, float] = {}
        start = ctx.comparisons
        with contextlib.ExitStack() as stack:
            ex = stack.enter_context(ctx.exerciser("G7"))
            base = self._baseline(ctx, stack)
            null = ex.null_ns()
            base_null = base.null_ns() if base is not None else []
            for number, shape in enumerate(ctx.shapes):
                mine, theirs, claims, used = self._samples(ctx, ex, base, shape)
                row = self._row(ctx, shape, mine, theirs, claims, used, null, base_null)
                shapes[label(shape)] = row
                problems += _problems(ctx, label(shape), row)
                if row.get("speedup"):
                    speedups[label(shape)] = row["speedup"]
                ctx.progress("timing", (number + 1) / len(ctx.shapes))
        evidence = {
            "shapes": shapes, "null_ns": null, "baseline_null_ns": base_null,
            "checked_calls": ctx.comparisons - start,
            "roofline": "skipped: the policy gives none" if ctx.policy.roofline is None else "checked",
        }  # fmt: skip
        for outcome in (GateOutcome.FAIL, GateOutcome.QUARANTINE, GateOutcome.INCONCLUSIVE):
            for found, reason in problems:
                if found is outcome:
                    if outcome is GateOutcome.FAIL:
                        return failed(self, reason, **evidence)
                    return GateResult(self.name, self.version, outcome, reason, evidence)
        ctx.speedups.update(speedups)
        return passed(self, **evidence)

    def _baseline(self, ctx: JudgeContext, stack: contextlib.ExitStack) -> Exerciser | None:
        baseline = ctx.policy.baseline
        if baseline is None:
            return None
        from optimizer.engine.build import build

        if baseline.kind == "cpp":
            built = build(baseline, ctx.build_cache, cancelled=ctx.cancelled)
            if built.object is None:
                raise ValueError(f"the baseline does not compile: {built.diagnostics[-500:]}")
            files = [("kernel.so", built.object.read_bytes())]
        else:
            files = sorted(baseline.files.items())
        return stack.enter_context(ctx.exerciser("G7 baseline", files=files, kind=baseline.kind, trusted=True))

    def _samples(
        self, ctx: JudgeContext, ex: Exerciser, base: Exerciser | None, shape: Shape
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        rng = ctx.rng("G7 " + label(shape))
        constants = ctx.generate(shape, rng, "normal")
        threads = ctx.policy.threads[-1]
        for one in filter(None, (ex, base)):
            if not one.prepare(constants, shape):
                raise CandidateFault("declined", f"constants of {label(shape)}")
        mine: list[int] = []
        theirs: list[int] = []
        claims: list[int] = []
        used: list[int] = []
        for i in range(WARMUP + ctx.policy.timed_calls):
            inputs = self._fresh(ctx, shape, rng, constants)
            truth, working = ctx.truth(inputs)
            order: list[Exerciser | None] = [ex, base] if rng.integers(2) else [base, ex]
            for timed in order:
                if timed is None:
                    continue
                ctx.check_cancelled()
                made = timed.call(inputs, shape, threads=threads)
                if not made.supported:
                    raise CandidateFault("declined", f"{label(shape)} when timed")
                ctx.check_against(made, truth, working, shape, f"timed call {i}")
                timed.settle()
                if i >= WARMUP:
                    (mine if timed is ex else theirs).append(made.elapsed_ns)
                    if timed is ex:
                        claims.append(made.claimed_ns)
                        used.append(made.cpu_ns)
        return mine, theirs, claims, used

    def _fresh(self, ctx: JudgeContext, shape: Shape, rng: Any, constants: Inputs) -> Inputs:
        fresh = ctx.generate(shape, rng, "normal")
        return {**fresh, **{t.name: constants[t.name] for t in ctx.task.constants}}

    def _row(
        self, ctx: JudgeContext, shape: Shape, mine: list[int], theirs: list[int], claims: list[int],
        used: list[int], null: list[int], base_null: list[int],
    ) -> dict[str, Any]:  # fmt: skip
        channel = statistics.median(null)
        net = max(statistics.median(mine) - channel, 0.0)
        row: dict[str, Any] = {
            "samples_ns": mine, "baseline_ns": theirs, "claimed_ns": claims,
            "net_ns": net, "claimed_median_ns": statistics.median(claims), "channel_ns": channel, "cpu_ns": used,
        }  # fmt: skip
        roofline = ctx.policy.roofline
        if roofline is not None:
            floor = roofline.floor_s(flops=ctx.task.flops(shape), bytes_moved=ctx.task.bytes_moved(shape))
            row["floor_ns"] = floor * 1e9
        if theirs:
            base = max(statistics.median(theirs) - statistics.median(base_null), 0.0)
            row["baseline_net_ns"] = base
            # Below the spread of the channel a time is not known, and a ratio of two such times is none.
            middle = statistics.median(null)
            unsure = max(statistics.median(abs(n - middle) for n in null), 1000.0)
            row["speedup"] = base / net if min(base, net) > 2 * unsure else None
            row["speedup_at_least"] = base / max(net, 2 * unsure)
        return row


def _problems(ctx: JudgeContext, name: str, row: dict[str, Any]) -> list[tuple[GateOutcome, str]]:
    found = []
    used, claimed = min(row["cpu_ns"]) / ctx.policy.threads[-1], max(row["claimed_ns"])
    if claimed < used - max(CLOCK_SHARE * used, CLOCK_NS):
        text = f"clocks: {name}: the runner claims {claimed:.0f} ns, each thread worked for {used:.0f}"
        found.append((GateOutcome.FAIL, text))
    # The fastest single call counts, whole, channel included: a floor must not depend on the calibration.
    if "floor_ns" in row and min(row["samples_ns"]) < row["floor_ns"]:
        text = f"roofline: {name}: {min(row['samples_ns'])} ns, no call can take less than {row['floor_ns']:.0f} ns"
        found.append((GateOutcome.FAIL, text))
    if row.get("speedup_at_least") is not None and row["speedup_at_least"] > ctx.policy.quarantine_speedup:
        text = f"too fast: {name}: {row['speedup_at_least']:.1f} times the baseline"
        found.append((GateOutcome.QUARANTINE, text))
    return found
