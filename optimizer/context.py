"""What a step's handler gets: its campaign's facts, and the only ways to write about it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from deployments.recipe import Recipe, Regime, parse_recipe
from optimizer import leases, services
from optimizer.leases import Claim, LeaseLost
from optimizer.models import Campaign, Candidate, Measurement, Step
from optimizer.plan import CampaignConfig, parse_config
from optimizer.states import Desired, Outcome, StepKind, StepState
from rackforge.config import Config
from registry import facade as registry


class Interrupted(Exception):
    """The campaign is to pause or to be cancelled, or the lease is gone: leave at once, keep what is kept."""


class StepFailed(Exception):
    """The campaign cannot go on; the text is what its people read."""


class TryAgain(Exception):
    """Our own trouble (a server died, a disk was full): the step may run again."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step found, and the steps that follow from it. `finish` ends the campaign with an outcome."""

    result: dict[str, Any] = field(default_factory=dict)
    next: Sequence[tuple[StepKind, str]] = ()
    skip_rest: bool = False  # what still waits is skipped, before `next` is appended
    finish: Outcome | None = None
    reason: str = ""


class StepContext:
    """One attempt at one step. Every write is guarded by the lease."""

    def __init__(self, claimed: Claim, stop: threading.Event) -> None:
        self.claim = claimed
        self._stop = stop
        self._last_progress = 0.0
        step = Step.objects.select_related(
            "campaign__deployment__model", "campaign__deployment__node", "campaign__revision"
        ).get(pk=claimed.step_id)
        self.key = step.key
        self.kind = StepKind(step.kind)
        self.attempt = step.attempt
        self.checkpoint_data: dict[str, Any] = dict(step.checkpoint)
        self.campaign: Campaign = step.campaign
        self.deployment = step.campaign.deployment
        self.node = self.deployment.node
        self.model = self.deployment.model
        self.revision = step.campaign.revision
        self.recipe: Recipe = parse_recipe(self.revision.recipe)
        self.config: CampaignConfig = parse_config(step.campaign.config)
        self.platform: Config = settings.CONFIG

    # -- what is known ----------------------------------------------------------------------------------

    @property
    def regimes(self) -> list[Regime]:
        """The regimes this campaign is about, in the recipe's order."""
        wanted = self.config.regimes
        return [regime for regime in self.recipe.regimes if wanted is None or regime.name in wanted]

    @property
    def work(self) -> Path:
        """Scratch folder of the campaign; may vanish between attempts."""
        path = self.platform.home / "campaigns" / str(self.campaign.pk)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def result_of(self, key: str) -> dict[str, Any]:
        """Result of an earlier step. Raises StepFailed when it is not there: the plan is wrong then."""
        step = Step.objects.filter(campaign_id=self.campaign.pk, key=key, state=StepState.DONE).first()
        if step is None:
            raise StepFailed(f"step {key} has no result")
        return dict(step.result)

    def wall_spent(self) -> float:
        """Seconds that workers were busy with this campaign, earlier attempts included, this one not."""
        return sum(Step.objects.filter(campaign_id=self.campaign.pk).values_list("wall_s", flat=True))

    # -- stopping ---------------------------------------------------------------------------------------

    def stopping(self) -> bool:
        """To hand to long work as its cancel callback."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise Interrupted when the work should stop here."""
        if self._stop.is_set():
            raise Interrupted

    # -- writing ----------------------------------------------------------------------------------------

    def progress(self, done: float, total: float, text: str) -> None:
        """Show how far the step is (at most about twice a second; the last value of a step is kept)."""
        now = time.monotonic()
        if done < total and now - self._last_progress < 0.5:
            return
        self._last_progress = now
        leases.guarded_update(self.claim, progress={"done": done, "total": total, "text": text[:300]})

    def save_checkpoint(self, **values: Any) -> None:
        """Keep something for a next attempt at this step."""
        self.checkpoint_data |= values
        leases.guarded_update(self.claim, checkpoint=self.checkpoint_data)

    def store(self, data: bytes) -> str:
        """Keep evidence; its digest."""
        return registry.put_blob(data)

    def measure(
        self, *, kind: str, regime: str, index: int, payload: dict[str, Any], evidence: Sequence[str] = ()
    ) -> None:
        """Keep one measurement; the first one of an index counts."""
        with transaction.atomic():
            step = leases.hold(self.claim)
            Measurement.objects.get_or_create(
                step=step,
                kind=kind,
                regime=regime,
                index=index,
                defaults={"payload": payload, "evidence": list(evidence)},
            )

    def measurements(self, *, kind: str, regime: str, key: str | None = None) -> list[Measurement]:
        """What was measured in this step (or in another one of the campaign), in order."""
        query = Measurement.objects.filter(step__campaign_id=self.campaign.pk, step__key=key or self.key)
        return list(query.filter(kind=kind, regime=regime).order_by("index"))

    def drop_measurements(self, *, kind: str, regime: str, why: str, from_index: int = 0) -> None:
        """Forget what this step measured in a regime (it has to be measured anew), and say so."""
        with transaction.atomic():
            step = leases.hold(self.claim)
            gone, _ = Measurement.objects.filter(step=step, kind=kind, regime=regime, index__gte=from_index).delete()
            if gone:
                services.note_failure(
                    campaign_id=self.campaign.pk,
                    stage=self.key,
                    what=f"{gone} measurements of {regime} were dropped",
                    why=f"{why}; they are measured again",
                )

    def candidate(self, *, digest: str, task: str, **fields: Any) -> Candidate:
        """Record a candidate under the lease."""
        with transaction.atomic():
            leases.hold(self.claim)
            return services.record_candidate(campaign=self.campaign, digest=digest, task=task, **fields)

    def failure(self, what: str, why: str) -> None:
        """Tell the campaign's people of something that went wrong although the campaign goes on."""
        with transaction.atomic():
            leases.hold(self.claim)
            services.note_failure(campaign_id=self.campaign.pk, stage=self.key, what=what, why=why)


class Heartbeat:
    """A thread that keeps the lease alive and hears of pause and cancel.

    It has a database connection of its own. When the lease is lost, or a heartbeat cannot be written for
    longer than the lease lasts, the work is told to stop.
    """

    def __init__(self, claimed: Claim, *, interval_s: float = leases.HEARTBEAT_S) -> None:
        self.stop = threading.Event()
        self.lost = False
        self.desired = Desired.RUN
        self._claim = claimed
        self._interval = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        try:
            # Wanted changes are seen within about a second; the lease itself is written less often.
            while not self._done.wait(1.0):
                try:
                    if time.monotonic() - last >= self._interval:
                        desired = leases.heartbeat(self._claim)
                        last = time.monotonic()
                    else:
                        desired = Desired(
                            Campaign.objects.values_list("desired", flat=True).get(pk=self._claim.campaign_id)
                        )
                except Exception:  # noqa: BLE001 - a database that is away for a moment is no reason to stop
                    connection.close()
                    if time.monotonic() - last > leases.TTL.total_seconds():
                        self.lost = True
                        self.stop.set()
                        return
                    continue
                if desired is None:
                    self.lost = True
                    self.stop.set()
                    return
                self.desired = desired
                if desired != Desired.RUN:
                    self.stop.set()
        finally:
            connection.close()


Handler = Callable[[StepContext], StepResult]
__all__ = ["Handler", "Heartbeat", "Interrupted", "LeaseLost", "StepContext", "StepFailed", "StepResult", "TryAgain"]
