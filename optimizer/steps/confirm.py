"""The confirmation: fresh blocks on freshly started pairs of servers. Only its number is published."""

from __future__ import annotations

from typing import Any

from optimizer.context import StepContext, StepFailed, StepResult
from optimizer.design import confirmation_design
from optimizer.engine.abtest import (
    ConfirmationDesign,
    Decision,
    EngagementProof,
    NotEngaged,
    Outcome,
    decide_confirmation,
    decide_regimes,
    join_proofs,
    plan_blocks,
    plan_pairs,
)
from optimizer.engine.abtest.blocks import Side
from optimizer.engine.serving import BenchFailed, ServerDied, ServerSpec, StartFailed
from optimizer.kernels import accepted_kernels
from optimizer.measure import Bench, activities, blocks_of, keep_block, keep_json
from optimizer.models import Step
from optimizer.states import CandidateState, StepKind, StepState
from optimizer.steps.arms import Group, groups, spec_of, start_pair, stop_slots
from optimizer.steps.profiling import round_of
from optimizer.steps.targets import latest_profile
from optimizer.steps.trial import amdahl_bound, engagement, guards, pair_evidence


def run(context: StepContext) -> StepResult:
    """Confirm what the A/B earned; the kernel's envelope are the regimes that hold."""
    number = round_of(context)
    ab = context.result_of(f"ab:{number}")
    kernel = ab["kernel"]
    rounds = Step.objects.filter(campaign_id=context.campaign.pk, state=StepState.DONE)
    attempt = rounds.filter(kind=StepKind.CONFIRM).count() + 1
    candidates = rounds.filter(kind=StepKind.AB).count()
    design = confirmation_design(context.config, regimes=len(ab["earned"]), attempt=attempt, candidates=candidates)
    decisions: dict[str, Decision] = {}
    for group in groups(context):
        try:
            decisions |= confirm_group(context, group, kernel, ab["earned"], design)
        except (StartFailed, ServerDied, BenchFailed) as error:
            context.failure("a server failed during the confirmation", str(error))
            stop_slots(context)
            raise
    verdict = decide_regimes(decisions, context.config.test.alpha)
    as_json = {name: one.to_dict() for name, one in decisions.items()}
    evidence = keep_json(context, {"design": design.to_dict(), "decisions": as_json})
    result: dict[str, Any] = {
        "design": design.to_dict(),
        "decisions": as_json,
        "envelope": list(verdict.envelope),
        "refused": dict(verdict.refused),
        "evidence": evidence,
        "kernel": kernel,
    }
    text = "; ".join(f"{name}: {one.outcome.value}, {one.reasons[0]}" for name, one in decisions.items())
    context.progress(1, 1, text)
    if not verdict.envelope:
        context.candidate(
            digest=kernel["candidate"], task=kernel["task"], state=CandidateState.NO_GAIN, reason=text[:4000]
        )
        return StepResult(result, next=[(StepKind.TARGETS, f"targets:{number + 1}")])
    return StepResult(result, next=[(StepKind.REGISTER, f"register:{number}")])


def confirm_group(
    context: StepContext, group: Group, kernel: dict[str, Any], earned: list[str], design: ConfirmationDesign
) -> dict[str, Decision]:
    """Measure every pair of a group and decide its regimes."""
    regimes = [regime for regime in group.regimes if regime.name in earned]
    if not regimes:
        return {}
    shared = accepted_kernels(context)
    a_spec, a_lock = spec_of(context, group, shared)
    b_spec, b_lock = spec_of(context, group, [*shared, kernel])
    if b_lock is None:
        raise StepFailed("the candidate has no lock")
    specs: dict[Side, ServerSpec] = {"A": a_spec, "B": b_spec}
    pairs: dict[str, Any] = dict(context.checkpoint_data.get("evidence", {}))
    seed = context.config.seed + 500 + 100 * round_of(context)
    per_pair = design.blocks_per_pair
    for pair, (first, _) in enumerate(plan_pairs(design.pairs, seed)):
        name = f"{group.config.name}#{pair}"
        if name in pairs:
            continue
        # A pair that an earlier attempt left unfinished starts anew, with new servers: its luck is one draw.
        stop_slots(context)
        for regime in regimes:
            _drop_pair(context, regime.name, pair, per_pair)
        with Bench(context) as bench:
            context.progress(pair, design.pairs, f"confirmation: starting pair {pair + 1} of {design.pairs}")
            servers = start_pair(context, bench, group, specs, first=first, seed=context.config.seed)
            before = activities(servers)
            shown = {regime.name: pair_evidence(context, regime, servers) for regime in regimes}
            for planned in plan_blocks(per_pair, seed, start=pair * per_pair):
                for regime in regimes:
                    context.progress(
                        pair, design.pairs, f"confirmation: pair {pair + 1} of {design.pairs}, {regime.name}"
                    )
                    block = bench.block(servers, regime, planned, seed=context.config.seed + 3000, pair=pair)
                    keep_block(context, regime.name, block)
            after = activities(servers)
        proof = engagement(
            before,
            after,
            expected=list(b_lock.manifest_digests),
            shared=list(a_lock.manifest_digests) if a_lock else [],
        )
        engaged = (
            {"proof": proof.to_dict()}
            if isinstance(proof, EngagementProof)
            else {"reason": proof.reason, "infra": proof.infra}
        )
        pairs[name] = {"regimes": shown, "engagement": engaged}
        context.save_checkpoint(evidence=pairs)
    stop_slots(context)
    mine = [pairs[f"{group.config.name}#{pair}"] for pair in range(design.pairs)]
    profile = context.result_of(latest_profile(context))
    decisions = {}
    for regime in regimes:
        blocks = blocks_of(context, regime.name)
        decisions[regime.name] = decide_confirmation(
            design,
            blocks,
            amdahl_bound(profile, regime.name, kernel["task"]),
            engagement=_joined(mine),
            guards=guards(context, regime, blocks, [one["regimes"][regime.name] for one in mine]),
            regime=regime.name,
        )
        if decisions[regime.name].outcome is Outcome.CONTINUE:
            raise StepFailed(f"the confirmation of {regime.name} is incomplete: {len(blocks)} blocks")
    return decisions


def _drop_pair(context: StepContext, regime: str, pair: int, per_pair: int) -> None:
    """Blocks of an unfinished pair go; those of finished pairs stay."""
    indices = [m.index for m in context.measurements(kind="block", regime=regime)]
    if any(index // per_pair == pair for index in indices):
        context.drop_measurements(
            kind="block", regime=regime, why="the pair was not finished", from_index=pair * per_pair
        )


def _joined(pairs: list[dict[str, Any]]) -> EngagementProof | NotEngaged:
    """One proof over all pairs, or the first reason why there is none."""
    proofs = []
    for one in pairs:
        engaged = one["engagement"]
        if "proof" not in engaged:
            return NotEngaged(engaged["reason"], infra=engaged["infra"])
        proofs.append(EngagementProof.from_dict(engaged["proof"]))
    return join_proofs(proofs)
