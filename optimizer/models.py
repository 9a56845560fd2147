"""Campaigns, their leased steps, candidates and measurements."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from deployments.models import Deployment, Revision
from optimizer.states import CampaignState, CandidateState, Desired, Outcome, StepKind, StepState


class Campaign(models.Model):
    """One optimization of one deployment. The row is the job: the queue only wakes a worker up."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200)
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="campaigns")
    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="campaigns")
    state = models.CharField(max_length=16, choices=CampaignState.choices, default=CampaignState.QUEUED)
    desired = models.CharField(max_length=8, choices=Desired.choices, default=Desired.RUN)
    outcome = models.CharField(max_length=16, choices=Outcome.choices, blank=True)
    config = models.JSONField()  # optimizer.plan.CampaignConfig
    result = models.JSONField(default=dict)
    # [{"stage", "what", "why", "at"}]: what went wrong on the way, also when the campaign went on
    failures = models.JSONField(default=list)
    reason = models.CharField(max_length=1000, blank=True)  # of the last change of state
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["state"], name="campaign_by_state")]
        constraints = [
            # A node's timings mean nothing while two campaigns share it; one a deployment is the part of
            # that rule the database can hold. Leases of the node hold the rest.
            models.UniqueConstraint(
                fields=["deployment"],
                condition=Q(state__in=["queued", "running", "paused"]),
                name="one_open_campaign_per_deployment",
            ),
            models.CheckConstraint(
                condition=~Q(state="succeeded") | ~Q(outcome=""), name="finished_campaign_has_an_outcome"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Step(models.Model):
    """A piece of a campaign that one worker does under a lease; `key` makes creating it idempotent."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="steps")
    ordinal = models.PositiveIntegerField()
    kind = models.CharField(max_length=16, choices=StepKind.choices)
    key = models.CharField(max_length=100)
    state = models.CharField(max_length=16, choices=StepState.choices, default=StepState.PENDING)
    attempt = models.PositiveIntegerField(default=0)
    lease_token = models.UUIDField(null=True, blank=True)
    lease_owner = models.CharField(max_length=200, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    progress = models.JSONField(default=dict)  # {"done", "total", "text"}
    checkpoint = models.JSONField(default=dict)  # what a next attempt goes on from
    result = models.JSONField(default=dict)
    error = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    wall_s = models.FloatField(default=0.0)  # over all attempts

    class Meta:
        ordering = ["ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["campaign", "key"], name="step_key_is_unique"),
            models.UniqueConstraint(fields=["campaign", "ordinal"], name="step_ordinal_is_unique"),
            models.CheckConstraint(
                condition=Q(state="running", lease_token__isnull=False)
                | (~Q(state="running") & Q(lease_token__isnull=True)),
                name="step_runs_under_a_lease",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.campaign_id}/{self.key}"


class Candidate(models.Model):
    """A kernel that was tried, also when it failed."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="candidates")
    number = models.PositiveIntegerField()
    task = models.CharField(max_length=100)
    kind = models.CharField(max_length=16)
    agent = models.CharField(max_length=100)
    digest = models.CharField(max_length=71)  # engine.candidate.Candidate.digest
    source_digest = models.CharField(max_length=71, blank=True)  # blob: the sources as a JSON object
    parent = models.CharField(max_length=71, blank=True)
    params = models.JSONField(default=dict)
    state = models.CharField(max_length=16, choices=CandidateState.choices)
    reason = models.TextField(blank=True)
    timings = models.JSONField(default=list)  # [{"shape", "us", "stock_us", "gbps"}]
    speedup = models.FloatField(null=True, blank=True)  # micro, over the engine's own operator
    verdict_digest = models.CharField(max_length=71, blank=True)  # blob: the judge's document
    object_digest = models.CharField(max_length=71, blank=True)  # the compiled artifact that was judged
    ab = models.JSONField(default=dict)  # decisions by regime
    wall_s = models.FloatField(default=0.0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["campaign", "number"], name="candidate_number_is_unique"),
            # Impossible results cannot be written: nothing is accepted without the judge's document.
            models.CheckConstraint(
                condition=~Q(state__in=["accepted", "judged"]) | (~Q(verdict_digest="") & ~Q(object_digest="")),
                name="accepted_candidate_has_a_verdict",
            ),
        ]
        indexes = [models.Index(fields=["campaign", "state"], name="candidate_by_state")]

    def __str__(self) -> str:
        return f"{self.task} #{self.number}"


class Measurement(models.Model):
    """One measured thing of a step: a benchmark run or an A/B block, with its raw evidence by digest."""

    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="measurements")
    kind = models.CharField(max_length=20)  # bench, block
    regime = models.CharField(max_length=40)
    index = models.PositiveIntegerField()
    payload = models.JSONField()
    evidence = models.JSONField(default=list)  # digests of raw benchmark documents
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["step", "regime", "index"]
        constraints = [
            models.UniqueConstraint(fields=["step", "kind", "regime", "index"], name="measurement_is_unique")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.regime} #{self.index}"
