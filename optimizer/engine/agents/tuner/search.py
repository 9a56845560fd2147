"""The tuner: searches a template family's space on a server's live shapes and composes one kernel of the best.

Builds of a batch run side by side in killable children; when they are done, candidates are timed one at a time
with nothing of ours running next to them. The stock operator is timed by the same protocol in between, so that a
host that drifts moves both.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution

from optimizer.engine.agents.tuner.family import Family, Host, family_for, trial_candidate
from optimizer.engine.agents.tuner.finals import Finals
from optimizer.engine.agents.tuner.measure import KernelSession, Wrong, build_runner, read_bandwidth
from optimizer.engine.agents.tuner.plan import StepData, make_plan
from optimizer.engine.agents.tuner.resident import ChildFailed
from optimizer.engine.agents.tuner.values import (
    Baseline,
    BaselineSession,
    LiveShape,
    Outcome,
    Progress,
    Timing,
    Trial,
    TuneBudget,
    TuneCancelled,
    TunerError,
    TuneResult,
    reps_for,
    typical,
)
from optimizer.engine.build import Built, build
from optimizer.engine.candidate import Candidate
from optimizer.engine.tasks.base import KernelTask

# Share of the wall budget kept for the finals: top candidates against stock, then every batch of the envelope.
FINALS_SHARE = 0.22
REPS = 5  # steps a candidate is timed for; the first warms up
GIVE_UP = 1.5  # a step slower than this times the best so far is not worth finishing
STOCK_EVERY_S = 15.0  # how often the stock operator is timed again during the search
STARTUP_TRIALS = 10  # random points before the sampler models anything, per regime


def tune(
    task: KernelTask,
    live: Sequence[LiveShape],
    *,
    cpu_flags: frozenset[str],
    threads: int,
    baseline: Baseline,
    budget: TuneBudget,
    workdir: Path,
    seed: int,
    on_trial: Callable[[Trial], None] = lambda _: None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    resume: Sequence[Trial] = (),
    env: Mapping[str, str] | None = None,
    cache: Path | None = None,
    builders: int | None = None,
    read_gbytes_per_s: float | None = None,
) -> TuneResult:
    """Search for the fastest kernels of `task` at the live shapes and batches, within the budget.

    threads: those of the server's engine. env: the environment of timing children, with the server's preloads
    (default: this process's). cache: where objects are built (default: workdir/builds). resume: trials of an
    earlier run, which are not measured again. Every trial is handed to `on_trial` as soon as it is known.

    Raises TuneCancelled when `cancelled()` turns true, LookupError for a task without templates, TunerError
    for what the host or the caller must mend (no shapes, a serving environment that does not run), NoCompiler.
    """
    run = _Run(
        task, live, Host(cpu_flags, threads), budget, workdir, seed,
        on_trial, on_progress, cancelled, dict(os.environ if env is None else env),
        cache or workdir / "builds", builders or len(os.sched_getaffinity(0)),
    )  # fmt: skip
    with ExitStack() as stack:
        return run.go(stack, baseline, resume, read_gbytes_per_s)


@dataclass(slots=True)
class _Regime:
    """The search at one batch: a study per shape, all told of every trial, since one build serves all shapes."""

    batch: int
    space: dict[str, BaseDistribution]
    labels: list[str]  # shapes seen at this batch, by share of stock time
    studies: dict[str, optuna.Study]
    weight: dict[str, float]  # calls a step
    stock_us: dict[str, float] = field(default_factory=dict)
    best_us: dict[str, float] = field(default_factory=dict)
    turn: int = 0

    def step_us(self, us: Mapping[str, float]) -> float:
        """One step's calls, with stock where a shape is missing."""
        return sum(self.weight[s] * us.get(s, self.stock_us[s]) for s in self.labels)

    def gain(self) -> float:
        ours = {s: min(self.best_us.get(s, self.stock_us[s]), self.stock_us[s]) for s in self.labels}
        return self.step_us(self.stock_us) / self.step_us(ours)


@dataclass(frozen=True, slots=True)
class _Asked:
    regime: _Regime
    label: str
    asked: optuna.Trial
    params: dict[str, Any]
    candidate: Candidate


@dataclass(slots=True)
class _Run:
    task: KernelTask
    live: Sequence[LiveShape]
    host: Host
    budget: TuneBudget
    workdir: Path
    seed: int
    on_trial: Callable[[Trial], None]
    on_progress: Callable[[Progress], None]
    cancelled: Callable[[], bool]
    env: dict[str, str]
    cache: Path
    builders: int
    family: Family = field(init=False)
    started: float = field(init=False)
    trials: list[Trial] = field(init=False, default_factory=list)
    known: dict[tuple[int, str], Trial] = field(init=False, default_factory=dict)
    measured: int = field(init=False, default=0)

    def go(
        self, stack: ExitStack, baseline: Baseline, resume: Sequence[Trial], bandwidth: float | None
    ) -> TuneResult:
        self.started = time.monotonic()
        self.family = family_for(self.task)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        plan = make_plan(self.task, self.live)
        self.workdir.mkdir(parents=True, exist_ok=True)
        runner = build_runner(self.cache)
        if bandwidth is None:
            bandwidth = read_bandwidth(runner, threads=self.host.threads, env=self.env)
        regimes = self._regimes()
        if not regimes:
            raise TunerError(
                f"{self.task.name}: no live batch size up to {self.family.max_batch}, all the templates take"
            )
        self._progress("baseline", regimes)
        # Every batch up to the largest that is tuned for is validated: servers ramp up and down.
        top = max(16, *(r.batch for r in regimes))
        batches = list(range(1, min(top, self.family.max_batch) + 1))
        data = StepData(self.task, plan, path=self.workdir / "step-data.bin", seed=self.seed, max_batch=batches[-1])
        stack.callback(data.path.unlink, missing_ok=True)
        stock = baseline.open(plan, threads=self.host.threads, batches=batches)
        stack.callback(stock.close)
        for regime in regimes:
            self._time_stock(stock, regime)
        self._resume(regimes, resume)
        self._search(runner, data, regimes, stock)
        self._check()
        self._progress("finals", regimes)
        finals = Finals(
            self.task, self.family, self.host, plan, data, runner, self.cache, self.env,
            stock, self.cancelled, bandwidth,
        )  # fmt: skip
        deadline = self.started + self.budget.wall_s
        candidate, reason, rows = finals.decide(self.trials, batches, deadline)
        self._check()
        self._progress("done", regimes)
        return TuneResult(
            candidate=candidate,
            reason=reason,
            rows=rows,
            trials=tuple(self.trials),
            threads=self.host.threads,
            read_gbytes_per_s=bandwidth,
            wall_s=time.monotonic() - self.started,
            outcomes=dict(Counter(t.outcome for t in self.trials)),
        )

    # -- set-up ---------------------------------------------------------------------------------------

    def _regimes(self) -> list[_Regime]:
        regimes = []
        for batch in sorted({m for s in self.live for m in s.batches if 1 <= m <= self.family.max_batch}):
            labels = [s.label for s in self.live if batch in s.batches]
            weight = {s.label: float(s.calls_per_step) for s in self.live if s.label in labels}
            studies = {}
            for number, label in enumerate(labels):
                sampler = optuna.samplers.TPESampler(
                    seed=(self.seed * 1009 + batch * 101 + number) % 2**32, n_startup_trials=STARTUP_TRIALS
                )
                studies[label] = optuna.create_study(sampler=sampler, direction="minimize")
            space = self.family.space(self.task, self.host, batch)
            regimes.append(_Regime(batch, space, labels, studies, weight))
        return regimes

    def _time_stock(self, stock: BaselineSession, regime: _Regime) -> None:
        self._check()
        step_us = sum(regime.weight[s] * us for s, us in regime.stock_us.items())
        samples = stock.measure(regime.batch, reps_for(step_us or 1e6, at_least=REPS))
        for label in regime.labels:
            us = typical(samples[label])
            # The quickest the stock operator was seen: a burst next door must not make us look good.
            regime.stock_us[label] = min(us, regime.stock_us.get(label, us))

    def _resume(self, regimes: Sequence[_Regime], resume: Sequence[Trial]) -> None:
        by_batch = {r.batch: r for r in regimes}
        for trial in resume:
            regime = by_batch.get(trial.batch)
            if regime is None or trial.task != self.task.name or trial.family != self.family.name:
                continue
            if set(trial.point) != set(regime.space):
                continue  # of an older space
            self._remember(regime, trial)
            self._tell(regime, trial, None)

    # -- the search -----------------------------------------------------------------------------------

    def _search(self, runner: Path, data: StepData, regimes: Sequence[_Regime], stock: BaselineSession) -> None:
        end = self.started + self.budget.wall_s * (1 - FINALS_SHARE)
        stock_at = time.monotonic()
        dry = 0
        with ThreadPoolExecutor(self.builders, thread_name_prefix="tuner-build") as pool:
            while time.monotonic() < end and self.measured < self.budget.max_trials and dry < 40:
                self._check()
                batch = self._ask(regimes, min(4 * self.builders, self.budget.max_trials - self.measured))
                if not batch:
                    dry += 1
                    continue
                dry = 0
                built = list(pool.map(lambda a: build(a.candidate, self.cache, cancelled=self.cancelled), batch))
                for asked, object_ in zip(batch, built, strict=True):
                    self._check()
                    if time.monotonic() >= end and object_.ok:
                        break
                    self._try(runner, data, asked, object_)
                    self._progress("search", regimes)
                if time.monotonic() - stock_at > STOCK_EVERY_S:
                    for regime in regimes:
                        self._time_stock(stock, regime)
                    stock_at = time.monotonic()

    def _ask(self, regimes: Sequence[_Regime], count: int) -> list[_Asked]:
        """Up to `count` points not tried before. Repeats are told to their study and cost nothing."""
        found: list[_Asked] = []
        seen: set[tuple[int, str]] = set()
        for i in range(count):
            regime = regimes[(self.measured + i) % len(regimes)]
            label = self._whose_turn(regime)
            asked = regime.studies[label].ask(regime.space)
            params = self.family.repair(asked.params, self.host, regime.batch)
            candidate = trial_candidate(self.family, self.task, params, self.host, regime.batch)
            key = (regime.batch, candidate.digest)
            if key in self.known:
                value = self._value(regime, self.known[key], label)
                state = optuna.trial.TrialState.COMPLETE if value else optuna.trial.TrialState.FAIL
                regime.studies[label].tell(asked, value, state=state)
            elif key in seen:
                regime.studies[label].tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                seen.add(key)
                found.append(_Asked(regime, label, asked, params, candidate))
        return found

    @staticmethod
    def _whose_turn(regime: _Regime) -> str:
        """Shapes in turn, those with more of the step's time more often (smooth weighted round robin)."""
        cost = {s: regime.weight[s] * regime.stock_us[s] for s in regime.labels}
        total = sum(cost.values())
        regime.turn += 1
        at = (regime.turn * 0.6180339887498949) % 1.0  # golden-ratio steps cover the unit interval evenly
        for label, share in cost.items():
            at -= share / total
            if at < 0:
                return label
        return regime.labels[-1]

    def _try(self, runner: Path, data: StepData, asked: _Asked, built: Built) -> None:
        """Check and time one built candidate, and record what became of it."""
        start = time.monotonic()
        regime, candidate = asked.regime, asked.candidate
        outcome: Outcome = "ok"
        reason = ""
        timings: tuple[Timing, ...] = ()
        shapes = {s.label: s.shape for s in self.live}
        labels = [s for s in regime.labels if self.family.fits(asked.params, shapes[s], self.host)]
        if built.object is None:
            outcome, reason = "build_failed", built.diagnostics
        elif not labels:
            outcome, reason = "pruned", "the blocking divides none of the live shapes"
        else:
            try:
                outcome, reason, timings = self._time(runner, data, asked, built.object, labels)
            except Wrong as error:
                outcome, reason = "wrong", str(error)
            except ChildFailed as error:
                self._check()
                outcome, reason = ("timeout" if error.kind == "timeout" else "crashed"), str(error)
        us = {t.label: t.us for t in timings}
        trial = Trial(
            number=len(self.trials),
            task=self.task.name,
            family=self.family.name,
            batch=regime.batch,
            point=dict(asked.asked.params),
            params=asked.params,
            digest=candidate.digest,
            source=candidate.files[candidate.entry].decode(),
            isa=candidate.isa,
            outcome=outcome,
            reason=reason,
            timings=timings,
            score=regime.step_us(us) / regime.step_us(regime.stock_us) if us else None,
            wall_s=built.wall_s + time.monotonic() - start,
        )
        self.measured += 1
        self._remember(regime, trial)
        self._tell(regime, trial, asked)
        self.on_trial(trial)

    def _time(
        self, runner: Path, data: StepData, asked: _Asked, kernel: Path, labels: Sequence[str]
    ) -> tuple[Outcome, str, tuple[Timing, ...]]:
        regime = asked.regime
        m = regime.batch
        stock = sum(regime.weight[s] * regime.stock_us[s] for s in labels)
        best = sum(regime.weight[s] * regime.best_us.get(s, regime.stock_us[s]) for s in labels)
        copies = data.plan.copies  # fewer than calls where the weights of a step are more than are rotated
        best_rotation = sum(copies[s] * regime.best_us.get(s, regime.stock_us[s]) for s in labels)
        with KernelSession(
            runner, kernel, data, labels=labels, batches={s: (m,) for s in labels},
            threads=self.host.threads, env=self.env, cancelled=self.cancelled,
        ) as session:  # fmt: skip
            for label in labels:
                session.verify(label, m)
            reps = reps_for(best_rotation, at_least=REPS)
            us, gave_up = session.measure(m, reps, give_up_us=GIVE_UP * best_rotation)
        timings = tuple(Timing(s, m, typical(us[s])) for s in labels)
        took = sum(regime.weight[t.label] * t.us for t in timings)
        if gave_up:
            why = f"stopped early: a step took {took:.0f} us where the best so far takes {best:.0f}"
            return "pruned", why, timings
        if all(t.us >= regime.stock_us[t.label] for t in timings):
            return "slower", f"a step took {took:.0f} us, the stock operator's takes {stock:.0f}", timings
        return "ok", "", timings

    # -- what is known --------------------------------------------------------------------------------

    def _remember(self, regime: _Regime, trial: Trial) -> None:
        self.trials.append(replace(trial, number=len(self.trials)))
        self.known[regime.batch, trial.digest] = trial
        if trial.outcome in ("ok", "slower"):
            for t in trial.timings:
                regime.best_us[t.label] = min(t.us, regime.best_us.get(t.label, t.us))

    def _value(self, regime: _Regime, trial: Trial, label: str) -> float | None:
        """What the label's study is told: time over stock. A candidate that is no good is told as a bad time."""
        us = next((t.us for t in trial.timings if t.label == label), None)
        if us is not None and label in regime.stock_us:
            return us / regime.stock_us[label]
        return None

    def _tell(self, regime: _Regime, trial: Trial, asked: _Asked | None) -> None:
        point = dict(trial.point)
        for label, study in regime.studies.items():
            value = self._value(regime, trial, label)
            if asked is not None and label == asked.label:
                state = optuna.trial.TrialState.COMPLETE if value else optuna.trial.TrialState.FAIL
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    study.tell(asked.asked, value, state=state)
            elif value is not None:
                study.add_trial(optuna.trial.create_trial(params=point, distributions=regime.space, value=value))

    def _check(self) -> None:
        if self.cancelled():
            raise TuneCancelled(f"{self.task.name}: cancelled after {self.measured} trials")

    def _progress(self, stage: Literal["baseline", "search", "finals", "done"], regimes: Sequence[_Regime]) -> None:
        elapsed = time.monotonic() - self.started
        self.on_progress(
            Progress(
                stage=stage,
                tried=len(self.trials),
                failed=sum(t.outcome not in ("ok", "slower", "pruned") for t in self.trials),
                best={r.batch: r.gain() for r in regimes if r.stock_us},
                elapsed_s=elapsed,
                left_s=0.0 if stage == "done" else max(self.budget.wall_s - elapsed, 0.0),
            )
        )
