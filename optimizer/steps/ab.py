"""The discovery A/B: does the kernel make the whole server faster? Stops at planned looks only."""

from __future__ import annotations

from typing import Any

from optimizer.context import StepContext, StepFailed, StepResult
from optimizer.design import sequential_design
from optimizer.engine.abtest import AAResult, Decision, Outcome, decide, plan_blocks
from optimizer.engine.abtest.blocks import Side
from optimizer.engine.serving import BenchFailed, ServerDied, ServerSpec, StartFailed
from optimizer.kernels import accepted_kernels
from optimizer.measure import Bench, activities, blocks_of, keep_block, keep_json
from optimizer.states import CandidateState, StepKind
from optimizer.steps.arms import Group, groups, same_pair, spec_of, start_pair, stop_slots
from optimizer.steps.profiling import round_of
from optimizer.steps.targets import latest_profile
from optimizer.steps.trial import amdahl_bound, engagement, guards, pair_evidence


def run(context: StepContext) -> StepResult:
    """Measure stock (with the kernels accepted so far) against the same plus the candidate, regime by regime."""
    number = round_of(context)
    kernel = context.result_of(f"judge:{number}")["kernel"]
    decisions: dict[str, Any] = {}
    for group in groups(context):
        try:
            decisions |= {name: d.to_dict() for name, d in compare(context, group, kernel).items()}
        except StartFailed as error:
            # The stock server started before; with the kernel it does not.
            context.failure("the server with the candidate did not start", str(error))
            stop_slots(context)
            return _over(context, number, kernel, {}, f"the server does not start with it: {error.cause}")
        except (ServerDied, BenchFailed) as error:
            context.failure("a server failed during the A/B", str(error))
            stop_slots(context)
            return _over(context, number, kernel, {}, f"a server failed while it was measured: {error}")
        stop_slots(context)
    evidence = keep_json(context, decisions)
    earned = [name for name, one in decisions.items() if one["outcome"] == Outcome.ACCEPT.value]
    if any(one["outcome"] == Outcome.QUARANTINE.value for one in decisions.values()):
        context.candidate(
            digest=kernel["candidate"], task=kernel["task"], state=CandidateState.QUARANTINED, ab=decisions,
            reason="; ".join(reason for one in decisions.values() for reason in one["reasons"])[:4000],
        )  # fmt: skip
    text = "; ".join(f"{name}: {one['outcome']}, {one['reasons'][0]}" for name, one in decisions.items())
    context.progress(1, 1, text)
    result = {"decisions": decisions, "evidence": evidence, "earned": earned, "kernel": kernel}
    if not earned:
        return _over(context, number, kernel, decisions, text)
    context.candidate(digest=kernel["candidate"], task=kernel["task"], ab=decisions)
    return StepResult(result, next=[(StepKind.CONFIRM, f"confirm:{number}")])


def _over(
    context: StepContext, number: int, kernel: dict[str, Any], decisions: dict[str, Any], why: str
) -> StepResult:
    """Nothing earned a confirmation: the next target."""
    quarantined = any(one["outcome"] == Outcome.QUARANTINE.value for one in decisions.values())
    state = CandidateState.QUARANTINED if quarantined else CandidateState.NO_GAIN
    context.candidate(digest=kernel["candidate"], task=kernel["task"], state=state, reason=why[:4000], ab=decisions)
    return StepResult(
        {"decisions": decisions, "earned": [], "kernel": kernel, "reason": why},
        next=[(StepKind.TARGETS, f"targets:{number + 1}")],
    )


def compare(context: StepContext, group: Group, kernel: dict[str, Any]) -> dict[str, Decision]:
    """The regimes of one group, on one pair of servers, interleaved; each stops at its own look."""
    number = round_of(context)
    aa = context.result_of("aa")
    regimes = [regime for regime in group.regimes if regime.name not in aa["unfit"]]
    if not regimes:
        return {}
    design = sequential_design(context.config)
    shared = accepted_kernels(context)
    a_spec, a_lock = spec_of(context, group, shared)
    b_spec, b_lock = spec_of(context, group, [*shared, kernel])
    if b_lock is None:
        raise StepFailed("the candidate has no lock")
    specs: dict[Side, ServerSpec] = {"A": a_spec, "B": b_spec}
    profile = context.result_of(latest_profile(context))
    decisions: dict[str, Decision] = {}
    with Bench(context) as bench:
        servers = start_pair(context, bench, group, specs, seed=context.config.seed)
        fresh = not same_pair(context, group.config.name, servers)
        if fresh:
            for regime in regimes:
                context.drop_measurements(kind="block", regime=regime.name, why="the servers were restarted")
        known: dict[str, Any] = {} if fresh else dict(context.checkpoint_data.get("before", {}))
        before = known.get(group.config.name) or activities(servers)
        context.save_checkpoint(before={**known, group.config.name: before})
        pair = {regime.name: pair_evidence(context, regime, servers) for regime in regimes}
        for look, goal in enumerate(design.looks):
            for planned in plan_blocks(goal, context.config.seed + 100 * number):
                for regime in regimes:
                    if regime.name in decisions or planned.index < len(blocks_of(context, regime.name)):
                        continue
                    context.progress(
                        planned.index,
                        design.max_blocks,
                        f"A/B block {planned.index + 1}, {regime.name}, look {look + 1}",
                    )
                    block = bench.block(servers, regime, planned, seed=context.config.seed + 2000)
                    keep_block(context, regime.name, block)
            after = activities(servers)
            proof = engagement(
                before,
                after,
                expected=list(b_lock.manifest_digests),
                shared=list(a_lock.manifest_digests) if a_lock else [],
            )
            for regime in regimes:
                if regime.name in decisions:
                    continue
                blocks = blocks_of(context, regime.name)[:goal]
                decision = decide(
                    design,
                    look,
                    blocks,
                    AAResult.from_dict(aa["regimes"][regime.name]),
                    amdahl_bound(profile, regime.name, kernel["task"]),
                    engagement=proof,
                    guards=guards(context, regime, blocks, [pair[regime.name]]),
                    regime=regime.name,
                )
                if decision.outcome is not Outcome.CONTINUE:
                    decisions[regime.name] = decision
            if len(decisions) == len(regimes):
                break
    return decisions
