"""The rule of one look, once for arrays (the simulator calibrates it) and once with words (campaigns use it)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from optimizer.engine.abtest.aa import AAResult
from optimizer.engine.abtest.amdahl import implausible
from optimizer.engine.abtest.blocks import Block, check_complete, from_percent, log_ratios, percent
from optimizer.engine.abtest.decision import Decision, Outcome
from optimizer.engine.abtest.engagement import EngagementProof, NotEngaged
from optimizer.engine.abtest.guards import GuardResult
from optimizer.engine.abtest.resampling import bca_interval
from optimizer.engine.abtest.sequential import EXACT_BLOCKS, SequentialDesign, sequential_pvalues

REQUIRED_GUARDS: tuple[str, ...] = ("ttft_p99_ms", "tpot_p99_ms", "errors", "memory", "fidelity")


@dataclass(frozen=True, slots=True)
class LookStatistics:
    """Figures of one look, each an array of shape values.shape[:-1]; ratios are natural logarithms."""

    p_value: NDArray[np.float64]
    estimate: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    conditional_power: NDArray[np.float64]
    accept: NDArray[np.bool_]
    no_gain: NDArray[np.bool_]  # the upper bound is below the worthwhile gain
    futile: NDArray[np.bool_]


def look_statistics(
    design: SequentialDesign,
    look: int,
    values: ArrayLike,
    *,
    offset: ArrayLike = 0.0,
    noise_floor: ArrayLike = 0.0,
    exact_blocks: int = EXACT_BLOCKS,
    draws: int = 2**15,
    resamples: int = 9_999,
) -> LookStatistics:
    """The rule, on block log-ratios of shape (..., looks[look]).

    accept: sequential sign-flip p <= alpha spent, lower end of the repeated interval > max(min gain, proven A/A
    offset), and estimate > noise floor. conditional power: under the trend so far (Lan & Wittes 1988), 0 or 1 at
    the last look.
    """
    x = np.asarray(values, dtype=np.float64)
    n = design.looks[look]
    if x.shape[-1] != n:
        raise ValueError(f"look {look} is planned at {n} blocks, got {x.shape[-1]}")
    p = np.asarray(
        sequential_pvalues(
            x,
            looks=design.looks[: look + 1],
            spent=design.spent[: look + 1],
            exact_blocks=exact_blocks,
            draws=draws,
            seed=design.seed,
        )
    )
    low, high = bca_interval(x, level=design.interval_levels[look], resamples=resamples, seed=design.seed)
    estimate = x.mean(axis=-1)
    floor = np.maximum(from_percent(design.min_gain_pct), np.asarray(offset, dtype=np.float64))
    accept = (p <= design.spent[look]) & (low > floor) & (estimate > np.asarray(noise_floor, dtype=np.float64))
    no_gain = high < from_percent(design.worthwhile_gain_pct)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = estimate / (x.std(axis=-1, ddof=1) / math.sqrt(n))
        z = np.where(np.isfinite(z), z, np.sign(estimate) * 40.0)
    t = n / design.max_blocks
    last = design.z_bounds[-1]
    if t < 1:
        power = special.ndtr((z * math.sqrt(t) + z / math.sqrt(t) * (1 - t) - last) / math.sqrt(1 - t))
    else:
        power = (z >= last).astype(np.float64)
    return LookStatistics(
        p,
        estimate,
        low,
        high,
        np.asarray(power),
        accept,
        no_gain & ~accept,
        (power < design.futility_power) & ~accept,
    )


def decide(
    design: SequentialDesign,
    look: int,
    blocks: Sequence[Block],
    aa: AAResult,
    amdahl_bound: float,
    *,
    engagement: EngagementProof | NotEngaged,
    guards: Sequence[GuardResult],
    required_guards: Iterable[str] = REQUIRED_GUARDS,
    regime: str = "",
) -> Decision:
    """Decide at planned look `look` (from 0) on all blocks so far, those of the earlier looks included.

    amdahl_bound: highest believable gain as a fraction, `amdahl_gain(share, micro speed-up)` of the profile.
    guards: results so far; one of `required_guards` that is missing counts as unproven.
    Order of the rules: host, evidence that the candidate ran, plausibility, harm, then gain. ValueError for blocks
    that are not those of this look (peeking, gaps, repetitions).
    """
    if not 0 <= look < len(design.looks):
        raise ValueError(f"the design has looks 0 ... {len(design.looks) - 1}, not {look}")
    if not amdahl_bound >= 0:
        raise ValueError(f"the Amdahl bound is a fraction of 0 or more, not {amdahl_bound}")
    check_complete(blocks)
    if len(blocks) != design.looks[look]:
        design.look_of(len(blocks))
        raise ValueError(f"look {look} is planned at {design.looks[look]} blocks, got {len(blocks)}")
    if len({b.pair for b in blocks}) > 1:
        raise ValueError(
            "discovery is one pair of servers; over several, use decide_confirmation: luck is shared in a pair"
        )
    last = look == len(design.looks) - 1
    stats = look_statistics(
        design, look, log_ratios(blocks), offset=aa.offset, noise_floor=aa.noise_floor(len(blocks))
    )
    estimate, low, high, p = (float(v) for v in (stats.estimate, stats.low, stats.high, stats.p_value))
    floor = max(from_percent(design.min_gain_pct), aa.offset)
    known = {g.name: g for g in guards}
    complete = (
        *guards,
        *(
            GuardResult(name=name, status="unproven", detail=f"{name}: not measured")
            for name in required_guards
            if name not in known
        ),
    )
    spent = design.spent[look]
    gain = f"{percent(estimate):+.2f} % [{percent(low):+.2f}, {percent(high):+.2f}]"
    failed = [g for g in complete if g.status == "failed"]
    unproven = [g for g in complete if g.status == "unproven"]
    outcome, reasons = Outcome.CONTINUE, [f"{gain}, p = {p:.3g} of {spent:.3g} at look {look + 1}"]
    if not aa.fit:
        outcome, reasons = Outcome.INFRA_ERROR, [f"the A/A found the host unfit: {aa.reason}"]
    elif isinstance(engagement, NotEngaged):
        outcome = Outcome.INFRA_ERROR if engagement.infra else Outcome.REJECT
        reasons = [f"no proof that the candidate ran: {engagement.reason}"]
    elif implausible(percent(low), amdahl_bound):
        outcome = Outcome.QUARANTINE
        reasons = [
            f"{gain} is above the {amdahl_bound * 100:.2f} % that Amdahl's law allows this kernel, beyond the noise"
        ]
    elif failed:
        outcome, reasons = Outcome.REJECT, [f"guard failed: {g.detail}" for g in failed]
    elif bool(stats.accept) and not unproven:
        outcome = Outcome.ACCEPT
        reasons.append(f"the lower bound exceeds {percent(floor):.2f} %: worth a confirmation")
    elif bool(stats.no_gain):
        outcome = Outcome.REJECT
        reasons.append(
            f"a gain, if there is one, is below the {design.worthwhile_gain_pct:g} % that are worth having"
        )
    elif not last and bool(stats.futile):
        outcome = Outcome.INCONCLUSIVE
        reasons.append(
            f"the chance to accept by the last look is {100 * float(stats.conditional_power):.1f} %: stopped"
        )
    elif last:
        outcome = Outcome.INCONCLUSIVE
        if bool(stats.accept):
            reasons += [f"guard unproven: {g.detail}" for g in unproven]
        elif p > spent:
            reasons.append(f"not significant with all {len(blocks)} blocks; {aa.mde_pct:.2f} % were detectable")
        elif low <= floor:
            reasons.append(f"the lower bound does not exceed {percent(floor):.2f} %")
        else:
            reasons.append(
                f"the gain is inside the A/A's noise floor of {percent(aa.noise_floor(len(blocks))):.2f} %"
            )
    elif bool(stats.accept):
        reasons += [f"guard unproven so far: {g.detail}" for g in unproven]
    return Decision(
        outcome=outcome,
        stage="discovery",
        reasons=tuple(reasons),
        n_blocks=len(blocks),
        n_units=len(blocks),
        alpha=design.alpha,
        regime=regime,
        look=look,
        gain_pct=percent(estimate),
        ci_low_pct=percent(low),
        ci_high_pct=percent(high),
        confidence=1 - 2 * design.alpha,
        p_value=p,
        alpha_spent=spent,
        floor_pct=percent(floor),
        noise_floor_pct=percent(aa.noise_floor(len(blocks))),
        amdahl_bound_pct=amdahl_bound * 100,
        engagement=engagement if isinstance(engagement, EngagementProof) else None,
        guards=complete,
    )
