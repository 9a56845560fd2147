"""Everything that changes a campaign: one function per change, atomic, with an audit event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from deployments.models import Deployment
from deployments.recipe import parse_recipe
from deployments.services import create_revision
from optimizer.engine.tasks import UnknownTask, load_task
from optimizer.models import Campaign, Candidate, Step
from optimizer.plan import CampaignConfig, PlanError
from optimizer.states import (
    CAMPAIGN_TRANSITIONS,
    CampaignState,
    Desired,
    Outcome,
    StepKind,
    StepState,
)
from rackforge.audit.services import record


class WrongState(RuntimeError):
    """The campaign is not in a state that allows this."""


def wake(campaign_id: Any) -> None:
    """Ask a worker to look at a campaign once the transaction is through."""
    from optimizer.tasks import advance_campaign

    transaction.on_commit(lambda: advance_campaign.delay(str(campaign_id)))


@transaction.atomic
def create_campaign(*, deployment: Deployment, config: CampaignConfig, actor: str, name: str = "") -> Campaign:
    """Queue a campaign on the deployment's latest revision.

    Raises PlanError for regimes or tasks that do not exist, WrongState when one is open on the deployment.
    """
    known = [regime.name for regime in parse_recipe(deployment.recipe).regimes]
    for regime in config.regimes or ():
        if regime not in known:
            raise PlanError(f"regimes: {regime!r} is not a regime of {deployment.name}; it has {', '.join(known)}")
    for task in config.tasks or ():
        try:
            load_task(task)
        except UnknownTask as error:
            raise PlanError(f"tasks: {error}") from error
    revision = deployment.revisions.order_by("-number").first()
    if revision is None:
        revision = create_revision(deployment=deployment, kernels=[], reason="first revision", actor=actor)
    try:
        with transaction.atomic():
            campaign = Campaign.objects.create(
                name=name or f"{deployment.name} {timezone.now():%Y-%m-%d %H:%M}",
                deployment=deployment,
                revision=revision,
                config=config.model_dump(mode="json"),
                created_by=actor,
            )
    except IntegrityError as error:
        if "one_open_campaign_per_deployment" not in str(error):
            raise
        raise WrongState(f"{deployment.name} has an open campaign; cancel it or wait for it") from error
    plan = (StepKind.PREPARE, StepKind.BASELINE, StepKind.AA, StepKind.PROFILE)
    add_steps(campaign=campaign, steps=[(kind, kind.value) for kind in plan])
    record(
        actor=actor,
        action="campaign.create",
        object_type="campaign",
        object_id=str(campaign.pk),
        after={"deployment": deployment.name, "revision": revision.number, "config": campaign.config},
    )
    wake(campaign.pk)
    return campaign


def add_steps(*, campaign: Campaign, steps: Sequence[tuple[StepKind, str]]) -> None:
    """Append steps; one whose key is there already is left as it is."""
    last = campaign.steps.order_by("-ordinal").values_list("ordinal", flat=True).first() or 0
    present = set(campaign.steps.values_list("key", flat=True))
    for kind, key in steps:
        if key not in present:
            last += 1
            Step.objects.create(campaign=campaign, ordinal=last, kind=kind, key=key)


def request(*, campaign: Campaign, desired: Desired, actor: str) -> Campaign:
    """Say what is wanted of a campaign; a busy worker obeys at its next safe point, an idle one at once.

    Raises WrongState when the campaign has ended. Asking for what is wanted already changes nothing.
    """
    with transaction.atomic():
        locked = Campaign.objects.select_for_update().get(pk=campaign.pk)
        state = CampaignState(locked.state)
        if state.terminal:
            raise WrongState(f"the campaign has ended ({state.label.lower()}); start a new one")
        before = Desired(locked.desired)
        if before == Desired.CANCEL and desired != Desired.CANCEL:
            raise WrongState("the campaign is being cancelled")
        if before != desired:
            Campaign.objects.filter(pk=locked.pk).update(desired=desired)
            record(
                actor=actor,
                action=f"campaign.{desired.value}",
                object_type="campaign",
                object_id=str(locked.pk),
                before={"desired": before.value},
                after={"desired": desired.value},
            )
        settle(campaign_id=locked.pk, actor=actor)
        wake(locked.pk)
    campaign.refresh_from_db()
    return campaign


def settle(*, campaign_id: Any, actor: str) -> None:
    """Bring the state in line with what is desired, unless a step runs (its worker does it then)."""
    with transaction.atomic():
        campaign = Campaign.objects.select_for_update().get(pk=campaign_id)
        state, desired = CampaignState(campaign.state), Desired(campaign.desired)
        if state.terminal or campaign.steps.filter(state=StepState.RUNNING).exists():
            return
        if desired == Desired.CANCEL:
            finish(campaign=campaign, state=CampaignState.CANCELLED, reason="cancelled", actor=actor)
        elif desired == Desired.PAUSE and state != CampaignState.PAUSED:
            transition(campaign=campaign, to=CampaignState.PAUSED, reason="paused", actor=actor)
        elif desired == Desired.RUN and state == CampaignState.PAUSED:
            transition(campaign=campaign, to=CampaignState.RUNNING, reason="resumed", actor=actor)


def transition(*, campaign: Campaign, to: CampaignState, reason: str, actor: str, **fields: Any) -> None:
    """Compare-and-swap of a campaign's state, with its event. Raises WrongState when another was quicker."""
    old = CampaignState(campaign.state)
    if to not in CAMPAIGN_TRANSITIONS[old]:
        raise WrongState(f"a campaign that is {old.value} cannot become {to.value}")
    with transaction.atomic():
        if not Campaign.objects.filter(pk=campaign.pk, state=old).update(state=to, reason=reason[:1000], **fields):
            raise WrongState(f"campaign {campaign.pk} is no longer {old.value}")
        record(
            actor=actor,
            action="campaign.state",
            object_type="campaign",
            object_id=str(campaign.pk),
            before={"state": old.value},
            after={"state": to.value, "reason": reason},
        )
    campaign.refresh_from_db()


def start(*, campaign: Campaign, actor: str) -> None:
    """A worker begins."""
    transition(
        campaign=campaign,
        to=CampaignState.RUNNING,
        reason="started",
        actor=actor,
        started_at=campaign.started_at or timezone.now(),
    )


@transaction.atomic
def finish(
    *,
    campaign: Campaign,
    state: CampaignState,
    reason: str,
    actor: str,
    outcome: Outcome | None = None,
    result: dict[str, Any] | None = None,
) -> None:
    """End a campaign; steps that were not reached are marked skipped."""
    fields: dict[str, Any] = {"finished_at": timezone.now()}
    if outcome is not None:
        fields["outcome"] = outcome
    if result is not None:
        fields["result"] = result
    transition(campaign=campaign, to=state, reason=reason, actor=actor, **fields)
    campaign.steps.filter(state=StepState.PENDING).update(state=StepState.SKIPPED)


@transaction.atomic
def note_failure(*, campaign_id: Any, stage: str, what: str, why: str) -> None:
    """Keep what went wrong where the user looks, also when the campaign goes on."""
    campaign = Campaign.objects.select_for_update().get(pk=campaign_id)
    entry = {"stage": stage, "what": what, "why": why[:2000], "at": timezone.now().isoformat()}
    Campaign.objects.filter(pk=campaign_id).update(failures=[*campaign.failures, entry][-200:])
    record(
        actor="campaign", action="campaign.failure", object_type="campaign", object_id=str(campaign_id), after=entry
    )


@transaction.atomic
def record_candidate(*, campaign: Campaign, digest: str, task: str, **fields: Any) -> Candidate:
    """A candidate of a campaign, numbered; the same code tried again updates its row."""
    Campaign.objects.select_for_update().get(pk=campaign.pk)
    existing = campaign.candidates.filter(digest=digest, task=task).first()
    if existing is not None:
        for key, value in fields.items():
            setattr(existing, key, value)
        existing.save()
        return existing
    last = campaign.candidates.order_by("-number").values_list("number", flat=True).first() or 0
    return Candidate.objects.create(campaign=campaign, number=last + 1, digest=digest, task=task, **fields)
