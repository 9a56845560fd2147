"""G6: is the output made by the candidate's own kernel, and by nothing it remembers?"""

from __future__ import annotations

from typing import Any

import numpy as np

from optimizer.engine.judge.context import JudgeContext, Wrong, failed, passed
from optimizer.engine.judge.exercise import Exerciser
from optimizer.engine.judge.sandbox import CandidateFault
from optimizer.engine.judge.verdict import GateResult
from optimizer.engine.tasks.base import Inputs, Shape
from rackforge_runtime.runner.frames import Poison

SOAK_CALLS = {"cpp": 60, "python": 60, "triton": 12}
IDENTICAL_CALLS = 4


class Provenance:
    """No-op in place of the kernel: the output must change. Vendor operators poisoned: it must not. Equal calls must
    leave an object's own memory as it was: a kernel that counts its calls could change its mind later."""

    name, version, title = "G6", 1, "provenance"

    def check(self, ctx: JudgeContext) -> GateResult:
        shape = min(ctx.shapes, key=ctx.task.bytes_moved)
        rng = ctx.rng("G6")
        inputs = ctx.generate(shape, rng, "normal")
        evidence: dict[str, Any] = {}
        with ctx.exerciser("G6") as ex:
            _prepare(ex, inputs, shape)
            made = ex.call(inputs, shape, noop=True)
            if _right(ctx, made.outputs, inputs, shape):
                return failed(self, "no-op: the output is right without a call", **evidence)
            plain, _ = ctx.call_and_check(ex, inputs, shape, "provenance")
            evidence["statics"] = self._statics(ex, inputs, shape)
            if evidence["statics"] == "changed":
                return failed(self, "hidden state: equal calls change the object's own memory", **evidence)
            # The same places with other values: a result kept by address is stale.
            other = {**ctx.generate(shape, rng, "normal"), **{t.name: inputs[t.name] for t in ctx.task.constants}}
            ctx.call_and_check(ex, other, shape, "other values at the same places")
            evidence["soak_calls"] = self._soak(ctx, ex, shape, rng)
        if ctx.candidate.kind == "cpp":
            return passed(self, **evidence)
        if "torch" not in ctx.task.allow_library | ctx.policy.extra_allowed:
            with ctx.exerciser("G6 vendor", poison=Poison.VENDOR) as ex:
                _prepare(ex, inputs, shape)
                spoiled = ex.call(inputs, shape)
            for name, array in plain.outputs.items():
                if array.tobytes() != spoiled.outputs[name].tobytes():
                    return failed(self, f"vendor: {name} changes when vendor operators are poisoned", **evidence)
            evidence["vendor_poisoned"] = True
        if ctx.candidate.kind == "triton":
            with ctx.exerciser("G6 kernels", poison=Poison.KERNELS) as ex:
                _prepare(ex, inputs, shape)
                idle = ex.call(inputs, shape)
            if _right(ctx, idle.outputs, inputs, shape):
                return failed(self, "decoy: the output is right when no Triton kernel runs", **evidence)
            evidence["kernels_poisoned"] = True
        return passed(self, **evidence)

    def _statics(self, ex: Exerciser, inputs: Inputs, shape: Shape) -> str:
        """Compare an object's writable memory after equal calls, at equal places."""
        before: dict[int, bytes] | None = None
        for i in range(IDENTICAL_CALLS):
            ex.replay_places()
            ex.call(inputs, shape)
            ex.settle()
            now = ex.session.statics()
            if now is None:
                return "hidden"
            if i >= 2 and now != before:
                return "changed"
            before = now
        return "steady" if before else "none"

    def _soak(self, ctx: JudgeContext, ex: Exerciser, shape: Shape, rng: np.random.Generator) -> int:
        """Many more calls than a check would seem to need, a random few of them compared."""
        ex.fresh_places()
        calls = SOAK_CALLS[ctx.candidate.kind]
        choice = set(rng.choice(calls, size=calls // 3, replace=False).tolist()) | {calls - 1}
        constants = ctx.generate(shape, rng, "normal")
        _prepare(ex, constants, shape)
        fixed = {t.name: constants[t.name] for t in ctx.task.constants}
        for i in range(calls):
            ctx.check_cancelled()
            inputs = {**ctx.generate(shape, rng, "normal"), **fixed}
            made = ex.call(inputs, shape, settle=False)
            if i in choice:
                ctx.check(made, inputs, shape, f"call {i} of many")
        ex.settle()
        return calls


def _prepare(ex: Exerciser, inputs: Inputs, shape: Shape) -> None:
    if not ex.prepare(inputs, shape):
        raise CandidateFault("declined", "the constants it is submitted for")


def _right(ctx: JudgeContext, outputs: dict[str, Any], inputs: Inputs, shape: Shape) -> bool:
    """Whether all outputs happen to be inside their budgets."""
    truth, working = ctx.truth(inputs)
    try:
        ctx.check_outputs(outputs, truth, working, shape, "no kernel")
    except Wrong:
        return False
    return True
