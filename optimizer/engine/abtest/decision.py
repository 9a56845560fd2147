"""What an A/B can end in. A decision that its evidence does not carry cannot be constructed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from optimizer.engine.abtest.amdahl import implausible
from optimizer.engine.abtest.engagement import EngagementProof
from optimizer.engine.abtest.guards import GuardResult

Stage = Literal["discovery", "confirmation"]


class Outcome(StrEnum):
    """ACCEPT in discovery only earns a confirmation; in confirmation it earns a place in the registry."""

    ACCEPT = "accept"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"
    CONTINUE = "continue"
    QUARANTINE = "quarantine"
    INFRA_ERROR = "infra_error"


class ImpossibleDecision(ValueError):
    """The outcome contradicts the evidence beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of one look, with everything it stands on.

    gain_pct, ci_low_pct, ci_high_pct: gain in percent with its interval, which holds the true gain at `confidence`
        (two-sided), over all looks together in discovery. None where nothing was measured.
    p_value: exact one-sided p-value, adjusted for the looks; significant when <= alpha_spent, the alpha used up
    so far.
    floor_pct: what ci_low_pct must exceed. noise_floor_pct: what gain_pct must exceed.
    n_blocks: blocks measured. n_units: units of evidence, blocks in discovery and server pairs in confirmation.
    Raises ImpossibleDecision, for example for ACCEPT without interval, engagement or guards, or beside a failed one.
    """

    outcome: Outcome
    stage: Stage
    reasons: tuple[str, ...]
    n_blocks: int
    n_units: int
    alpha: float
    regime: str = ""
    look: int | None = None
    gain_pct: float | None = None
    ci_low_pct: float | None = None
    ci_high_pct: float | None = None
    confidence: float | None = None
    p_value: float | None = None
    alpha_spent: float = 0.0
    floor_pct: float = 0.0
    noise_floor_pct: float = 0.0
    amdahl_bound_pct: float | None = None
    engagement: EngagementProof | None = None
    guards: tuple[GuardResult, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.reasons or not all(self.reasons):
            raise ImpossibleDecision(f"{self.outcome} without a reason")
        if self.stage not in ("discovery", "confirmation"):
            raise ImpossibleDecision(f"unknown stage {self.stage!r}")
        if not 0 < self.alpha < 0.5 or not 0 <= self.alpha_spent <= self.alpha * (1 + 1e-12):
            raise ImpossibleDecision(f"alpha {self.alpha} with {self.alpha_spent} spent")
        if self.n_blocks < 0 or self.n_units < 0 or self.n_units > self.n_blocks:
            raise ImpossibleDecision(f"{self.n_units} units of evidence from {self.n_blocks} blocks")
        if self.p_value is not None and not 0 < self.p_value <= 1:
            raise ImpossibleDecision(f"a p-value lies in (0, 1], not {self.p_value}")
        numbers = (self.gain_pct, self.ci_low_pct, self.ci_high_pct)
        if any(v is not None for v in numbers):
            if any(v is None or not math.isfinite(v) for v in numbers) or self.n_units == 0:
                raise ImpossibleDecision(
                    "a gain is recorded with both ends of its interval and its evidence, or not at all"
                )
            if not (self.ci_low_pct or 0.0) <= (self.ci_high_pct or 0.0):
                raise ImpossibleDecision("the interval's ends are exchanged")
        if self.outcome is Outcome.ACCEPT:
            self._check_accept()
        if self.outcome is Outcome.QUARANTINE and self.gain_pct is None:
            raise ImpossibleDecision("QUARANTINE needs the measured gain that looks too good")
        if self.outcome is Outcome.REJECT and self.n_blocks == 0:
            raise ImpossibleDecision("REJECT needs evidence; without any it is INCONCLUSIVE or INFRA_ERROR")

    def _check_accept(self) -> None:
        def need(holds: bool, what: str) -> None:
            if not holds:
                raise ImpossibleDecision(f"ACCEPT {what}")

        need(self.n_blocks > 0 and self.n_units >= 2, "needs at least two units of evidence")
        need(self.gain_pct is not None and self.confidence is not None, "needs a gain with its interval")
        need(self.p_value is not None, "needs a p-value")
        need(
            (self.p_value or 1.0) <= self.alpha_spent,
            f"with p = {self.p_value} above the {self.alpha_spent} to spend",
        )
        need((self.ci_low_pct or 0.0) > max(self.floor_pct, 0.0), f"with the lower bound at {self.ci_low_pct} %")
        need((self.gain_pct or 0.0) > self.noise_floor_pct, "with a gain inside the noise floor")
        need(self.engagement is not None, "needs proof that the candidate ran")
        need(self.amdahl_bound_pct is not None, "needs the Amdahl bound of the profile")
        need(
            not implausible(self.ci_low_pct or 0.0, (self.amdahl_bound_pct or 0.0) / 100),
            "of a gain above the Amdahl bound",
        )
        need(bool(self.guards), "needs its guards")
        for guard in self.guards:
            need(guard.status == "passed", f"beside guard {guard.name}: {guard.status}")

    @property
    def publishable(self) -> bool:
        """Only a confirmation's accept may be registered, and only its number published."""
        return self.stage == "confirmation" and self.outcome is Outcome.ACCEPT

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        return data | {
            "outcome": self.outcome.value,
            "reasons": list(self.reasons),
            "engagement": self.engagement.to_dict() if self.engagement else None,
            "guards": [g.to_dict() for g in self.guards],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Checks again: a stored decision that was edited into an impossible one does not load."""
        proof = data.get("engagement")
        return cls(
            **{
                **data,
                "outcome": Outcome(data["outcome"]),
                "reasons": tuple(data["reasons"]),
                "engagement": EngagementProof.from_dict(proof) if proof else None,
                "guards": tuple(GuardResult.from_dict(g) for g in data.get("guards", ())),
            }
        )
