"""How hard the judge looks. The defaults are what a certified verdict needs; what is weaker does not certify."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from optimizer.engine.candidate import Candidate


@dataclass(frozen=True, slots=True)
class Roofline:
    """The fastest that this host could ever be: bytes/s (from the nearest cache that holds the data) and FLOP/s.
    Peaks, not typical values: a floor that an honest kernel could beat would be wrong."""

    bytes_per_s: float
    flops_per_s: float

    def floor_s(self, *, flops: float, bytes_moved: float) -> float:
        """No call can take less time (Williams et al. 2009, roofline)."""
        return max(flops / self.flops_per_s, bytes_moved / self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class JudgePolicy:
    """Knobs of one judgement.

    rounds: correctness calls with fresh inputs, in all shapes together at least (and two a shape).
    timed_calls: timed calls a shape, each for candidate and baseline.
    baseline: what the candidate is timed against, as a candidate of its own; None: G7 checks floors only.
    quarantine_speedup: above it a person decides.
    threads: thread counts to run at; the last one is timed.
    """

    rounds: int = 10
    timed_calls: int = 15
    baseline: Candidate | None = None
    roofline: Roofline | None = None
    quarantine_speedup: float = 10.0
    threads: tuple[int, ...] = (1, 2)
    call_timeout_s: float = 20.0
    load_timeout_s: float = 60.0
    wall_s: float = 600.0
    max_call_bytes: int = 1 << 31
    memory_bytes: int = 4 << 30
    settle_s: float = 0.003
    timing: bool = True
    require_wall: bool = True
    extra_allowed: frozenset[str] = field(default_factory=frozenset)  # library calls allowed besides the task's

    def document(self) -> dict[str, Any]:
        out = {k: v for k, v in asdict(self).items() if k not in ("baseline", "roofline")}
        out["baseline"] = self.baseline.digest if self.baseline else None
        out["roofline"] = asdict(self.roofline) if self.roofline else None
        return out

    @property
    def certifies(self) -> bool:
        """Whether this policy is at least as strict as the default one."""
        default = JudgePolicy()
        return (
            self.rounds >= default.rounds
            and self.quarantine_speedup <= default.quarantine_speedup
            and max(self.threads) >= 2
            and self.settle_s >= default.settle_s
        )
