"""The whole stack, as users get it: a new server pulls what was registered, and is measured against stock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from optimizer.context import StepContext, StepFailed, StepResult, TryAgain
from optimizer.engine.abtest import EngagementProof
from optimizer.engine.abtest.blocks import Side
from optimizer.engine.serving import LocalServer
from optimizer.measure import Bench, activities, median_run
from optimizer.models import Step
from optimizer.pulling import pull_channel
from optimizer.servers import ensure, stop_slots, with_environment
from optimizer.states import StepKind, StepState
from optimizer.steps.arms import groups, spec_of
from optimizer.steps.trial import engagement

REPEATS = 3


def run(context: StepContext) -> StepResult:
    """Pull the accepted kernels from the registry into new servers, prove them active, measure both arms."""
    registered = list(
        Step.objects.filter(campaign_id=context.campaign.pk, kind=StepKind.REGISTER, state=StepState.DONE)
    )
    if not registered:
        context.progress(1, 1, "nothing was accepted: the stack is the stock server")
        return StepResult({"regimes": {}, "kernels": []})
    pinned = [dict(step.result["pinned"]) for step in registered]
    regimes: dict[str, Any] = {}
    lock: dict[str, Any] = {}
    for number, group in enumerate(groups(context)):
        stock, _ = spec_of(context, group, [])
        context.progress(number, len(groups(context)), "pulling the kernels from the registry")
        pulled = pull_channel(context, group)
        lock = {"digest": pulled.lock_digest, "fetched": pulled.fetched}
        spec = with_environment(replace(stock, lock=str(pulled.lock)), pulled.environment)
        with Bench(context) as bench:
            servers: dict[Side, LocalServer] = {
                "A": ensure(context, "a", stock, note="stock server"),
                "B": ensure(context, "b", spec, note="server with pulled kernels"),
            }
            for side in ("A", "B"):
                bench.warm(servers[side], group.regimes, seed=context.config.seed)
            before = activities(servers)
            runs: dict[str, dict[str, list[dict[str, Any]]]] = {r.name: {"A": [], "B": []} for r in group.regimes}
            for repeat in range(REPEATS):
                for regime in group.regimes:
                    context.progress(repeat, REPEATS, f"measuring the whole stack, {regime.name}")
                    for side in ("A", "B") if repeat % 2 == 0 else ("B", "A"):
                        one = bench.run(servers[side], regime, seed=context.config.seed + 4000 + repeat)
                        runs[regime.name][side].append({**one.figures, "digest": one.digest})
            after = activities(servers)
        stop_slots(context)
        proof = engagement(before, after, expected=[one["digest"] for one in pinned], shared=[])
        if not isinstance(proof, EngagementProof):
            if proof.infra:
                raise TryAgain(proof.reason)
            raise StepFailed(f"the pulled kernels are not active on the new server: {proof.reason}")
        for regime in group.regimes:
            regimes[regime.name] = {
                "baseline": median_run(runs[regime.name]["A"]),
                "final": median_run(runs[regime.name]["B"]),
                "calls": proof.calls,
                "fallback_share": proof.fallback_share,
            }
    return StepResult({"regimes": regimes, "kernels": pinned, "lock": lock})
