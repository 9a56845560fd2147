"""What is worth rewriting next."""

from __future__ import annotations

from typing import Any

from optimizer.context import StepContext, StepResult
from optimizer.models import Step
from optimizer.states import StepKind, StepState
from optimizer.steps.profiling import round_of


def run(context: StepContext) -> StepResult:
    """Take the task that could win most over all regimes and was not tried yet; none is left: measure and report."""
    number = round_of(context)
    profile = context.result_of(latest_profile(context))
    tried = {
        str(step.result.get("task"))
        for step in Step.objects.filter(campaign_id=context.campaign.pk, kind=StepKind.TARGETS, state=StepState.DONE)
    }
    alternatives = rank(profile["regimes"], allowed=context.config.tasks)
    chosen: dict[str, Any] | None = None
    for one in alternatives:
        if one["task"] in tried:
            one["why_not"] = "tried in an earlier round"
        elif one["ceiling_pct"] < context.config.min_ceiling_pct:
            one["why_not"] = (
                f"could win {one['ceiling_pct']:.1f} % at most, {context.config.min_ceiling_pct:g} % are asked for"
            )
        elif chosen is None:
            chosen = one
        else:
            one["why_not"] = f"{chosen['task']} can win more"
    reason = ""
    if number > context.config.max_rounds:
        reason = f"the campaign's {context.config.max_rounds} rounds are used up"
    elif context.wall_spent() > context.config.budget.wall_s:
        reason = f"the budget of {context.config.budget.wall_s:.0f} s is spent"
    elif chosen is None:
        reason = "nothing with a swap point is left that could win enough"
    result = {"round": number, "alternatives": alternatives, "task": None, "reason": reason}
    if reason or chosen is None:
        context.progress(1, 1, reason)
        return StepResult(result, next=[(StepKind.STACK, "stack"), (StepKind.REPORT, "report")])
    context.progress(1, 1, f"{chosen['task']}: up to {chosen['ceiling_pct']:.0f} % could be won")
    return StepResult(
        result | {"task": chosen["task"], "ceiling_pct": chosen["ceiling_pct"]},
        next=[(StepKind.OPTIMIZE, f"optimize:{number}")],
    )


def latest_profile(context: StepContext) -> str:
    """Key of the newest profile of the campaign."""
    step = (
        Step.objects.filter(campaign_id=context.campaign.pk, kind=StepKind.PROFILE, state=StepState.DONE)
        .order_by("-ordinal")
        .first()
    )
    return step.key if step is not None else "profile"


def rank(regimes: dict[str, Any], *, allowed: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """Tasks by what they could win, the best regime counting; with the ceiling in percent of throughput."""
    best: dict[str, dict[str, Any]] = {}
    for name, regime in regimes.items():
        for task, target in regime["targets"].items():
            if allowed is not None and task not in allowed:
                continue
            entry = best.setdefault(task, {"task": task, "ceiling_pct": 0.0, "regimes": {}})
            entry["regimes"][name] = target["ceiling_pct"]
            entry["ceiling_pct"] = max(entry["ceiling_pct"], target["ceiling_pct"])
    return sorted(best.values(), key=lambda one: (-one["ceiling_pct"], one["task"]))
