"""Nothing is measured end to end, let alone served, before the judge has passed it."""

from __future__ import annotations

import json
from typing import Any

from optimizer.context import Interrupted, StepContext, StepResult, TryAgain
from optimizer.engine.judge import Cancelled, JudgePolicy, Outcome, measured_envelope
from optimizer.engine.judge import judge as judge_candidate
from optimizer.engine.tasks import load_task
from optimizer.engine.tasks.base import Shape
from optimizer.kernels import describe, unpack_sources
from optimizer.measure import keep_json
from optimizer.states import CandidateState, StepKind
from optimizer.steps.optimize import live_shapes
from optimizer.steps.profiling import round_of
from optimizer.steps.targets import latest_profile
from rackforge_runtime.facts import collect_facts
from registry import facade as registry


def run(context: StepContext) -> StepResult:
    """Judge the composed candidate on the server's live shapes; only an acceptance goes on to the A/B."""
    number = round_of(context)
    found = context.result_of(f"optimize:{number}")
    candidate = unpack_sources(registry.read_blob(found["source"]))
    task = load_task(candidate.task)
    profile = context.result_of(latest_profile(context))
    shapes: list[Shape] = [
        {**live.shape, **({task.batch_axis: batch} if task.batch_axis else {})}
        for live in live_shapes(profile["regimes"], task.name)
        for batch in sorted(live.batches)
    ]
    facts = collect_facts(context.platform.serving_python)
    try:
        verdict = judge_candidate(
            candidate,
            task,
            build_cache=context.platform.cache / "build",
            shapes=shapes,
            store=context.store,
            serving_python=context.platform.serving_python,
            cpu_flags=frozenset(facts.cpu_flags),
            policy=JudgePolicy(),
            on_progress=lambda text, share: context.progress(share, 1.0001, text),
            cancelled=context.stopping,
        )
    except Cancelled as error:
        raise Interrupted from error
    document: dict[str, Any] = json.loads(json.dumps(verdict.document()))
    evidence = keep_json(context, registry.sign_verdict(document, verdict.candidate_digest))
    states = {
        Outcome.ACCEPT: CandidateState.JUDGED,
        Outcome.REJECT: CandidateState.REJECTED,
        Outcome.QUARANTINE: CandidateState.QUARANTINED,
        Outcome.INCONCLUSIVE: CandidateState.INCONCLUSIVE,
    }
    if verdict.outcome is Outcome.INFRA_ERROR:
        raise TryAgain(f"the judge could not work: {verdict.reason}")
    context.candidate(
        digest=candidate.digest,
        task=task.name,
        state=states[verdict.outcome],
        reason=verdict.reason,
        verdict_digest=evidence,
        object_digest=verdict.object_digest,
    )
    gates = [
        {"name": g.name, "outcome": g.outcome.value, "reason": g.reason, "wall_s": g.wall_s} for g in verdict.gates
    ]
    result: dict[str, Any] = {
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "certified": verdict.certified,
        "verdict": evidence,
        "gates": gates,
        "wall_s": verdict.wall_s,
    }
    context.progress(1, 1, f"{verdict.outcome.value}: {verdict.reason or 'all gates passed'}")
    if verdict.outcome is not Outcome.ACCEPT:
        context.failure(f"the judge on {task.name}", f"{verdict.outcome.value}: {verdict.reason}")
        return StepResult(result, next=[(StepKind.TARGETS, f"targets:{number + 1}")])
    kernel = describe(
        candidate,
        object_digest=verdict.object_digest,
        source_digest=found["source"],
        envelope=measured_envelope(verdict, task),
    )
    return StepResult(result | {"kernel": kernel}, next=[(StepKind.AB, f"ab:{number}")])
