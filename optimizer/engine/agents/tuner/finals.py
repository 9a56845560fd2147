"""From trials to one kernel: the best few side by side with stock, then every batch, then the envelope."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optimizer.engine.agents.tuner.family import Choice, Family, Host
from optimizer.engine.agents.tuner.measure import KernelSession, Wrong
from optimizer.engine.agents.tuner.plan import StepData, StepPlan
from optimizer.engine.agents.tuner.resident import ChildFailed
from optimizer.engine.agents.tuner.values import (
    BaselineSession,
    LiveShape,
    Row,
    Samples,
    Trial,
    TuneCancelled,
    reps_for,
    typical,
)
from optimizer.engine.build import build
from optimizer.engine.candidate import Candidate
from optimizer.engine.tasks.base import KernelTask

FINALISTS = 3  # per shape and regime: the best of noisy timings is often not the best
MARGIN = 0.03  # how much faster than stock a shape must be at a batch to enter the envelope
MIN_ROUNDS, MAX_ROUNDS = 3, 12  # interleaved rounds of finalists; of validation
REPS = 3

Picks = dict[tuple[str, int], list[Mapping[str, Any]]]  # (label, regime) -> parameters, best first


@dataclass(slots=True)
class Finals:
    """Everything the last part of a run needs. `stock` is warm."""

    task: KernelTask
    family: Family
    host: Host
    plan: StepPlan
    data: StepData
    runner: Path
    cache: Path
    env: Mapping[str, str]
    stock: BaselineSession
    cancelled: Callable[[], bool]
    bandwidth: float

    def decide(
        self, trials: Sequence[Trial], batches: Sequence[int], deadline: float
    ) -> tuple[Candidate | None, str, tuple[Row, ...]]:
        """The composed candidate (None with a reason when nothing wins) and the table of all batches."""
        picks = self._picks(trials)
        if not picks:
            return None, "no variant ran correctly", ()
        half = time.monotonic() + max(deadline - time.monotonic(), 0.0) * 0.4
        best = self._finalists(picks, half)
        choices = self._ranges(best, batches[-1])
        candidate = self._compose(choices)
        rows = self._validate(candidate, choices, batches, deadline)
        kept = trim(choices, rows)
        if not kept:
            return None, f"no shape and batch is {MARGIN:.0%} faster than the stock operator", rows
        final = self._compose(kept)
        self._build(final)
        return final, "", rows

    # -- who meets whom -------------------------------------------------------------------------------

    def _picks(self, trials: Sequence[Trial]) -> Picks:
        """For each shape the layout that is best over its regimes, and the best variants with it."""
        picks: Picks = {}
        for live in self.plan.live:
            found: dict[tuple[Any, ...], dict[int, list[tuple[float, int]]]] = {}
            for number, trial in enumerate(trials):
                us = next((t.us for t in trial.timings if t.label == live.label), None)
                if us is None or trial.outcome not in ("ok", "slower", "pruned"):
                    continue
                layout = self.family.layout(trial.params)
                found.setdefault(layout, {}).setdefault(trial.batch, []).append((us, number))
            if not found:
                continue
            best = {m: min(min(r[m])[0] for r in found.values() if m in r) for m in live.batches
                    if any(m in r for r in found.values())}  # fmt: skip

            def cost(
                layout: tuple[Any, ...],
                found: dict[tuple[Any, ...], dict[int, list[tuple[float, int]]]] = found,
                best: dict[int, float] = best,
                live: LiveShape = live,
            ) -> float:
                # A layout never tried in a regime counts as twice the best there.
                return sum(
                    live.batches[m] * (min(found[layout][m])[0] / us if m in found[layout] else 2.0)
                    for m, us in best.items()
                )

            layout = min(found, key=cost)
            for m, ranked in found[layout].items():
                chosen: list[Mapping[str, Any]] = []
                for _, number in sorted(ranked):
                    if trials[number].params not in chosen:
                        chosen.append(trials[number].params)
                picks[live.label, m] = chosen[:FINALISTS]
        return picks

    def _finalists(self, picks: Picks, deadline: float) -> dict[tuple[str, int], Mapping[str, Any]]:
        """Time the best few of each shape and regime in turns, and keep the one with the lowest median."""
        samples: dict[tuple[str, int, int], list[float]] = {}
        regimes = sorted({m for _, m in picks})
        with ExitStack() as stack:
            sessions = []
            for rank in range(max(len(p) for p in picks.values())):
                chosen = [
                    Choice(self._shape(label), m, m, params[min(rank, len(params) - 1)])
                    for (label, m), params in picks.items()
                ]
                session = self._open(self._compose(chosen), picks, stack)
                if session is not None:
                    sessions.append((rank, session))
            for turn in range(MAX_ROUNDS):
                if turn >= MIN_ROUNDS and time.monotonic() > deadline:
                    break
                for m in regimes:
                    for rank, session in sessions:
                        self._check()
                        us = self._measure(session, m)
                        for label, values in us.items():
                            samples.setdefault((label, m, rank), []).extend(values)
        best = {}
        for (label, m), params in picks.items():
            ranked = [
                (typical(samples[label, m, rank]), rank) for rank in range(len(params)) if (label, m, rank) in samples
            ]
            best[label, m] = params[min(ranked)[1]] if ranked else params[0]
        return best

    def _open(self, candidate: Candidate, picks: Picks, stack: ExitStack) -> KernelSession | None:
        """A checked session of a finalist; None when it does not stand."""
        labels = sorted({label for label, _ in picks})
        batches = {label: [m for other, m in picks if other == label] for label in labels}
        try:
            session = self._session(candidate, labels, batches)
        except ChildFailed:
            return None
        stack.callback(session.close)
        try:
            for label, m in picks:
                session.verify(label, m)
        except (Wrong, ChildFailed):
            return None
        return session

    # -- the composed kernel --------------------------------------------------------------------------

    def _ranges(self, best: Mapping[tuple[str, int], Mapping[str, Any]], top: int) -> list[Choice]:
        """Stretch each regime's variant over the batches up to it; the last one's goes on to the top."""
        choices = []
        for label in sorted({label for label, _ in best}):
            regimes = sorted(m for other, m in best if other == label)
            low = 1
            for m in regimes:
                high = max(top, m) if m == regimes[-1] else m
                choices.append(Choice(self._shape(label), low, high, best[label, m]))
                low = m + 1
        return choices

    def _compose(self, picked: Sequence[Choice]) -> Candidate:
        choices = self.family.unify(picked)
        isas = [self.family.isa(c.params, self.host) for c in choices]
        # Instruction sets of one family include each other; the one with the most flags runs all.
        isa = max(isas, key=lambda name: (name.startswith("amx"), isas.count(name)))
        source = self.family.composed_source(self.task, choices)
        return Candidate(
            task=self.task.name,
            kind="cpp",
            files={"kernel.cpp": source.encode()},
            isa=isa,
            envelope={
                "isa": isa,
                "shapes": [{**c.shape, "m_min": c.m_min, "m_max": c.m_max} for c in choices],
            },
            params={"choices": [{**c.shape, "m_min": c.m_min, "m_max": c.m_max, **c.params} for c in choices]},
            agent="tuner",
        )

    def _build(self, candidate: Candidate) -> Path:
        built = build(candidate, self.cache, cancelled=self.cancelled)
        self._check()
        if built.object is None:
            raise ChildFailed("refused", f"the composed kernel does not compile: {built.diagnostics}")
        return built.object

    def _session(
        self, candidate: Candidate, labels: Sequence[str], batches: Mapping[str, Sequence[int]]
    ) -> KernelSession:
        return KernelSession(
            self.runner, self._build(candidate), self.data, labels=labels, batches=batches,
            threads=self.host.threads, env=self.env, cancelled=self.cancelled,
        )  # fmt: skip

    def _validate(
        self, candidate: Candidate, choices: Sequence[Choice], batches: Sequence[int], deadline: float
    ) -> tuple[Row, ...]:
        """Check and time every shape at every batch, in turns with stock."""
        labels = sorted({self._label(c.shape) for c in choices})
        ours: dict[tuple[str, int], list[float]] = {}
        theirs: dict[tuple[str, int], list[float]] = {}
        wrong: set[tuple[str, int]] = set()
        live = sorted({m for s in self.plan.live for m in s.batches if m in batches})
        with self._session(candidate, labels, dict.fromkeys(labels, batches)) as session:
            for m in batches:
                for label in labels:
                    try:
                        session.verify(label, m)
                    except Wrong:
                        wrong.add((label, m))
            for turn in range(MAX_ROUNDS):
                late = time.monotonic() > deadline
                if turn >= MIN_ROUNDS and late:
                    break
                # Batches the server really has get every round, the others the first three.
                for m in batches if turn < MIN_ROUNDS else live:
                    self._check()
                    mine, stock = self._measure(session, m), self._stock(m)
                    for label in labels:
                        ours.setdefault((label, m), []).extend(mine[label])
                        theirs.setdefault((label, m), []).extend(stock[label])
        rows = []
        for item in self.plan.live:
            if item.label not in labels:
                continue
            for m in batches:
                us, stock_us = typical(ours[item.label, m]), typical(theirs[item.label, m])
                shape = self.plan.shape(item.label, m, self.task.batch_axis)
                rate = self.task.bytes_moved(shape) / us / 1e3
                rows.append(
                    Row(
                        label=item.label,
                        shape=dict(item.shape),
                        batch=m,
                        calls_per_step=item.calls_per_step,
                        stock_us=stock_us,
                        ours_us=us,
                        gbytes_per_s=rate,
                        bandwidth_fraction=rate / self.bandwidth,
                        in_envelope=us < stock_us * (1 - MARGIN) and (item.label, m) not in wrong,
                    )
                )
        return tuple(rows)

    def _measure(self, session: KernelSession, m: int) -> Samples:
        return self._repeat(lambda reps: session.measure(m, reps)[0])

    def _stock(self, m: int) -> Samples:
        return self._repeat(lambda reps: self.stock.measure(m, reps))

    def _repeat(self, measure: Callable[[int], Samples]) -> Samples:
        """One step to warm up after a pause (not counted), then as many as make a sample."""
        first = measure(1)
        step = sum(min(v) * self.plan.copies[label] for label, v in first.items())
        return measure(reps_for(step, at_least=REPS))

    def _shape(self, label: str) -> Mapping[str, int]:
        return next(s.shape for s in self.plan.live if s.label == label)

    def _label(self, shape: Mapping[str, int]) -> str:
        return next(s.label for s in self.plan.live if s.shape == shape)

    def _check(self) -> None:
        if self.cancelled():
            raise TuneCancelled(f"{self.task.name}: cancelled in the finals")


def trim(choices: Sequence[Choice], rows: Sequence[Row]) -> list[Choice]:
    """Choices cut down to the runs of batches that are in the envelope, in order of shape and batch."""
    good = {(tuple(sorted(r.shape.items())), r.batch) for r in rows if r.in_envelope}
    kept: list[Choice] = []
    for choice in choices:
        key = tuple(sorted(choice.shape.items()))
        start: int | None = None
        for m in range(choice.m_min, choice.m_max + 2):
            inside = m <= choice.m_max and (key, m) in good
            if inside and start is None:
                start = m
            elif not inside and start is not None:
                kept.append(replace(choice, m_min=start, m_max=m - 1))
                start = None
    return kept
