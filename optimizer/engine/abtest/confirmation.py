"""The confirmation: fresh blocks on freshly started pairs of servers. Only its number is published.

Why pairs are the unit: two servers that run the same code differ for as long as they live (memory layout, cores, a
bad neighbour), so all blocks of one pair share one draw of luck, and any number of them cannot tell it from a gain.
Over pairs that are started anew, in an order that a coin chose (`plan_pairs`), luck falls on B as often as on A,
and the sign-flip test over pair means is exact for any noise. Why fresh: the winner of a comparison is also the
luckiest of it (regression to the mean); its discovery number is not used again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as st

from optimizer.engine.abtest.amdahl import implausible
from optimizer.engine.abtest.blocks import Block, check_complete, from_percent, pair_means, percent
from optimizer.engine.abtest.decision import Decision, Outcome
from optimizer.engine.abtest.discovery import REQUIRED_GUARDS
from optimizer.engine.abtest.engagement import EngagementProof, NotEngaged
from optimizer.engine.abtest.guards import GuardResult
from optimizer.engine.abtest.resampling import bca_interval
from optimizer.engine.abtest.sequential import sequential_pvalues

Floats = NDArray[np.float64]


def attempt_alpha(alpha: float, attempt: int) -> float:
    """What the attempt-th confirmation of a campaign (from 1) may spend, so that all together stay below alpha.

    The largest powers of 1/2 that fit, since that is what a sign-flip test can spend: of 0.05 the first gets 1/32,
    the second 1/64, the third 1/512.
    """
    if attempt < 1:
        raise ValueError(f"attempts count from 1, not {attempt}")
    left, share = alpha, 0.0
    for _ in range(attempt):
        share = 2.0 ** math.floor(math.log2(left))
        left -= share
        if left <= 0:
            left = share / 2**40  # alpha itself is a sum of powers of 1/2: nothing worth having is left
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationDesign:
    """How a confirmation is run: `pairs` fresh server pairs, `blocks_per_pair` blocks on each.

    alpha: one-sided error of all confirmations of the campaign; attempt: which of them this is (from 1).
    candidates: how many candidates went through an end-to-end discovery in this campaign. When it was only one, its
        discovery pair was one more independent pair that had to come out positive: under the null both together
        happen with probability <= 2**-pairs / 2, which saves a pair. With two or more, luck was chosen from, and
        nothing is saved.
    Raises ValueError for too few pairs to ever accept.
    """

    pairs: int = 5
    blocks_per_pair: int = 3
    alpha: float = 0.05
    attempt: int = 1
    candidates: int = 2
    min_gain_pct: float = 0.0
    interval_level: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.blocks_per_pair < 1 or self.candidates < 1:
            raise ValueError("a confirmation has at least one block per pair, of at least one candidate")
        if not 0 < self.alpha < 0.5 or not 0 < self.interval_level < 0.5 or self.min_gain_pct < 0:
            raise ValueError("alpha and interval_level lie between 0 and 0.5, min_gain_pct is 0 or more")
        if self.pairs < 2 or 2.0**-self.pairs * self.credit > self.alpha_here:
            raise ValueError(
                f"{self.pairs} pairs can never confirm at {self.alpha_here:.4g}; this needs "
                f"{pairs_needed(alpha=self.alpha, attempt=self.attempt, candidates=self.candidates)}"
            )

    @property
    def credit(self) -> float:
        """Probability that luck alone brought a candidate here, at most."""
        return min(1.0, self.candidates / 2)

    @property
    def alpha_here(self) -> float:
        """What this attempt may spend."""
        return attempt_alpha(self.alpha, self.attempt)

    @property
    def n_blocks(self) -> int:
        return self.pairs * self.blocks_per_pair

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConfirmationDesign:
        return cls(**data)


def pairs_needed(*, alpha: float = 0.05, attempt: int = 1, candidates: int = 2) -> int:
    """Fewest server pairs with which a confirmation can accept."""
    return max(2, math.ceil(math.log2(min(1.0, candidates / 2) / attempt_alpha(alpha, attempt)) - 1e-9))


def pair_interval(means: ArrayLike, *, level: float, seed: int = 0, resamples: int = 9_999) -> tuple[Floats, Floats]:
    """Interval of the gain over pair means, shape (..., K): the wider of BCa and Student's t at each end.

    A bootstrap of five values cannot look beyond the smallest and the largest of them, which alone covers 93.75 % at
    best; Student's t can, but trusts normality. With so few units the wider is taken.
    """
    x = np.asarray(means, dtype=np.float64)
    k = x.shape[-1]
    low, high = bca_interval(x, level=level, seed=seed, resamples=resamples)
    half = st.t.ppf(1 - level, k - 1) * x.std(axis=-1, ddof=1) / math.sqrt(k)
    centre = x.mean(axis=-1)
    return np.minimum(low, centre - half), np.maximum(high, centre + half)


def confirmation_statistics(
    design: ConfirmationDesign, means: ArrayLike, *, resamples: int = 9_999
) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """p, low, high, accept for pair means of shape (..., pairs); p includes the credit of the only candidate."""
    x = np.asarray(means, dtype=np.float64)
    p = np.asarray(sequential_pvalues(x, looks=(x.shape[-1],), spent=(design.alpha_here,))) * design.credit
    low, high = pair_interval(x, level=design.interval_level, seed=design.seed, resamples=resamples)
    return p, low, high, (p <= design.alpha_here) & (low > from_percent(design.min_gain_pct))


def can_still_confirm(design: ConfirmationDesign, means: Sequence[float]) -> bool:
    """False once no result of the remaining pairs could make p small enough: each pair at or below 0 doubles p."""
    losses = sum(m <= 0 for m in means)
    return bool(2.0 ** (losses - design.pairs) * design.credit <= design.alpha_here)


def decide_confirmation(
    design: ConfirmationDesign,
    blocks: Sequence[Block],
    amdahl_bound: float,
    *,
    engagement: EngagementProof | NotEngaged,
    guards: Sequence[GuardResult],
    required_guards: Iterable[str] = REQUIRED_GUARDS,
    regime: str = "",
) -> Decision:
    """Decide on the complete confirmation; before that CONTINUE, or REJECT as soon as nothing can save it.

    blocks: numbered from 0, `pair` 0 ... pairs-1, `blocks_per_pair` of each, pair after pair; never the discovery's.
    Accept: sign-flip p over pair means within this attempt's alpha and the interval's lower end above min_gain_pct,
    engaged (prove it for the servers of every pair and give the joined proof), all guards passed, within Amdahl's
    bound.
    """
    check_complete(blocks)
    expected = [i // design.blocks_per_pair for i in range(len(blocks))]
    if [b.pair for b in blocks] != expected or len(blocks) > design.n_blocks:
        raise ValueError(
            f"a confirmation of {design.pairs} pairs measures {design.blocks_per_pair} blocks on each, pair after "
            f"pair; got pairs {[b.pair for b in blocks]}"
        )
    full = len(blocks) // design.blocks_per_pair
    means = pair_means(blocks[: full * design.blocks_per_pair])
    known = {g.name: g for g in guards}
    complete = (
        *guards,
        *(
            GuardResult(name=name, status="unproven", detail=f"{name}: not measured")
            for name in required_guards
            if name not in known
        ),
    )
    figures: dict[str, Any] = {}
    gain = f"{full} of {design.pairs} pairs"
    low = p = math.nan
    accept = False
    if full >= 2:
        p_, low_, high_, accept_ = confirmation_statistics(design, means)
        p, low, high, accept = float(p_), float(low_), float(high_), bool(accept_)
        estimate = math.fsum(means) / len(means)
        figures = {
            "gain_pct": percent(estimate),
            "ci_low_pct": percent(low),
            "ci_high_pct": percent(high),
            "confidence": 1 - 2 * design.interval_level,
            "p_value": p,
        }
        gain = f"{percent(estimate):+.2f} % [{percent(low):+.2f}, {percent(high):+.2f}] over {gain}"
    failed = [g for g in complete if g.status == "failed"]
    unproven = [g for g in complete if g.status == "unproven"]
    done = full == design.pairs
    outcome, reasons = Outcome.CONTINUE, [gain]
    if isinstance(engagement, NotEngaged):
        outcome = Outcome.INFRA_ERROR if engagement.infra or not blocks else Outcome.REJECT
        reasons = [f"no proof that the candidate ran: {engagement.reason}"]
    elif full >= 2 and implausible(percent(low), amdahl_bound):
        outcome = Outcome.QUARANTINE
        reasons.append(f"above the {amdahl_bound * 100:.2f} % that Amdahl's law allows this kernel, beyond the noise")
    elif failed and blocks:
        outcome = Outcome.REJECT
        reasons += [f"guard failed: {g.detail}" for g in failed]
    elif full and not can_still_confirm(design, means):
        outcome = Outcome.REJECT
        reasons.append(
            f"not confirmed: {sum(m <= 0 for m in means)} pairs showed no gain, the rest cannot make up for it"
        )
    elif done and accept and not unproven:
        outcome = Outcome.ACCEPT
        reasons.append(f"confirmed over {design.pairs} restarted pairs, p = {p:.3g} of {design.alpha_here:.3g}")
    elif done and accept:
        outcome = Outcome.INCONCLUSIVE
        reasons += [f"guard unproven: {g.detail}" for g in unproven]
    elif done:
        outcome = Outcome.REJECT
        reasons.append(f"not confirmed: p = {p:.3g} of {design.alpha_here:.3g}, lower bound {percent(low):+.2f} %")
    return Decision(
        outcome=outcome,
        stage="confirmation",
        reasons=tuple(reasons),
        n_blocks=len(blocks),
        n_units=full,
        alpha=design.alpha,
        regime=regime,
        alpha_spent=design.alpha_here if done else 0.0,
        floor_pct=design.min_gain_pct,
        amdahl_bound_pct=amdahl_bound * 100,
        engagement=engagement if isinstance(engagement, EngagementProof) else None,
        guards=complete,
        **figures,
    )
