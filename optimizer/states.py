"""The states of campaigns, steps and candidates: value, label and what may follow, in one place."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import models


class CampaignState(models.TextChoices):
    """What a campaign is. What its people want of it is `Desired`."""

    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    SUCCEEDED = "succeeded", "Finished"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"

    @property
    def terminal(self) -> bool:
        return self in (CampaignState.SUCCEEDED, CampaignState.FAILED, CampaignState.CANCELLED)


CAMPAIGN_TRANSITIONS: Mapping[CampaignState, frozenset[CampaignState]] = {
    CampaignState.QUEUED: frozenset({CampaignState.RUNNING, CampaignState.PAUSED, CampaignState.CANCELLED}),
    CampaignState.RUNNING: frozenset(
        {CampaignState.PAUSED, CampaignState.SUCCEEDED, CampaignState.FAILED, CampaignState.CANCELLED}
    ),
    CampaignState.PAUSED: frozenset({CampaignState.RUNNING, CampaignState.CANCELLED}),
    CampaignState.SUCCEEDED: frozenset(),
    CampaignState.FAILED: frozenset(),
    CampaignState.CANCELLED: frozenset(),
}


class Desired(models.TextChoices):
    RUN = "run", "Run"
    PAUSE = "pause", "Pause"
    CANCEL = "cancel", "Cancel"


class Outcome(models.TextChoices):
    """How a campaign that finished came out; empty until then."""

    ACCEPTED = "accepted", "Kernel accepted"
    NOTHING = "nothing", "No gain found"
    HELD = "held", "Held for a person"
    UNFIT = "unfit", "Host unfit to measure"


class StepKind(models.TextChoices):
    """The stages of a campaign, in their order."""

    PREPARE = "prepare", "Check the host"
    BASELINE = "baseline", "Baseline"
    AA = "aa", "A/A check"
    PROFILE = "profile", "Profile"
    TARGETS = "targets", "Choose targets"
    OPTIMIZE = "optimize", "Search kernels"
    JUDGE = "judge", "Judge"
    AB = "ab", "End-to-end A/B"
    CONFIRM = "confirm", "Confirm"
    REGISTER = "register", "Register"
    STACK = "stack", "Measure the whole stack"
    REPORT = "report", "Report"


class StepState(models.TextChoices):
    PENDING = "pending", "Waiting"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    SKIPPED = "skipped", "Skipped"

    @property
    def terminal(self) -> bool:
        return self in (StepState.DONE, StepState.FAILED, StepState.SKIPPED)


class CandidateState(models.TextChoices):
    """How far a candidate came."""

    TRIED = "tried", "Tried"
    BUILD_FAILED = "build_failed", "Does not compile"
    WRONG = "wrong", "Wrong result"
    CRASHED = "crashed", "Crashed"
    TIMEOUT = "timeout", "Too slow to judge"
    SLOWER = "slower", "Not faster"
    PRUNED = "pruned", "Given up early"
    COMPOSED = "composed", "Composed"
    REJECTED = "rejected", "Rejected by the judge"
    QUARANTINED = "quarantined", "Held for a person"
    JUDGED = "judged", "Passed the judge"
    NO_GAIN = "no_gain", "No end-to-end gain"
    INCONCLUSIVE = "inconclusive", "Inconclusive"
    ACCEPTED = "accepted", "Accepted"
