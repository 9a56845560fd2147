"""The A/A run: what two equal servers differ by on this host, before any budget is spent.

The noise floor and the minimum detectable effect come from a handful of blocks, so the spread itself is uncertain
and a plug-in normal quantile would promise too much. Two corrections, both exact for normal log-ratios:

* noise floor: t(1-alpha, n-1) s / sqrt(m). For an A/B of m blocks without gain, mean / (s / sqrt(m)) with s from
  the n blocks of the A/A follows Student's t with n-1 degrees of freedom, so P(estimate > floor) = alpha whatever n
  is: with 6 blocks 2.02 stands where 1.64 would, and the floor is honest because of it, not because n is large.
* MDE: from the 80 % upper confidence limit of the spread, s sqrt((n-1) / chi2(0.2, n-1)) (Browne, "On the use of a
  pilot sample for sample size determination", Statistics in Medicine 14 (1995) 1933-1940): a plan made from a
  pilot's own s misses its power half of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from optimizer.engine.abtest.blocks import Block, check_complete, from_percent, log_ratios, pair_means, percent
from optimizer.engine.abtest.resampling import bca_interval
from optimizer.engine.abtest.sequential import SequentialDesign, sequential_pvalues

SPREAD_CONFIDENCE = 0.8


def spread_upper_limit(sd: float, n: int, confidence: float = SPREAD_CONFIDENCE) -> float:
    """Upper confidence limit of a standard deviation from n normal values: s sqrt((n-1)/chi2(1-confidence, n-1))."""
    if n < 2:
        raise ValueError("a spread needs at least two values")
    return sd * math.sqrt((n - 1) / float(stats.chi2.ppf(1 - confidence, n - 1)))


def detectable_effect(sd: float, n_blocks: int, *, level: float, power: float) -> float:
    """Log-ratio that a one-sided test at `level` over n_blocks finds with `power`: (t(1-level) + t(power)) sd /
    sqrt(n).

    The usual t approximation of the noncentral power (Cohen 1988, ch. 2), n-1 degrees of freedom.
    """
    if n_blocks < 2:
        raise ValueError("a planned A/B has at least two blocks")
    df = n_blocks - 1
    return float((stats.t.ppf(1 - level, df) + stats.t.ppf(power, df)) * sd / math.sqrt(n_blocks))


@dataclass(frozen=True, slots=True)
class AAStatistics:
    """Arrays of shape units.shape[:-1]: the interval of the offset, its two-sided p-value, and whether it is fit."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    p_value: NDArray[np.float64]
    fit: NDArray[np.bool_]

    @property
    def offset(self) -> NDArray[np.float64]:
        """What is proven of the offset, whichever its sign: 0 where the interval holds 0."""
        return np.maximum(0.0, np.maximum(self.low, -self.high))


def aa_statistics(
    units: ArrayLike,
    *,
    unfit_alpha: float = 0.05,
    tolerated_offset_pct: float = 1.0,
    seed: int = 0,
    resamples: int = 9_999,
) -> AAStatistics:
    """The rule of `assess_aa` for arrays of units, shape (..., n): the simulator calibrates it."""
    x = np.asarray(units, dtype=np.float64)
    low, high = bca_interval(x, level=unfit_alpha / 2, seed=seed, resamples=resamples)
    looks, spent = (x.shape[-1],), (unfit_alpha / 2,)
    upper = sequential_pvalues(x, looks=looks, spent=spent, seed=seed)
    p = np.minimum(1.0, 2 * np.minimum(upper, sequential_pvalues(-x, looks=looks, spent=spent, seed=seed)))
    tolerated = from_percent(tolerated_offset_pct)
    unfit = ((low > tolerated) | (high < -tolerated)) & (p <= unfit_alpha)
    return AAStatistics(low, high, p, ~unfit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AAResult:
    """What the A/A said. Ratios are natural logarithms; the *_pct properties are for people.

    mean, low, high: offset of two equal servers, with a two-sided BCa interval at 1 - unfit_alpha.
    sd: standard deviation of the block log-ratio (within server pairs). p_value: two-sided, exact sign flips.
    offset: the part of the offset that is proven (0 when the interval holds 0): what a gain must exceed at least.
    """

    n_blocks: int
    n_pairs: int
    mean: float
    sd: float
    low: float
    high: float
    p_value: float
    unfit_alpha: float
    tolerated_offset_pct: float
    alpha: float
    power: float
    planned_blocks: int
    interval_level: float
    fit: bool
    reason: str

    def __post_init__(self) -> None:
        if self.n_blocks < 2 or self.n_pairs < 1 or not self.reason:
            raise ValueError("an A/A result needs at least two blocks, one pair and a reason")
        if not self.low <= self.high or not self.sd >= 0:
            raise ValueError(f"not an interval and a spread: [{self.low}, {self.high}], {self.sd}")

    @property
    def offset(self) -> float:
        if self.low > 0:
            return self.low
        return -self.high if self.high < 0 else 0.0

    def noise_floor(self, n_blocks: int | None = None) -> float:
        """Log-ratio that the mean of n_blocks (default: as planned) exceeds with probability alpha without any
        gain.
        """
        n = self.planned_blocks if n_blocks is None else n_blocks
        return float(stats.t.ppf(1 - self.alpha, self.n_blocks - self.n_pairs) * self.sd / math.sqrt(n))

    @property
    def mde(self) -> float:
        """Log-ratio found with the stated power by the planned design, at its last look."""
        limit = spread_upper_limit(self.sd, self.n_blocks - self.n_pairs + 1)
        return detectable_effect(limit, self.planned_blocks, level=self.interval_level, power=self.power)

    @property
    def noise_floor_pct(self) -> float:
        return percent(self.noise_floor())

    @property
    def mde_pct(self) -> float:
        return percent(self.mde)

    @property
    def offset_pct(self) -> float:
        return percent(self.mean)

    @property
    def sd_pct(self) -> float:
        return percent(self.sd)

    def to_dict(self) -> dict[str, Any]:
        """With the derived figures in percent, for people; from_dict ignores those."""
        return asdict(self) | {
            "noise_floor_pct": self.noise_floor_pct,
            "mde_pct": self.mde_pct,
            "offset_pct": self.offset_pct,
            "sd_pct": self.sd_pct,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AAResult:
        return cls(**{k: data[k] for k in cls.__dataclass_fields__})


def assess_aa(
    blocks: Sequence[Block],
    design: SequentialDesign | None = None,
    *,
    unfit_alpha: float = 0.05,
    tolerated_offset_pct: float = 1.0,
    seed: int = 0,
) -> AAResult:
    """Judge an A/A run for the planned design. At least six blocks; 6 to 10 are usual.

    Unfit when equal servers differ: the interval lies wholly outside +-tolerated_offset_pct, and the exact two-sided
    sign-flip p-value is at most unfit_alpha. The second keeps the rate of false alarms at unfit_alpha whatever the
    noise (an interval of six blocks alone does not); the first lets a host through whose servers differ by a little
    for good (luck of memory layout or cores): that is no reason to stop, since restarts average it out in the
    confirmation, and `offset` holds it against the candidate until then. tolerated_offset_pct=0 is the strict rule,
    right where one server switches code per block and luck cannot tell A from B.

    With several server pairs, the units of both are the means of pairs (six pairs or more can be judged; fewer cannot
    be told unfit, and say so). ValueError for fewer than six blocks or a gap in their numbers.
    """
    design = design or SequentialDesign()
    check_complete(blocks)
    least = math.ceil(1 - math.log2(unfit_alpha))
    if len(blocks) < least:
        raise ValueError(
            f"an A/A needs at least {least} blocks to tell an unfit host at level {unfit_alpha:g} (two-sided "
            f"sign-flip p is never below 2**(1-n)), got {len(blocks)}"
        )
    ratios = np.array(log_ratios(blocks))
    pairs = np.array([b.pair for b in blocks])
    n_pairs = len(set(pairs.tolist()))
    if len(blocks) - n_pairs < 2:
        raise ValueError(
            f"{len(blocks)} blocks over {n_pairs} server pairs leave no spread within pairs: measure more"
        )
    within = ratios.copy()
    for pair in set(pairs.tolist()):
        within[pairs == pair] -= ratios[pairs == pair].mean()
    sd = math.sqrt(float((within**2).sum()) / (len(blocks) - n_pairs))
    units = ratios if n_pairs == 1 else np.array(pair_means(blocks))
    figures = aa_statistics(units, unfit_alpha=unfit_alpha, tolerated_offset_pct=tolerated_offset_pct, seed=seed)
    low, high, p, fit = float(figures.low), float(figures.high), float(figures.p_value), bool(figures.fit)
    interval = f"[{percent(low):+.2f}, {percent(high):+.2f}]"
    text = f"two equal servers differ by {percent(float(units.mean())):+.2f} % {interval}"
    if not fit:
        reason = f"{text}, more than the tolerated {tolerated_offset_pct:g} % (p = {p:.3g}): unfit to tell A from B"
    elif len(units) < least:
        reason = f"{text} over {len(units)} server pairs, too few to tell an unfit host"
    elif low > 0 or high < 0:
        reason = (
            f"{text}: a steady offset within the tolerated {tolerated_offset_pct:g} %, held against the candidate"
        )
    else:
        reason = f"{text}: no difference shown"
    return AAResult(
        n_blocks=len(blocks),
        n_pairs=n_pairs,
        mean=float(units.mean()),
        sd=sd,
        low=low,
        high=high,
        p_value=p,
        unfit_alpha=unfit_alpha,
        tolerated_offset_pct=tolerated_offset_pct,
        alpha=design.alpha,
        power=design.power,
        planned_blocks=design.max_blocks,
        interval_level=design.interval_levels[-1],
        fit=fit,
        reason=reason,
    )
