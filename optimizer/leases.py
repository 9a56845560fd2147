"""Leases of steps: claim, heartbeat, guarded writes.

A worker claims the next step of a campaign by writing a fresh token and an expiry into its row. Everything it
later writes about the step is guarded by that token, so a worker that lost its lease (killed, stopped, cut
off) can change nothing any more, and the step simply runs again.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from deployments.models import Node
from optimizer.models import Campaign, Step
from optimizer.states import CampaignState, Desired, StepState

TTL = timedelta(seconds=30)
HEARTBEAT_S = 5.0


class LeaseLost(RuntimeError):
    """Somebody else holds the step now; whatever this worker did with it does not count."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A step that this process may work on until the lease runs out."""

    campaign_id: uuid.UUID
    step_id: int
    token: uuid.UUID


def owner_name() -> str:
    """This process, so that another process of the same host can tell whether it still lives."""
    return f"{socket.gethostname()}/{os.getpid()}/{psutil.Process().create_time():.2f}"


def owner_is_dead(owner: str) -> bool:
    """True only when the owner was a process of this host and is certainly gone."""
    host, _, rest = owner.partition("/")
    pid, _, created = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        process = psutil.Process(int(pid))
        return f"{process.create_time():.2f}" != created or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_free(step: Step) -> bool:
    """Whether a step can be claimed: it waits, or its lease ran out or its owner died."""
    if step.state == StepState.PENDING:
        return True
    if step.state != StepState.RUNNING:
        return False
    return step.lease_expires_at is None or step.lease_expires_at < timezone.now() or owner_is_dead(step.lease_owner)


def next_step(campaign: Campaign) -> Step | None:
    """The first step that is not done."""
    return campaign.steps.exclude(state__in=[s for s in StepState if s.terminal]).order_by("ordinal").first()


def claim(*, campaign_id: uuid.UUID | str, owner: str | None = None) -> Claim | None:
    """Claim the next step of a campaign that should run, or None when there is nothing to do now.

    The node's row is locked meanwhile: while one campaign measures, no other may disturb it.
    """
    with transaction.atomic():
        campaign = (
            Campaign.objects.select_for_update(skip_locked=True, of=("self",))
            .select_related("deployment")
            .filter(
                pk=campaign_id,
                state__in=[CampaignState.QUEUED, CampaignState.RUNNING],
                desired=Desired.RUN,
            )
            .first()
        )
        if campaign is None:
            return None
        node = Node.objects.select_for_update().get(pk=campaign.deployment.node_id)
        running = Step.objects.filter(state=StepState.RUNNING, campaign__deployment__node=node)
        if any(not is_free(step) for step in running.exclude(campaign=campaign)):
            return None
        step = next_step(campaign)
        if step is None or not is_free(step):
            return None
        token = uuid.uuid4()
        now = timezone.now()
        Step.objects.filter(pk=step.pk).update(
            state=StepState.RUNNING,
            attempt=F("attempt") + 1,
            lease_token=token,
            lease_owner=owner or owner_name(),
            lease_expires_at=now + TTL,
            started_at=step.started_at or now,
        )
        return Claim(campaign.pk, step.pk, token)


def heartbeat(claimed: Claim) -> Desired | None:
    """Extend the lease and read what is wanted of the campaign; None when the lease is lost."""
    updated = Step.objects.filter(pk=claimed.step_id, lease_token=claimed.token).update(
        lease_expires_at=timezone.now() + TTL
    )
    if not updated:
        return None
    return Desired(Campaign.objects.values_list("desired", flat=True).get(pk=claimed.campaign_id))


def guarded_update(claimed: Claim, **fields: Any) -> None:
    """Write fields of the step if the lease is still held. Raises LeaseLost."""
    if not Step.objects.filter(pk=claimed.step_id, lease_token=claimed.token).update(**fields):
        raise LeaseLost(f"step {claimed.step_id} is no longer leased to this worker")


def hold(claimed: Claim) -> Step:
    """Lock the step's row inside the caller's transaction, for writes beside it. Raises LeaseLost."""
    step = Step.objects.select_for_update().filter(pk=claimed.step_id, lease_token=claimed.token).first()
    if step is None:
        raise LeaseLost(f"step {claimed.step_id} is no longer leased to this worker")
    return step


def release(claimed: Claim, *, wall_s: float, **fields: Any) -> None:
    """Give the step up in the state the fields say (default: waiting again). Raises LeaseLost."""
    values: dict[str, Any] = {"state": StepState.PENDING, **fields}
    guarded_update(
        claimed,
        lease_token=None,
        lease_owner="",
        lease_expires_at=None,
        wall_s=F("wall_s") + wall_s,
        **values,
    )
