"""G5: the same truth where candidates are not looked at by their authors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optimizer.engine.judge.context import JudgeContext, label, passed
from optimizer.engine.judge.exercise import PLAIN, Exerciser, Layout
from optimizer.engine.judge.sandbox import CandidateFault
from optimizer.engine.judge.verdict import GateResult
from optimizer.engine.tasks.base import Inputs, Shape, Style

STYLES: tuple[Style, ...] = ("spikes", "huge", "tiny", "binary", "zeros", "equal")
LAYOUTS: tuple[tuple[str, Layout], ...] = (
    ("ends at an unmapped page", Layout(guarded=True)),
    ("misaligned", Layout(misalign=1)),
    ("padded input rows", Layout(input_pad=3)),
    ("padded output rows", Layout(output_pad=5)),
    ("aliased", Layout(alias=True)),
)
RERUNS = 3
HELD_OUT = 4


class Adversarial:
    """Odd shapes, odd values, odd places, reruns bit for bit, and every input perturbed."""

    name, version, title = "G5", 1, "adversarial"

    def check(self, ctx: JudgeContext) -> GateResult:
        start = ctx.comparisons
        declined: list[str] = []
        ran: list[str] = []
        rng = ctx.rng("G5")
        # Only the cheapest of the shapes it is for: the point here is the odd, not the size.
        small = min(ctx.shapes, key=ctx.task.bytes_moved)
        with ctx.exerciser("G5") as ex:
            for shape, style, where, layout, must in self._cases(ctx, small):
                inputs = ctx.generate(shape, rng, style)
                threads = int(ctx.policy.threads[int(rng.integers(len(ctx.policy.threads)))])
                if not ex.prepare(inputs, shape):
                    if must:
                        raise CandidateFault("declined", f"constants of {label(shape)}")
                    declined.append(f"{where} {label(shape)}")
                    continue
                made, _ = ctx.call_and_check(
                    ex, inputs, shape, where, threads=threads, layout=layout, may_decline=not must
                )
                (ran if made.supported else declined).append(f"{where} {label(shape)}")
            self._reruns(ctx, ex, rng)
            followed = self._perturb(ctx, ex, small, rng)
        return passed(self, comparisons=ctx.comparisons - start, cases=ran, declined=declined, perturbed=followed)

    def _cases(self, ctx: JudgeContext, small: Shape) -> Iterator[tuple[Shape, Style, str, Layout, bool]]:
        styles: list[Style] = [*STYLES]
        if ctx.task.nonfinite == "propagate":
            styles.append("nonfinite")
        for style in styles:
            yield small, style, style, PLAIN, True
        for where, layout in LAYOUTS:
            if layout.alias and not any(t.may_alias for t in ctx.task.outputs):
                continue
            # Places a kernel may decline, except the very end of a mapping, which any allocator may give.
            yield small, "normal", where, layout, layout.guarded
        for shape in held_out(ctx):
            yield shape, "normal", "a batch nobody named", PLAIN, False
        for shape in ctx.task.odd_shapes:
            yield shape, "normal", "odd shape", PLAIN, False
            yield shape, "normal", "odd shape at an unmapped page", Layout(guarded=True), False

    def _reruns(self, ctx: JudgeContext, ex: Exerciser, rng: np.random.Generator) -> None:
        """Same values, other addresses of the same alignment, other calls in between: the same bits."""
        shape = max(ctx.shapes, key=ctx.task.bytes_moved)
        inputs = ctx.generate(shape, rng, "normal")
        if not ex.prepare(inputs, shape):
            raise CandidateFault("declined", f"constants of {label(shape)}")
        threads = max(ctx.policy.threads)
        first, _ = ctx.call_and_check(ex, inputs, shape, "rerun", threads=threads)
        for _ in range(RERUNS):
            again = ex.call(inputs, shape, threads=threads)
            for name, array in first.outputs.items():
                if array.tobytes() != again.outputs[name].tobytes():
                    raise CandidateFault("not-repeatable", f"{name} differs between equal calls at {label(shape)}")
            ctx.comparisons += 1
        ex.settle()

    def _perturb(self, ctx: JudgeContext, ex: Exerciser, shape: Shape, rng: np.random.Generator) -> list[str]:
        """Change each input where its effect can be seen; the output must follow to the new truth."""
        followed = []
        base = ctx.generate(shape, rng, "normal")
        if not ex.prepare(base, shape):
            raise CandidateFault("declined", f"constants of {label(shape)}")
        ctx.call_and_check(ex, base, shape, "before perturbing")
        for spec in ctx.task.inputs:
            array = np.array(base[spec.name])
            if array.size == 0 or array.dtype.kind in "bOSU":
                continue
            changed: Inputs = dict(base)
            flat = array.reshape(-1)
            where = rng.choice(flat.size, size=min(3, flat.size), replace=False)
            for i in where:
                value = flat[i].astype(np.float64)
                flat[i] = np.asarray(-value * 3.0 + (8.0 if abs(value) < 4.0 else 0.0)).astype(array.dtype)
            if spec.dims == ():
                flat[:] = np.asarray(abs(float(flat[0].astype(np.float64)))).astype(array.dtype)
            changed[spec.name] = array.reshape(np.shape(base[spec.name]))
            if not ex.prepare(changed, shape):
                raise CandidateFault("declined", f"constants of {label(shape)}")
            ctx.call_and_check(ex, changed, shape, f"{spec.name} perturbed")
            followed.append(spec.name)
        return followed


def held_out(ctx: JudgeContext) -> list[Shape]:
    """Batch sizes between and just beyond those the candidate is for, chosen by the secret seed."""
    axis = ctx.task.batch_axis
    if axis is None:
        return []
    small = min(ctx.shapes, key=ctx.task.bytes_moved)
    known = {s[axis] for s in ctx.shapes if all(s[k] == v for k, v in small.items() if k != axis)}
    unknown = [m for m in range(1, max(known) + 4) if m not in known]
    chosen = ctx.rng("G5 batch").permutation(np.asarray(unknown, dtype=np.int64))[:HELD_OUT]
    return [{**small, axis: int(m)} for m in chosen]
