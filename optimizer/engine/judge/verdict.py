"""Verdicts: what the judge says of a candidate, with everything it rests on. An impossible one cannot be built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rackforge_runtime.canonical import canonical_json, check_digest, digest_bytes

SCHEMA = "https://rackforge.dev/verdict/v1"


class Outcome(StrEnum):
    """How a judgement ended. `exit_code` is that of `rackforge judge`."""

    ACCEPT = "accept"
    REJECT = "reject"
    QUARANTINE = "quarantine"  # a person decides
    INCONCLUSIVE = "inconclusive"  # not enough data
    INFRA_ERROR = "infra_error"  # our fault; may be tried again

    @property
    def exit_code(self) -> int:
        return list(Outcome).index(self)


class GateOutcome(StrEnum):
    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    QUARANTINE = "quarantine"
    INCONCLUSIVE = "inconclusive"
    INFRA_ERROR = "infra_error"
    NOT_APPLICABLE = "not_applicable"  # the gate has nothing to say here, and says why; never counts as a pass


class ImpossibleVerdict(ValueError):
    """A verdict that contradicts itself."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """What one gate found. `evidence` is JSON; `reason` is a stable code with words after a colon."""

    name: str
    version: int
    outcome: GateOutcome
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        if self.outcome is not GateOutcome.PASS and not self.reason:
            raise ImpossibleVerdict(f"{self.name}: {self.outcome} without a reason")

    def document(self) -> dict[str, Any]:
        return {
            "gate": self.name,
            "version": self.version,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "evidence": jsonable(self.evidence),
            "wall_s": round(self.wall_s, 6),
        }


# Gates without whose pass nothing is accepted, and the evidence count that must be above zero.
REQUIRED: Mapping[str, str] = {
    "G0": "checks",
    "G1": "files",
    "G2": "rules",
    "G4": "comparisons",
    "G5": "comparisons",
}
_ENDS: Mapping[GateOutcome, Outcome] = {
    GateOutcome.FAIL: Outcome.REJECT,
    GateOutcome.QUARANTINE: Outcome.QUARANTINE,
    GateOutcome.INCONCLUSIVE: Outcome.INCONCLUSIVE,
    GateOutcome.INFRA_ERROR: Outcome.INFRA_ERROR,
}
# What weighs most decides when gates disagree: a proven fault before a doubt, a doubt before missing data.
_WEIGHT = (GateOutcome.FAIL, GateOutcome.INFRA_ERROR, GateOutcome.QUARANTINE, GateOutcome.INCONCLUSIVE)


def conclude(gates: tuple[GateResult, ...]) -> tuple[Outcome, str]:
    """The outcome that a list of gate results amounts to, and its reason."""
    for weight in _WEIGHT:
        for gate in gates:
            if gate.outcome is weight:
                return _ENDS[weight], f"{gate.name}: {gate.reason}"
    missing = [name for name in REQUIRED if not any(g.name == name and _passed(g) for g in gates)]
    if missing:
        return Outcome.INCONCLUSIVE, f"no passed result of {', '.join(missing)}"
    return Outcome.ACCEPT, ""


def _passed(gate: GateResult) -> bool:
    if gate.outcome is not GateOutcome.PASS:
        return False
    key = REQUIRED.get(gate.name)
    return key is None or int(gate.evidence.get(key, 0)) > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's word on one candidate.

    object_digest is that of the very bytes which ran (the shared object, or the packed sources), and the only thing
    a registry may publish under this verdict. certified: behind a wall that probe_wall() vouches for, on an
    unweakened policy. speedups maps a shape's label to baseline time / candidate time; recorded only beside passed
    correctness gates.
    """

    outcome: Outcome
    reason: str
    certified: bool
    candidate_digest: str
    object_digest: str
    task: str
    kind: str
    gates: tuple[GateResult, ...]
    seed: str  # hex; drawn by the judge after submission
    environment: Mapping[str, Any]
    policy: Mapping[str, Any]
    started_at: str  # RFC 3339
    wall_s: float
    shapes: tuple[Mapping[str, int], ...] = ()
    speedups: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_digest(self.candidate_digest)
        outcome, _ = conclude(self.gates)
        if self.outcome is not outcome and not (
            self.outcome is Outcome.INFRA_ERROR
            or (self.outcome is Outcome.INCONCLUSIVE and outcome is Outcome.ACCEPT)
        ):
            raise ImpossibleVerdict(f"{self.outcome} over gates that amount to {outcome}")
        for gate in self.gates:
            if gate.name in REQUIRED and gate.outcome is GateOutcome.PASS and not _passed(gate):
                raise ImpossibleVerdict(f"{gate.name}: passed on zero {REQUIRED[gate.name]}")
        if self.outcome is Outcome.ACCEPT:
            if not self.object_digest:
                raise ImpossibleVerdict("accepted without an object")
            check_digest(self.object_digest)
        elif not self.reason:
            raise ImpossibleVerdict(f"{self.outcome} without a reason")
        if self.certified and self.outcome in (Outcome.INFRA_ERROR, Outcome.INCONCLUSIVE):
            raise ImpossibleVerdict(f"{self.outcome} cannot be certified")
        correct = all(any(g.name == n and _passed(g) for g in self.gates) for n in ("G4", "G5"))
        if self.speedups and not correct:
            raise ImpossibleVerdict("a speed-up without passed correctness")
        if any(not math.isfinite(s) or s <= 0 for s in self.speedups.values()):
            raise ImpossibleVerdict("a speed-up that is no positive number")

    def gate(self, name: str) -> GateResult | None:
        return next((g for g in self.gates if g.name == name), None)

    def document(self) -> dict[str, Any]:
        """The verdict as a JSON object; `canonical()` is its bytes, `digest` their SHA-256."""
        return {
            "schema": SCHEMA,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "certified": self.certified,
            "candidate": self.candidate_digest,
            "object": self.object_digest,
            "task": self.task,
            "kind": self.kind,
            "gates": [g.document() for g in self.gates],
            "seed": self.seed,
            "environment": jsonable(self.environment),
            "policy": jsonable(self.policy),
            "shapes": [dict(s) for s in self.shapes],
            "speedups": dict(self.speedups),
            "started_at": self.started_at,
            "wall_s": round(self.wall_s, 6),
        }

    def canonical(self) -> bytes:
        return canonical_json(self.document())

    @property
    def digest(self) -> str:
        return digest_bytes(self.canonical())

    def sign(self, signer: Callable[[bytes], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What a signer makes of the canonical bytes, e.g. a DSSE envelope."""
        return signer(self.canonical())


def jsonable(value: Any) -> Any:
    """A value as JSON can carry it: non-finite numbers and big integers become text, keys become text."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [jsonable(v) for v in items]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value) if isinstance(value, StrEnum) else value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float) or hasattr(value, "item"):
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, float):
            return number if math.isfinite(number) else str(number)
        return jsonable(number)
    return str(value)
