"""The end: what was won, with intervals; what was tried; what went wrong; how long each stage took."""

from __future__ import annotations

from typing import Any

from optimizer.context import StepContext, StepResult
from optimizer.models import Step
from optimizer.states import CandidateState, Outcome, StepKind, StepState


def run(context: StepContext) -> StepResult:
    """Put the campaign's result together and end it."""
    steps = list(Step.objects.filter(campaign_id=context.campaign.pk).order_by("ordinal"))
    done = {step.key: step.result for step in steps if step.state == StepState.DONE}
    context.campaign.refresh_from_db()
    regimes = [regime_result(steps, done, regime.name, regime.concurrency) for regime in context.regimes]
    outcome, reason = conclude(context, done, regimes)
    candidates = context.campaign.candidates
    result: dict[str, Any] = {
        "outcome": outcome.value,
        "reason": reason,
        "regimes": regimes,
        "kernels": done.get("stack", {}).get("kernels", []),
        "stages": [{"key": s.key, "stage": s.get_kind_display(), "wall_s": round(s.wall_s, 1)} for s in steps],
        "wall_s": round(sum(s.wall_s for s in steps), 1),
        "candidates": candidates.count(),
        "candidates_by_state": {
            state: candidates.filter(state=state).count()
            for state in CandidateState.values
            if candidates.filter(state=state).exists()
        },
        "failures": context.campaign.failures,
    }
    context.progress(1, 1, reason)
    return StepResult(result, finish=outcome, reason=reason)


def conclude(context: StepContext, done: dict[str, Any], regimes: list[dict[str, Any]]) -> tuple[Outcome, str]:
    """How the campaign came out, in one sentence."""
    won = [one for one in regimes if one["gain_pct"] is not None]
    if won:
        text = "; ".join(
            f"{one['regime']}: {one['gain_pct']:+.1f} % [{one['ci_low_pct']:+.1f}, {one['ci_high_pct']:+.1f}]"
            for one in won
        )
        return Outcome.ACCEPTED, f"accepted: {text}"
    aa = done.get("aa", {})
    if aa.get("unfit") and len(aa["unfit"]) == len(aa["regimes"]):
        return Outcome.UNFIT, "this host is unfit to tell A from B: " + next(iter(aa["unfit"].values()))
    if context.campaign.candidates.filter(state=CandidateState.QUARANTINED).exists():
        return Outcome.HELD, "a candidate is held for a person to decide"
    reasons = [r["reason"] for key, r in done.items() if key.startswith("targets:") and r.get("reason")]
    return Outcome.NOTHING, f"no gain was proven{': ' + reasons[-1] if reasons else ''}"


def regime_result(steps: list[Step], done: dict[str, Any], name: str, concurrency: int) -> dict[str, Any]:
    """One regime: its best stock server, the published gain (the confirmation's), and the whole stack's figures.

    With kernels of several rounds the gains multiply; each was measured against the stack before it, so the product
    and its interval (all lower ends, all upper ends) are what is published.
    """
    baseline = done.get("baseline", {})
    configuration = baseline.get("best", {}).get(name)
    stock = baseline.get("measured", {}).get(configuration, {}).get(name, {})
    stack = done.get("stack", {}).get("regimes", {}).get(name, {})
    entry: dict[str, Any] = {
        "regime": name,
        "concurrency": concurrency,
        "configuration": configuration,
        "baseline_tok_s": (stack.get("baseline") or stock).get("output_tok_s"),
        "final_tok_s": (stack.get("final") or stock).get("output_tok_s"),
        "gain_pct": None,
        "ci_low_pct": None,
        "ci_high_pct": None,
        "ttft_ms": {
            "baseline": (stack.get("baseline") or stock).get("ttft_median_ms"),
            "final": (stack.get("final") or stock).get("ttft_median_ms"),
        },
        "tpot_ms": {
            "baseline": (stack.get("baseline") or stock).get("tpot_median_ms"),
            "final": (stack.get("final") or stock).get("tpot_median_ms"),
        },
        "kernels": [],
        "calls": stack.get("calls"),
    }
    factors: list[tuple[float, float, float]] = []
    for step in steps:
        if step.kind != StepKind.REGISTER or step.state != StepState.DONE or name not in step.result["envelope"]:
            continue
        confirmed = done[step.key.replace("register", "confirm")]["decisions"][name]
        factors.append(tuple(1 + float(confirmed[k]) / 100 for k in ("gain_pct", "ci_low_pct", "ci_high_pct")))  # type: ignore[arg-type]
        entry["kernels"].append(step.result["pinned"])
    for position, key in enumerate(("gain_pct", "ci_low_pct", "ci_high_pct")):
        if factors:
            product = 1.0
            for factor in factors:
                product *= factor[position]
            entry[key] = 100 * (product - 1)
    if entry["kernels"]:
        last = entry["kernels"][-1]
        entry |= {"kernel": last["name"], "version": last["version"], "digest": last["digest"]}
    return entry
