"""Doing one step of a campaign under its lease, whatever happens meanwhile."""

from __future__ import annotations

import time
import traceback
import uuid

import structlog
from django.db import transaction
from django.utils import timezone

from optimizer import leases, servers, services
from optimizer.context import (
    Handler,
    Heartbeat,
    Interrupted,
    LeaseLost,
    StepContext,
    StepFailed,
    StepResult,
    TryAgain,
)
from optimizer.leases import Claim
from optimizer.models import Campaign, Step
from optimizer.states import CampaignState, StepState

log = structlog.get_logger(__name__)
MAX_ATTEMPTS = 5


def advance(campaign_id: uuid.UUID | str, *, owner: str | None = None) -> bool:
    """Run the next step of a campaign, if there is one to run now. True when another may follow."""
    claimed = leases.claim(campaign_id=campaign_id, owner=owner)
    if claimed is None:
        services.settle(campaign_id=campaign_id, actor="worker")
        return False
    campaign = Campaign.objects.get(pk=claimed.campaign_id)
    if campaign.state == CampaignState.QUEUED:
        services.start(campaign=campaign, actor="worker")
    try:
        _work(claimed)
    except LeaseLost as error:
        log.warning("lease lost", campaign=str(claimed.campaign_id), step=claimed.step_id, error=str(error))
        return False
    services.settle(campaign_id=campaign_id, actor="worker")
    if Campaign.objects.get(pk=claimed.campaign_id).state != CampaignState.RUNNING:
        servers.stop_campaign(claimed.campaign_id)
        return False
    return True


def _work(claimed: Claim) -> None:
    from optimizer.steps import HANDLERS

    begin = time.monotonic()
    with Heartbeat(claimed) as heart:
        context = StepContext(claimed, heart.stop)
        handler: Handler = HANDLERS[context.kind]
        try:
            if context.attempt > MAX_ATTEMPTS:
                # A step that takes its worker down every time would otherwise go round for ever.
                raise StepFailed(f"gave up after {MAX_ATTEMPTS} attempts; the last error is above")
            outcome = handler(context)
        except LeaseLost:
            raise
        except Interrupted:
            if heart.lost:
                raise LeaseLost("the lease ran out") from None
            _give_back(claimed, begin)
            return
        except StepFailed as error:
            _fail(claimed, begin, str(error), "")
            return
        except Exception as error:
            if heart.stop.is_set() and not heart.lost:
                _give_back(claimed, begin)  # it stumbled over being stopped
                return
            trace = traceback.format_exc()
            log.exception("step failed", campaign=str(claimed.campaign_id), step=context.key)
            text = str(error) if isinstance(error, TryAgain) else f"{type(error).__name__}: {error}"
            if context.attempt < MAX_ATTEMPTS:
                context.failure(f"attempt {context.attempt} of {context.kind.label}", text)
                leases.release(claimed, wall_s=time.monotonic() - begin, error=trace[-8000:])
            else:
                _fail(claimed, begin, text, trace)
            return
        _apply(claimed, begin, outcome)


def _give_back(claimed: Claim, begin: float) -> None:
    """Interrupted on purpose: waiting again, and this attempt does not count against the step."""
    step = Step.objects.get(pk=claimed.step_id)
    leases.release(claimed, wall_s=time.monotonic() - begin, attempt=max(step.attempt - 1, 0))


@transaction.atomic
def _apply(claimed: Claim, begin: float, outcome: StepResult) -> None:
    """Write the result, append what follows and end the campaign if this was the end: all or nothing."""
    leases.release(
        claimed,
        wall_s=time.monotonic() - begin,
        state=StepState.DONE,
        result=outcome.result,
        error="",
        finished_at=timezone.now(),
    )
    campaign = Campaign.objects.select_for_update().get(pk=claimed.campaign_id)
    if outcome.skip_rest:
        campaign.steps.filter(state=StepState.PENDING).update(state=StepState.SKIPPED)
    services.add_steps(campaign=campaign, steps=outcome.next)
    if outcome.finish is not None:
        services.finish(
            campaign=campaign,
            state=CampaignState.SUCCEEDED,
            reason=outcome.reason,
            outcome=outcome.finish,
            result=outcome.result,
            actor="worker",
        )


@transaction.atomic
def _fail(claimed: Claim, begin: float, reason: str, trace: str) -> None:
    step = Step.objects.get(pk=claimed.step_id)
    leases.release(
        claimed,
        wall_s=time.monotonic() - begin,
        state=StepState.FAILED,
        error=(trace or reason)[-8000:],
        finished_at=timezone.now(),
    )
    services.note_failure(campaign_id=claimed.campaign_id, stage=step.key, what=step.get_kind_display(), why=reason)
    campaign = Campaign.objects.select_for_update().get(pk=claimed.campaign_id)
    services.finish(
        campaign=campaign,
        state=CampaignState.FAILED,
        reason=reason,
        actor="worker",
        outcome=None,
    )
