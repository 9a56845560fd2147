"""G0: is the task itself worth judging by? Asked once for a task and its shapes, before any candidate."""

from __future__ import annotations

from typing import Any

import numpy as np

from optimizer.engine.judge.compare import compare, dtype_of
from optimizer.engine.judge.context import JudgeContext, passed
from optimizer.engine.judge.exercise import dims_of
from optimizer.engine.judge.verdict import GateOutcome, GateResult
from optimizer.engine.tasks.base import Array, Inputs, KernelTask, Shape, TensorSpec


class TaskVetting:
    """The honest result passes; zeros, an input handed back, a constant and noise do not; the output depends on
    every input and on the seed."""

    name, version, title = "G0", 1, "task vetting"

    def check(self, ctx: JudgeContext) -> GateResult:
        shape = min(ctx.shapes, key=ctx.task.bytes_moved)
        # Kept by identity, and the task with it, so that an identity is never another task's.
        key = (id(ctx.task), tuple(sorted(shape.items())))
        if key not in _VETTED:
            _VETTED[key] = (ctx.task, *vet(ctx.task, shape))
        _, problem, checks = _VETTED[key]
        if problem:
            # No candidate's fault: nothing can be judged by this task.
            return GateResult(
                self.name, self.version, GateOutcome.INFRA_ERROR, f"task: {problem}", {"checks": checks}
            )
        return passed(self, checks=checks)


_VETTED: dict[tuple[int, tuple[tuple[str, int], ...]], tuple[KernelTask, str, int]] = {}


def vet(task: KernelTask, at: Shape) -> tuple[str, int]:
    """What is wrong with a task, "" when nothing is, and how many checks were made.

    Its own generator of random numbers: this says nothing about, and tells nothing of, a judgement's seed.
    """
    rng = np.random.default_rng(0x6730)
    checks = 0
    inputs = task.generate(at, rng, "normal")
    other = task.generate(at, rng, "normal")
    with np.errstate(all="ignore"):
        truth, working, elsewhere = task.reference(inputs), task.working(inputs), task.reference(other)
    for spec in task.outputs:
        if np.asarray(truth[spec.name]).size == 0:
            return f"no element of {spec.name} at {at}", checks
        if not _accepts(task, spec, at, np.asarray(working[spec.name]), truth, working):
            return f"{spec.name} of the honest result is outside of its own budget", checks
        checks += 1
        for name, fake in _fakes(spec, at, inputs, truth, rng):
            if _accepts(task, spec, at, fake, truth, working):
                return f"{spec.name} would pass as {name}", checks
            checks += 1
        if np.array_equal(np.asarray(truth[spec.name]), np.asarray(elsewhere[spec.name])):
            return f"{spec.name} is the same for another seed", checks
        checks += 1
    for given in task.inputs:
        if not _matters(task, given, inputs, other, at):
            return f"no output depends on {given.name}", checks
        checks += 1
    return "", checks


def _accepts(
    task: KernelTask, spec: TensorSpec, at: Shape, made: Array, truth: dict[str, Array], working: dict[str, Array]
) -> bool:
    kind, dims = dtype_of(spec.dtype), dims_of(spec, at)
    w = np.asarray(working[spec.name]).astype(kind).reshape(dims)
    t = np.asarray(truth[spec.name], dtype=np.float64).reshape(dims)
    return compare(made.astype(kind).reshape(dims), t, w, budget=task.budget, dtype=spec.dtype).ok


def _fakes(
    spec: TensorSpec, at: Shape, inputs: Inputs, truth: dict[str, Array], rng: np.random.Generator
) -> list[tuple[str, Array]]:
    dims = dims_of(spec, at)
    right = np.asarray(truth[spec.name], dtype=np.float64)
    found: list[tuple[str, Array]] = [
        ("zeros", np.zeros(dims)),
        ("a constant", np.full(dims, float(right.mean()))),
        ("noise", rng.standard_normal(dims) * float(right.std() or 1.0) + float(right.mean())),
    ]
    found += [(f"a copy of {n}", np.asarray(a)) for n, a in inputs.items() if np.shape(a) == dims and dims]
    return found


def _matters(task: KernelTask, given: TensorSpec, inputs: Inputs, other: Inputs, at: Shape) -> bool:
    """Whether an output moves by more than its budget when one input becomes another."""
    replaced: Any = np.asarray(other[given.name])
    if np.array_equal(replaced, np.asarray(inputs[given.name])):
        # A parameter that the generator keeps fixed (an epsilon): a value nobody would choose must show.
        replaced = (replaced.astype(np.float64) * 3.0 + 1.0).astype(replaced.dtype)
    changed = {**inputs, given.name: replaced}
    with np.errstate(all="ignore"):
        truth, working = task.reference(changed), task.working(changed)
        before = task.working(inputs)
    return not all(_accepts(task, s, at, np.asarray(before[s.name]), truth, working) for s in task.outputs)
