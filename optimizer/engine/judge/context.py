"""What the gates of one judgement share."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from optimizer.engine.candidate import Candidate
from optimizer.engine.judge.compare import Difference, compare, dtype_of
from optimizer.engine.judge.exercise import PLAIN, Exerciser, Layout, Made, arena_bytes, dims_of
from optimizer.engine.judge.policy import JudgePolicy
from optimizer.engine.judge.pool import SandboxPool
from optimizer.engine.judge.sandbox import Cancelled, CandidateFault
from optimizer.engine.judge.verdict import GateOutcome, GateResult
from optimizer.engine.tasks.base import Array, Inputs, KernelTask, Shape, Style
from rackforge_runtime.runner.confine import Held

Progress = Callable[[str, float], None]


class Gate(Protocol):
    """A gate: `check` returns its result. It may raise CandidateFault (a rejection with that reason)."""

    name: str
    version: int
    title: str

    def check(self, ctx: JudgeContext) -> GateResult: ...


class Wrong(CandidateFault):
    """An output outside of its budget."""


@dataclass(slots=True)
class JudgeContext:
    """One judgement on its way through the gates."""

    candidate: Candidate
    task: KernelTask
    policy: JudgePolicy
    shapes: tuple[Shape, ...]
    seed: bytes
    pool: SandboxPool
    store: Callable[[bytes], str]
    build_cache: Path
    cpu_flags: frozenset[str]
    progress: Progress
    cancelled: Callable[[], bool]
    files: list[tuple[str, bytes]] = field(default_factory=list)  # what runs; set by G3
    object_digest: str = ""
    held: Held = field(default_factory=lambda: Held(0))
    speedups: dict[str, float] = field(default_factory=dict)
    comparisons: int = 0
    largest: list[Shape] = field(default_factory=list)

    def rng(self, label: str) -> np.random.Generator:
        """A stream of its own for each use, from the secret seed of this judgement."""
        return np.random.Generator(np.random.PCG64(list(hashlib.sha256(self.seed + label.encode()).digest())))

    def check_cancelled(self) -> None:
        if self.cancelled():
            raise Cancelled

    @contextlib.contextmanager
    def exerciser(
        self, label: str, *, shapes: Sequence[Shape] | None = None, poison: int = 0, trusted: bool = False,
        files: list[tuple[str, bytes]] | None = None, kind: str | None = None,
    ) -> Iterator[Exerciser]:  # fmt: skip
        """A fresh candidate process, loaded; looked at once more when its user is done.

        poison: bits of `Poison` to spoil before it is loaded. trusted: a baseline, which may use vendor kernels.
        """
        self.check_cancelled()
        sizes = arena_bytes(self.task, [*(shapes or self.shapes), *self.task.odd_shapes])
        with (
            self.pool.sandbox(kind or self.candidate.kind, trusted=trusted) as sandbox,
            sandbox.spawn(
                files=self.files if files is None else files,
                input_bytes=sizes[0],
                output_bytes=sizes[1],
                memory=self.policy.memory_bytes,
                cancelled=self.cancelled,
            ) as session,
        ):
            if not trusted:
                self.held = session.held
            exerciser = Exerciser(session, self.task, self.policy, self.rng("places " + label))
            exerciser.load(poison=poison)
            yield exerciser
            exerciser.finish()

    def generate(self, shape: Shape, rng: np.random.Generator, style: Style) -> Inputs:
        return self.task.generate(shape, rng, style)

    def check(self, made: Made, inputs: Inputs, shape: Shape, where: str) -> list[Difference]:
        """Compare a call's outputs with the truth; Wrong with the first one outside of its budget."""
        truth, working = self.truth(inputs)
        return self.check_against(made, truth, working, shape, where)

    def truth(self, inputs: Inputs) -> tuple[dict[str, Array], dict[str, Array]]:
        with np.errstate(all="ignore"):
            return self.task.reference(inputs), self.task.working(inputs)

    def check_against(
        self, made: Made, truth: dict[str, Array], working: dict[str, Array], shape: Shape, where: str
    ) -> list[Difference]:
        return self.check_outputs(made.outputs, truth, working, shape, where)

    def check_outputs(
        self, outputs: dict[str, Array], truth: dict[str, Array], working: dict[str, Array], shape: Shape, where: str
    ) -> list[Difference]:
        """Compare outputs with the truth; Wrong with the first one outside of its budget."""
        found = []
        for spec in self.task.outputs:
            dims, kind = dims_of(spec, shape), dtype_of(spec.dtype)
            w = np.asarray(working[spec.name]).reshape(dims).astype(kind, copy=False)
            t = np.asarray(truth[spec.name], dtype=np.float64).reshape(dims)
            one = compare(outputs[spec.name], t, w, budget=self.task.budget, dtype=spec.dtype)
            self.comparisons += 1 if one.elements else 0
            if not one.ok:
                raise Wrong("wrong", f"{spec.name} {one.why} ({where}, {label(shape)}): {_words(one)}")
            found.append(one)
        return found

    def call_and_check(
        self, ex: Exerciser, inputs: Inputs, shape: Shape, where: str, *, key: int = 0, threads: int = 1,
        layout: Layout = PLAIN, may_decline: bool = False,
    ) -> tuple[Made, list[Difference]]:  # fmt: skip
        """One checked call. Declining is a fault unless `may_decline`."""
        self.check_cancelled()
        made = ex.call(inputs, shape, key=key, threads=threads, layout=layout)
        if not made.supported:
            if not may_decline:
                raise CandidateFault("declined", f"{label(shape)} ({where}), which it is submitted for")
            ex.settle()
            return made, []
        found = self.check(made, inputs, shape, where)
        ex.settle()
        return made, found


def label(shape: Shape) -> str:
    """`M=8,N=64` of a shape."""
    return ",".join(f"{k}={v}" for k, v in shape.items())


def _words(one: Difference) -> str:
    if one.mismatched:
        count = f"{one.mismatched} of {one.elements} elements"
        return f"{count}, worst {one.worst:.3g} times its bound, first at {one.first}"
    return f"error {one.rms_share:.3g} times what is allowed"


def passed(gate: Gate, **evidence: Any) -> GateResult:
    return GateResult(gate.name, gate.version, GateOutcome.PASS, "", evidence)


def failed(gate: Gate, reason: str, **evidence: Any) -> GateResult:
    return GateResult(gate.name, gate.version, GateOutcome.FAIL, reason, evidence)


def not_applicable(gate: Gate, reason: str, **evidence: Any) -> GateResult:
    return GateResult(gate.name, gate.version, GateOutcome.NOT_APPLICABLE, reason, evidence)
