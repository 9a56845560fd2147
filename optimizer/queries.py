"""Reads over several rows of campaigns, for the API, the pages and the command line alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db.models import Count, FloatField, Max, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from optimizer.engine.serving.server import LOG, STATE, ServerRecord
from optimizer.models import Campaign, Candidate, Step
from optimizer.plan import parse_config
from optimizer.servers import campaign_folder
from optimizer.states import CampaignState, CandidateState, StepKind, StepState
from registry import facade as registry

# Candidates that the judge let through, best first; before any is there, what the search itself timed.
PROVEN = (CandidateState.ACCEPTED, CandidateState.JUDGED, CandidateState.NO_GAIN, CandidateState.INCONCLUSIVE)
SCREENED = (CandidateState.TRIED, CandidateState.COMPOSED)


@dataclass(frozen=True, slots=True)
class Stage:
    """A step as people follow it. `wall_s` counts every attempt, the one that runs included."""

    id: int
    key: str
    kind: str
    label: str
    state: str
    state_label: str
    attempt: int
    done: float | None
    total: float | None
    text: str
    wall_s: float
    started_at: datetime | None
    finished_at: datetime | None
    error: str

    @property
    def fraction(self) -> float:
        """How much of it is done, 0 to 1."""
        if self.state == StepState.DONE:
            return 1.0
        if not self.done or not self.total:
            return 0.0
        return min(max(self.done / self.total, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Spent:
    """One kind of budget: what was used of what is allowed."""

    name: str
    unit: str
    spent: float
    limit: float

    @property
    def fraction(self) -> float:
        return min(self.spent / self.limit, 1.0) if self.limit else 1.0


@dataclass(frozen=True, slots=True)
class Best:
    """The best candidate of a task so far. `speedup` is the kernel alone against the engine's own operator."""

    task: str
    number: int
    digest: str
    speedup: float
    state: str
    state_label: str
    proven: bool  # the judge found it correct; otherwise only the search timed it
    evidence: str  # digest of the judge's document, or ""


@dataclass(frozen=True, slots=True)
class Left:
    """How long a campaign may still take, in seconds of work, and what says so."""

    seconds: float
    basis: str


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A model server of a campaign, by its slot."""

    slot: str
    alive: bool
    port: int | None
    size: int  # of its log, bytes


def campaigns() -> QuerySet[Campaign]:
    """Campaigns with what a list shows: `candidate_count`, `wall_s`, `best_speedup`."""
    steps = Step.objects.filter(campaign=OuterRef("pk")).order_by().values("campaign").annotate(s=Sum("wall_s"))
    candidates = Candidate.objects.filter(campaign=OuterRef("pk")).order_by().values("campaign")
    proven = candidates.filter(state__in=PROVEN).annotate(best=Max("speedup"))
    return Campaign.objects.select_related("deployment__model", "deployment__node", "revision").annotate(
        wall_s=Coalesce(Subquery(steps.values("s")), Value(0.0), output_field=FloatField()),
        candidate_count=Coalesce(Subquery(candidates.annotate(n=Count("pk")).values("n")), Value(0)),
        best_speedup=Subquery(proven.values("best"), output_field=FloatField()),
    )


def stages(campaign: Campaign, *, now: datetime | None = None) -> list[Stage]:
    """The steps of a campaign, in order."""
    moment = now or timezone.now()
    return [_stage(step, moment) for step in campaign.steps.all()]


def _stage(step: Step, now: datetime) -> Stage:
    wall = step.wall_s
    if step.state == StepState.RUNNING and step.attempt == 1 and step.started_at is not None:
        # The attempt that runs is written down when it ends; a first one began when the step did.
        wall = max(wall, (now - step.started_at).total_seconds())
    progress = step.progress or {}
    return Stage(
        id=step.pk,
        key=step.key,
        kind=step.kind,
        label=_label(step),
        state=step.state,
        state_label=StepState(step.state).label,
        attempt=step.attempt,
        done=progress.get("done"),
        total=progress.get("total"),
        text=str(progress.get("text", "")),
        wall_s=wall,
        started_at=step.started_at,
        finished_at=step.finished_at,
        error=step.error,
    )


def _label(step: Step) -> str:
    """The stage's name, with what its key adds to the kind (a task, a round)."""
    label: str = StepKind(step.kind).label
    rest = step.key.removeprefix(step.kind).strip("-:/. ")
    return f"{label}: {rest}" if rest else label


def budget(campaign: Campaign, seen: Sequence[Stage], candidate_count: int) -> list[Spent]:
    """What was used of the campaign's budget."""
    limits = parse_config(campaign.config).budget
    return [
        Spent("wall time", "s", sum(stage.wall_s for stage in seen), limits.wall_s),
        Spent("candidates", "candidates", candidate_count, limits.max_candidates),
    ]


def left(campaign: Campaign, seen: Sequence[Stage]) -> Left | None:
    """How long it may still take: as the last finished campaign of the deployment did, else what the budget has."""
    if CampaignState(campaign.state).terminal:
        return None
    spent = sum(stage.wall_s for stage in seen)
    before = (
        Step.objects.filter(campaign__deployment_id=campaign.deployment_id, campaign__state=CampaignState.SUCCEEDED)
        .order_by()
        .values("campaign")
        .annotate(total=Sum("wall_s"), ended=Max("campaign__finished_at"))
        .order_by("-ended")
        .first()
    )
    if before is not None and before["total"] > spent:
        return Left(before["total"] - spent, "as long as the last campaign of this deployment")
    limit = parse_config(campaign.config).budget.wall_s
    return Left(max(limit - spent, 0.0), "at most, by the budget")


def best(campaign: Campaign) -> list[Best]:
    """The best candidate of each task: one that the judge passed where there is one."""
    rows = campaign.candidates.filter(state__in=[*PROVEN, *SCREENED], speedup__isnull=False).order_by("-speedup")
    found: dict[str, Candidate] = {}
    for row in rows.only("task", "number", "digest", "speedup", "state", "verdict_digest"):
        held = found.get(row.task)
        if held is None or (row.state in PROVEN and held.state not in PROVEN):
            found[row.task] = row
    return [
        Best(
            task=row.task,
            number=row.number,
            digest=row.digest,
            speedup=row.speedup or 0.0,
            state=row.state,
            state_label=CandidateState(row.state).label,
            proven=row.state in PROVEN,
            evidence=row.verdict_digest,
        )
        for row in sorted(found.values(), key=lambda row: row.task)
    ]


def histogram(campaign: Campaign) -> list[tuple[CandidateState, int]]:
    """How many candidates came out how, in the order of the states; states without any are left out."""
    counts = dict(campaign.candidates.order_by().values_list("state").annotate(n=Count("pk")))
    return [(state, counts[state.value]) for state in CandidateState if counts.get(state.value)]


def detail(campaign: Campaign) -> dict[str, Any]:
    """Everything the detail of a campaign shows, as JSON values; `campaign` comes from `campaigns()`."""
    seen = stages(campaign)
    counts = histogram(campaign)
    total = sum(count for _, count in counts)
    remaining = left(campaign, seen)
    return {
        "stages": [{**asdict(stage), "fraction": stage.fraction} for stage in seen],
        "budget": [{**asdict(spent), "fraction": spent.fraction} for spent in budget(campaign, seen, total)],
        "left": asdict(remaining) if remaining else None,
        "best": [asdict(row) for row in best(campaign)],
        "candidates": {"total": total, "by_state": {state.value: count for state, count in counts}},
    }


def servers_of(campaign: Campaign) -> list[ServerLog]:
    """The model servers of a campaign, dead ones whose log is still there included."""
    folder = campaign_folder(campaign.pk)
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        log = path / LOG
        if not path.is_dir() or not log.is_file():
            continue
        record = ServerRecord.read(path / STATE)
        found.append(
            ServerLog(
                slot=path.name,
                alive=record is not None and record.alive,
                port=record.port if record is not None else None,
                size=log.stat().st_size,
            )
        )
    return found


def server_log(campaign: Campaign, slot: str) -> Path | None:
    """The log of a slot's server; None where there is none. `slot` is one name, never a path."""
    folder = campaign_folder(campaign.pk)
    if slot not in (path.name for path in (folder.iterdir() if folder.is_dir() else ())):
        return None
    log = folder / slot / LOG
    return log if log.is_file() else None


def siblings(candidate: Candidate) -> QuerySet[Candidate]:
    """Candidates of the same task and campaign that were made from this one."""
    return Candidate.objects.filter(campaign_id=candidate.campaign_id, parent=candidate.digest).order_by("number")


def document(digest: str) -> Any:
    """A JSON document that was kept as evidence; None where it is not there (or not JSON)."""
    if not digest:
        return None
    try:
        with registry.open_blob(digest) as blob:
            return json.load(blob)
    except (LookupError, OSError, ValueError):
        return None


def sources(candidate: Candidate) -> dict[str, str]:
    """The sources of a candidate by file name; empty where they were not kept."""
    found = document(candidate.source_digest)
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}
