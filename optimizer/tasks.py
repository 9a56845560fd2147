"""Celery tasks: they wake somebody up and carry ids only. The rows hold the work."""

from __future__ import annotations

from celery import shared_task

from optimizer import leases
from optimizer.models import Campaign
from optimizer.runner import advance
from optimizer.states import CampaignState, Desired


@shared_task(ignore_result=True)
def advance_campaign(campaign_id: str) -> None:
    """Do the next step, and ask for the one after it."""
    if advance(campaign_id):
        advance_campaign.delay(campaign_id)


@shared_task(ignore_result=True)
def wake_campaigns() -> int:
    """Wake campaigns whose next step is free: lost messages and dead workers are made good here."""
    woken = 0
    open_states = [CampaignState.QUEUED, CampaignState.RUNNING, CampaignState.PAUSED]
    for campaign in Campaign.objects.filter(state__in=open_states):
        step = leases.next_step(campaign)
        settled = campaign.state == CampaignState.PAUSED and campaign.desired == Desired.PAUSE
        if not settled and step is not None and leases.is_free(step):
            # Older wake-ups are worth nothing; a busy worker would only collect them.
            advance_campaign.apply_async((str(campaign.pk),), expires=15)
            woken += 1
    return woken


@shared_task(ignore_result=True)
def reap_servers() -> int:
    """Stop model servers that no running step needs."""
    from optimizer.servers import reap

    return len(reap())
