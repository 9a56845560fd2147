"""What goes into a tuning run and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from optimizer.engine.candidate import Candidate

if TYPE_CHECKING:
    from optimizer.engine.agents.tuner.plan import StepPlan

Outcome = Literal["ok", "build_failed", "wrong", "crashed", "timeout", "slower", "pruned"]


class TunerError(RuntimeError):
    """The run cannot go on: the host's or the caller's fault, said in the text."""


class TuneCancelled(TunerError):
    """`cancelled()` said so; the trials handed to `on_trial` so far can be resumed from."""


@dataclass(frozen=True, slots=True)
class LiveShape:
    """One shape of the operator in the running server.

    shape: the task's axes without the batch axis, e.g. {"N": 5632, "K": 1024}.
    calls_per_step: how many calls of this shape one model step makes (layers).
    batches: tokens per step -> weight (share of steps that look like this).
    """

    shape: Mapping[str, int]
    calls_per_step: int
    batches: Mapping[int, float]

    @property
    def label(self) -> str:
        return ",".join(f"{axis}={length}" for axis, length in sorted(self.shape.items()))


@dataclass(frozen=True, slots=True)
class TuneBudget:
    """Limits of a search: wall seconds of the whole run, and trials measured (resumed ones not counted)."""

    wall_s: float = 240.0
    max_trials: int = 400


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one call, by shape label and batch."""

    label: str
    batch: int
    us: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate that was tried, whatever became of it.

    `point` is what the sampler asked for in the declared space, `params` what was built from it (the family
    repairs points that make no sense), `batch` the regime it was tried for. `source` is the whole
    kernel; `digest` the candidate's. `timings` is empty unless the outcome is ok or slower. `score` is the
    time of one step's calls over the stock operator's (lower is better), None where there is none.
    """

    number: int
    task: str
    family: str
    batch: int
    point: Mapping[str, Any]
    params: Mapping[str, Any]
    digest: str
    source: str
    isa: str
    outcome: Outcome
    reason: str
    timings: tuple[Timing, ...]
    score: float | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """Stock and best kernel at one shape and batch, timed side by side. Times in microseconds a call."""

    label: str
    shape: Mapping[str, int]
    batch: int
    calls_per_step: int
    stock_us: float
    ours_us: float
    gbytes_per_s: float
    bandwidth_fraction: float  # of the read bandwidth measured at the same number of threads
    in_envelope: bool

    @property
    def speedup(self) -> float:
        return self.stock_us / self.ours_us if self.ours_us > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, for a progress line. `best` maps a batch to stock time over best time of a step."""

    stage: Literal["baseline", "search", "finals", "done"]
    tried: int
    failed: int
    best: Mapping[int, float]
    elapsed_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class TuneResult:
    """`candidate` is None when nothing beat the stock operator; `reason` then says so."""

    candidate: Candidate | None
    reason: str
    rows: tuple[Row, ...]
    trials: tuple[Trial, ...]
    threads: int
    read_gbytes_per_s: float
    wall_s: float
    outcomes: Mapping[str, int] = field(default_factory=dict)

    def step_us(self, batch: int) -> tuple[float, float]:
        """Stock and tuned microseconds of one step's calls at a batch (stock where outside the envelope)."""
        rows = [r for r in self.rows if r.batch == batch]
        stock = sum(r.stock_us * r.calls_per_step for r in rows)
        ours = sum((r.ours_us if r.in_envelope else r.stock_us) * r.calls_per_step for r in rows)
        return stock, ours


Samples = dict[str, list[float]]  # label -> microseconds of each call, repetition by repetition


class BaselineSession(Protocol):
    """The stock operator, set up with the same rotation and threads, kept warm between measurements."""

    def measure(self, batch: int, reps: int) -> Samples:
        """Time every call of `reps` steps at a batch."""

    def close(self) -> None: ...


class Baseline(Protocol):
    """How to time the engine's own operator."""

    def open(self, plan: StepPlan, *, threads: int, batches: Sequence[int]) -> BaselineSession: ...


def reps_for(step_us: float, *, at_least: int, total_ms: float = 20.0) -> int:
    """Repetitions of a step that take about `total_ms`, `at_least` some, 400 at most."""
    return max(at_least, min(400, int(total_ms * 1000 / max(step_us, 1.0))))


# What stands for a set of calls: their lower quartile, on both sides. A call is short against a scheduler's time
# slice, so most calls run undisturbed even on a busy host, and the disturbed ones are in the upper part.
TYPICAL = 0.25


def typical(samples: Sequence[float]) -> float:
    """The time that stands for these calls (their TYPICAL quantile)."""
    return quantile(samples, TYPICAL)


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear-interpolated quantile of a non-empty sample."""
    ordered = sorted(samples)
    at = (len(ordered) - 1) * q
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
