"""Guards: a faster kernel must not make anything else worse. Each is a non-inferiority test, never "no difference
seen".

passed: the confidence bound shows the harm to be below the margin. failed: the bound on the other side shows it
above. unproven: neither; missing data is unproven too, and an unproven guard never accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from optimizer.engine.abtest.aa import detectable_effect, spread_upper_limit
from optimizer.engine.abtest.blocks import Block, from_percent, percent

GuardStatus = Literal["passed", "failed", "unproven"]
# What a user of the server would hardly notice; an A/A that is noisier than that widens them, and says so.
LATENCY_MARGINS_PCT: Mapping[str, float] = {"ttft_p99_ms": 10.0, "tpot_p99_ms": 5.0}
MEMORY_MARGIN_PCT = 5.0
FIDELITY_MARGIN_NATS = 0.05
AA_MARGIN_POWER = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult:
    """estimate, bound and margin are harm in `unit` (positive is worse); bound is the upper confidence bound."""

    name: str
    status: GuardStatus
    detail: str
    unit: str = ""
    estimate: float | None = None
    bound: float | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.status not in ("passed", "failed", "unproven") or not self.name or not self.detail:
            raise ValueError(f"a guard has a name, a status and a detail, got {self.name!r}, {self.status!r}")
        if self.status == "passed":
            if self.estimate is None or self.bound is None or self.margin is None:
                raise ValueError(f"guard {self.name} cannot pass without a measurement")
            if not self.bound <= self.margin:
                raise ValueError(
                    f"guard {self.name} cannot pass: bound {self.bound} is above the margin {self.margin}"
                )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GuardResult:
        return cls(**{k: data.get(k) for k in cls.__dataclass_fields__})  # type: ignore[arg-type]


def _t_bounds(values: Sequence[float], level: float) -> tuple[float, float, float]:
    """Mean with lower and upper one-sided Student bounds; (m, -inf, inf) from a single value."""
    x = np.asarray(values, dtype=np.float64)
    mean = float(x.mean())
    if len(x) < 2:
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf(1 - level, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return mean, mean - half, mean + half


def _status(low: float, high: float, margin: float) -> GuardStatus:
    if high <= margin:
        return "passed"
    return "failed" if low > margin else "unproven"


def latency_guard(
    blocks: Sequence[Block],
    metric: str,
    *,
    aa: Sequence[Block] = (),
    margin_pct: float | None = None,
    level: float = 0.05,
) -> GuardResult:
    """Non-inferiority of a latency (smaller is better), by Student bounds over block log-ratios.

    margin_pct defaults to LATENCY_MARGINS_PCT. With the A/A's blocks the margin is at least the effect that blocks
    this noisy show with 95 % power: a tail percentile of few requests may swing more between equal servers than any
    declared margin, and an honest kernel must not fail for that. The margin used is part of the result.
    """
    declared = LATENCY_MARGINS_PCT.get(metric) if margin_pct is None else margin_pct
    if declared is None:
        raise ValueError(f"no margin is declared for {metric!r}: give margin_pct")
    missing = [b.index for b in blocks if metric not in b.metrics]
    if missing or len(blocks) < 2:
        why = f"not measured in blocks {missing}" if missing else f"{len(blocks)} blocks are too few"
        return GuardResult(name=metric, status="unproven", detail=f"{metric}: {why}")
    margin, source = from_percent(declared), "declared"
    measured = [b.metric_log_ratio(metric) for b in aa if metric in b.metrics]
    if len(measured) >= 3:
        spread = spread_upper_limit(float(np.std(measured, ddof=1)), len(measured))
        seen = detectable_effect(spread, len(blocks), level=level, power=AA_MARGIN_POWER)
        if seen > margin:
            margin, source = seen, "the least that blocks as noisy as the A/A's can show"
    mean, low, high = _t_bounds([b.metric_log_ratio(metric) for b in blocks], level)
    return GuardResult(
        name=metric,
        status=_status(low, high, margin),
        detail=f"{metric} {percent(mean):+.1f} %, at most {percent(high):+.1f} %; "
        f"margin {percent(margin):.1f} % ({source})",
        unit="%",
        estimate=percent(mean),
        bound=percent(high),
        margin=percent(margin),
    )


def error_guard(*, failed_a: int, total_a: int, failed_b: int, total_b: int) -> GuardResult:
    """Failed requests: B may not fail more often than A. One extra failed request fails the guard.

    There is no margin to trade: a kernel has no business failing requests. The bound on B's error rate that the
    number of requests allows (Clopper-Pearson, one-sided 95 %) is in the detail.
    """
    if min(failed_a, failed_b) < 0 or failed_a > total_a or failed_b > total_b:
        raise ValueError(f"not counts: {failed_a}/{total_a} and {failed_b}/{total_b}")
    if total_a == 0 or total_b == 0:
        return GuardResult(name="errors", status="unproven", detail="no requests were sent to one of the sides")
    excess = failed_b / total_b - failed_a / total_a
    upper = 1.0 if failed_b == total_b else float(stats.beta.ppf(0.95, failed_b + 1, total_b - failed_b))
    return GuardResult(
        name="errors",
        status="passed" if excess <= 0 else "failed",
        detail=f"{failed_b} of {total_b} requests failed, {failed_a} of {total_a} on the baseline; "
        f"the true rate is below {100 * upper:.2f} % at 95 % confidence",
        unit="share of requests",
        estimate=excess,
        bound=excess,
        margin=0.0,
    )


def memory_guard(
    a_bytes: Sequence[float], b_bytes: Sequence[float], *, margin_pct: float = MEMORY_MARGIN_PCT
) -> GuardResult:
    """Resident memory at its peak: B's highest against A's lowest reading, so the comparison errs against B.

    One server gives one peak, so this is a plain comparison and not a test; readings of restarts are all counted.
    """
    if not a_bytes or not b_bytes:
        return GuardResult(name="memory", status="unproven", detail="memory was not measured on both sides")
    if not all(math.isfinite(v) and v > 0 for v in (*a_bytes, *b_bytes)):
        raise ValueError("memory readings must be positive and finite")
    worst = (max(b_bytes) / min(a_bytes) - 1) * 100
    return GuardResult(
        name="memory",
        status="passed" if worst <= margin_pct else "failed",
        detail=f"resident memory {worst:+.1f} % at worst; margin {margin_pct:g} %",
        unit="%",
        estimate=(float(np.mean(b_bytes)) / float(np.mean(a_bytes)) - 1) * 100,
        bound=worst,
        margin=margin_pct,
    )


def fidelity_guard(
    distances: Sequence[float],
    aa_distances: Sequence[float] = (),
    *,
    margin_nats: float = FIDELITY_MARGIN_NATS,
    level: float = 0.05,
    flat: bool = False,
) -> GuardResult:
    """Output: distance of teacher-forced log-probabilities between the sides, against that of two equal servers.

    distances: one number per prompt, the mean over its tokens of |log p_B - log p_A|, in nats; aa_distances: the same
    between two stock servers (0 where they are bitwise equal). Harm is the excess over the A/A's mean, its bound the
    upper Student bound over prompts. margin_nats is declared: 0.05 nats is a factor of 1.05 in a token's probability;
    it is a choice, not a measurement. flat: the model holds all tokens for equally likely (random weights), so that
    no distance says anything: unproven.
    """
    if flat:
        return GuardResult(name="fidelity", status="unproven", detail="a flat distribution leaves nothing to compare")
    if len(distances) < 2:
        return GuardResult(name="fidelity", status="unproven", detail="output was compared on fewer than two prompts")
    if not all(math.isfinite(v) and v >= 0 for v in (*distances, *aa_distances)):
        return GuardResult(name="fidelity", status="failed", detail="a log-probability distance is not finite")
    base = float(np.mean(aa_distances)) if len(aa_distances) else 0.0
    mean, low, high = _t_bounds(distances, level)
    return GuardResult(
        name="fidelity",
        status=_status(low - base, high - base, margin_nats),
        detail=f"log-probabilities move by {mean:.4f} nats a token, {base:.4f} between equal servers; excess at most "
        f"{high - base:.4f}, margin {margin_nats:g}",
        unit="nats",
        estimate=mean - base,
        bound=high - base,
        margin=margin_nats,
    )
