"""What a campaign is asked to do: budgets, regimes and the design of its tests, checked at the edge."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class PlanError(ValueError):
    """A campaign that cannot be run as asked; the text names the field and what to do."""


class Budget(BaseModel):
    """What a campaign may spend. Seconds of wall time count only while a worker is busy with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wall_s: float = Field(default=3600, gt=0)
    search_wall_s: float = Field(default=240, gt=0)  # of one kernel search
    max_candidates: int = Field(default=400, ge=1)


class TestDesign(BaseModel):
    """The end-to-end A/B. `looks` are block counts at which the test may stop; alpha is spent over them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    power: float = Field(default=0.8, gt=0.5, lt=1)
    looks: tuple[int, ...] = (6, 10, 14, 20)
    aa_blocks: int = Field(default=6, ge=6)
    confirm_restarts: int = Field(default=2, ge=2)  # at least; as many as the test needs are made
    confirm_blocks: int = Field(default=1, ge=1)  # of each restarted pair

    @model_validator(mode="after")
    def _check(self) -> TestDesign:
        if not self.looks or list(self.looks) != sorted(set(self.looks)):
            raise ValueError("looks must be block counts in rising order")
        if 2.0 ** -self.looks[-1] > self.alpha:
            raise ValueError(f"{self.looks[-1]} blocks cannot reach alpha {self.alpha}: raise the last look")
        return self


class CampaignConfig(BaseModel):
    """All of it. `regimes` and `tasks` narrow the deployment's regimes and the known tasks; None takes all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    regimes: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    launch_configurations: tuple[str, ...] | None = None
    baseline_repeats: int = Field(default=3, ge=1)
    max_rounds: int = Field(default=2, ge=1)
    min_ceiling_pct: float = Field(default=3.0, ge=0)  # targets that could win less than this are left alone
    seed: int = Field(default=0, ge=0, lt=2**31)
    budget: Budget = Budget()
    test: TestDesign = TestDesign()
    namespace: str = Field(default="rackforge", pattern=r"^[a-z][a-z0-9-]{1,62}$")
    channel: str = Field(default="candidate", pattern=r"^[a-z][a-z0-9-]{1,62}$")


def parse_config(value: Any) -> CampaignConfig:
    """A campaign's configuration from JSON. Raises PlanError naming the first fault and its place."""
    try:
        return CampaignConfig.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "config"
        raise PlanError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error
