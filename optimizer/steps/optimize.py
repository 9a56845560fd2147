"""Search kernels for the chosen task on the shapes and batch sizes the server really runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optimizer.context import Interrupted, StepContext, StepResult
from optimizer.engine.agents.tuner import (
    LiveShape,
    Progress,
    StockBaseline,
    Timing,
    Trial,
    TuneBudget,
    TuneCancelled,
    TuneResult,
    tune,
)
from optimizer.engine.tasks import load_task
from optimizer.kernels import pack_sources
from optimizer.servers import environment
from optimizer.states import CandidateState, StepKind
from optimizer.steps.arms import groups
from optimizer.steps.profiling import round_of
from optimizer.steps.targets import latest_profile
from rackforge_runtime.facts import collect_facts

AGENT = "tuner"


def run(context: StepContext) -> StepResult:
    """Run the tuner; every trial becomes a candidate, also the failed ones, and the best are composed into one."""
    number = round_of(context)
    name = str(context.result_of(f"targets:{number}")["task"])
    task = load_task(name)
    profile = context.result_of(latest_profile(context))
    live = live_shapes(profile["regimes"], name)
    facts = collect_facts(context.platform.serving_python)
    threads = max(group.threads for group in groups(context))
    serving = environment(context.platform)
    env = serving.base_environ()
    if serving.preloads():
        env["LD_PRELOAD"] = ":".join(serving.preloads())
    log = context.work / f"trials-{number}.jsonl"
    earlier = list(read_trials(log))
    budget = context.config.budget
    left = max(30.0, budget.wall_s - context.wall_spent())
    rates = context.result_of("prepare")["roofline"]["one" if threads == 1 else "all"]

    def on_trial(trial: Trial) -> None:
        with log.open("a") as f:
            f.write(json.dumps(asdict(trial)) + "\n")
        record_trial(context, trial)

    def on_progress(progress: Progress) -> None:
        best = ", ".join(f"{ratio:.2f}x at {batch}" for batch, ratio in sorted(progress.best.items()))
        context.progress(
            progress.elapsed_s,
            max(progress.elapsed_s + progress.left_s, progress.elapsed_s + 0.001),
            f"{progress.stage}: {progress.tried} tried, {progress.failed} failed; best {best or 'none yet'}; "
            f"{progress.left_s:.0f} s left",
        )

    try:
        result = tune(
            task,
            live,
            cpu_flags=frozenset(facts.cpu_flags),
            threads=threads,
            baseline=StockBaseline(python=context.platform.serving_python, env=env),
            budget=TuneBudget(
                wall_s=min(budget.search_wall_s, left), max_trials=max(0, budget.max_candidates - len(earlier))
            ),
            workdir=context.work / f"tuner-{number}",
            seed=context.config.seed,
            on_trial=on_trial,
            on_progress=on_progress,
            cancelled=context.stopping,
            resume=earlier,
            env=env,
            cache=context.platform.cache / "build",
            read_gbytes_per_s=float(rates["read_gbs"]),
        )
    except TuneCancelled as error:
        raise Interrupted from error
    return conclude(context, number, name, result)


def conclude(context: StepContext, number: int, task: str, result: TuneResult) -> StepResult:
    """Record the composed candidate and go on to the judge; without one, to the next target."""
    rows = [asdict(row) | {"speedup": row.speedup} for row in result.rows]
    found: dict[str, Any] = {
        "task": task,
        "rows": rows,
        "outcomes": dict(result.outcomes),
        "trials": len(result.trials),
        "threads": result.threads,
        "read_gbytes_per_s": result.read_gbytes_per_s,
        "search_wall_s": result.wall_s,
        "candidate": None,
        "reason": result.reason,
    }
    candidate = result.candidate
    if candidate is None:
        context.progress(1, 1, f"nothing faster than the engine's own operator: {result.reason}")
        return StepResult(found, next=[(StepKind.TARGETS, f"targets:{number + 1}")])
    source = context.store(pack_sources(candidate))
    batches = sorted({row.batch for row in result.rows})
    steps = {batch: result.step_us(batch) for batch in batches}
    speedup = {str(batch): stock / ours for batch, (stock, ours) in steps.items() if ours > 0}
    context.candidate(
        digest=candidate.digest,
        task=task,
        kind=candidate.kind,
        agent=AGENT,
        source_digest=source,
        params=dict(candidate.params),
        state=CandidateState.COMPOSED,
        timings=[
            {"shape": row.label, "batch": row.batch, "us": row.ours_us, "stock_us": row.stock_us,
             "gbps": row.gbytes_per_s, "in_envelope": row.in_envelope}
            for row in result.rows
        ],
        speedup=max(speedup.values(), default=None),
        reason="the best variant for each shape and batch",
    )  # fmt: skip
    best = ", ".join(f"{ratio:.2f}x at batch {batch}" for batch, ratio in speedup.items())
    context.progress(1, 1, f"{len(result.trials)} candidates tried; {best}")
    found |= {"candidate": candidate.digest, "source": source, "speedup": speedup}
    return StepResult(found, next=[(StepKind.JUDGE, f"judge:{number}")])


def live_shapes(regimes: dict[str, Any], task: str) -> list[LiveShape]:
    """The task's shapes over all regimes: calls a step, and the decode batches each with equal weight.

    A regime is a batch size of its own, so a kernel that serves several is searched for each of them.
    """
    calls: dict[str, tuple[dict[str, int], int]] = {}
    batches: dict[str, dict[int, float]] = {}
    for regime in regimes.values():
        for shape in regime["targets"].get(task, {}).get("shapes", ()):
            label = json.dumps(shape["shape"], sort_keys=True)
            known = calls.get(label, (shape["shape"], 0))[1]
            calls[label] = (shape["shape"], max(known, int(shape["calls_per_step"])))
            batches.setdefault(label, {})[int(shape["batch"])] = 1.0
    return [LiveShape(shape, count, batches[label]) for label, (shape, count) in sorted(calls.items())]


_STATES = {
    "ok": CandidateState.TRIED,
    "build_failed": CandidateState.BUILD_FAILED,
    "wrong": CandidateState.WRONG,
    "crashed": CandidateState.CRASHED,
    "timeout": CandidateState.TIMEOUT,
    "slower": CandidateState.SLOWER,
    "pruned": CandidateState.PRUNED,
}


def record_trial(context: StepContext, trial: Trial) -> None:
    """A trial as a candidate row; its source is kept by digest."""
    source = context.store(json.dumps({"meta": {"task": trial.task, "isa": trial.isa, "params": dict(trial.params)},
                                       "files": {"kernel.cpp": trial.source}}, sort_keys=True).encode())  # fmt: skip
    context.candidate(
        digest=trial.digest,
        task=trial.task,
        kind="cpp",
        agent=AGENT,
        source_digest=source,
        params={**trial.params, "family": trial.family, "batch": trial.batch, "isa": trial.isa},
        state=_STATES[trial.outcome],
        reason=trial.reason[:4000],
        timings=[{"shape": t.label, "batch": t.batch, "us": t.us} for t in trial.timings],
        speedup=1 / trial.score if trial.score else None,
        wall_s=trial.wall_s,
    )


def read_trials(log: Path) -> Iterable[Trial]:
    """Trials of an earlier attempt; a last line that was cut short is left out."""
    if not log.exists():
        return
    for line in log.read_text().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        yield Trial(**{**value, "timings": tuple(Timing(**t) for t in value["timings"])})
