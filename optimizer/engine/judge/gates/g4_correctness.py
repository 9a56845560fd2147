"""G4: right, by the task's error budget, on fresh secret inputs, at every shape it is for."""

from __future__ import annotations

from optimizer.engine.judge.context import JudgeContext, label, passed
from optimizer.engine.judge.exercise import Exerciser
from optimizer.engine.judge.sandbox import CandidateFault
from optimizer.engine.judge.verdict import GateResult
from optimizer.engine.tasks.base import Inputs, Shape


class Correctness:
    """At least `policy.rounds` calls with fresh values; constants change between them and two states live at once."""

    name, version, title = "G4", 1, "correctness"

    def check(self, ctx: JudgeContext) -> GateResult:
        per_shape = max(2, -(-ctx.policy.rounds // len(ctx.shapes)))
        rng = ctx.rng("G4")
        worst: dict[str, float] = {}
        calls = 0
        start = ctx.comparisons
        with ctx.exerciser("G4") as ex:
            for number, shape in enumerate(ctx.shapes):
                # Two sets of constants, as two layers of one model have: what one left behind must not reach the
                # other. Calls alternate; half way through, the first set is replaced in place.
                sets = [ctx.generate(shape, rng, "normal") for _ in range(2 if ctx.task.constants else 1)]
                for key, constants in enumerate(sets):
                    _prepare(ex, constants, shape, key)
                for i in range(per_shape):
                    key = i % len(sets)
                    if i == per_shape // 2 and ctx.task.constants:
                        sets[0] = ctx.generate(shape, rng, "normal")
                        _prepare(ex, sets[0], shape, 0)
                    inputs = _with_constants(ctx, ctx.generate(shape, rng, "normal"), sets[key])
                    threads = ctx.policy.threads[i % len(ctx.policy.threads)]
                    _, found = ctx.call_and_check(ex, inputs, shape, f"round {i}", key=key, threads=threads)
                    calls += 1
                    worst[label(shape)] = max(worst.get(label(shape), 0.0), *(d.worst for d in found), 0.0)
                ctx.progress("correctness", (number + 1) / len(ctx.shapes))
        return passed(
            self, comparisons=ctx.comparisons - start, calls=calls, worst_share_of_budget=worst,
            late_cpu_ns=ex.late_cpu_ns,
        )  # fmt: skip


def _prepare(ex: Exerciser, inputs: Inputs, shape: Shape, key: int) -> None:
    if not ex.prepare(inputs, shape, key=key):
        raise CandidateFault("declined", f"the constants of {label(shape)}, which it is submitted for")


def _with_constants(ctx: JudgeContext, fresh: Inputs, constants: Inputs) -> Inputs:
    return {**fresh, **{t.name: constants[t.name] for t in ctx.task.constants}}
