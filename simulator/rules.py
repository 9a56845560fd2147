"""Rules of acceptance, for thousands of simulated campaigns at once: those in use elsewhere, and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from optimizer.engine.abtest.aa import aa_statistics, detectable_effect, spread_upper_limit
from optimizer.engine.abtest.confirmation import ConfirmationDesign, confirmation_statistics
from optimizer.engine.abtest.discovery import look_statistics
from optimizer.engine.abtest.sequential import SequentialDesign
from simulator.noise import Floats, NoiseModel

OUTCOMES = ("accept", "reject", "inconclusive", "infra_error", "not_confirmed")
ACCEPT, REJECT, INCONCLUSIVE, INFRA_ERROR, NOT_CONFIRMED = range(len(OUTCOMES))
# The engine's 2**20 exact sign vectors and 9,999 resamples would take minutes for thousands of campaigns: here random
# draws take their place beyond 10 blocks, which is as valid a test, if not the same one to the last digit.
EXACT_BLOCKS, DRAWS, RESAMPLES = 10, 2_047, 1_999


@dataclass(frozen=True, slots=True)
class RuleResult:
    """By campaign: outcome (index into OUTCOMES), runs measured, servers started, and the gain that is published.

    gain, low, high: log-ratios, NaN where nothing is published. discovered: accepted before the confirmation.
    """

    outcome: NDArray[np.int64]
    runs: Floats
    starts: Floats
    gain: Floats
    low: Floats
    high: Floats
    discovered: NDArray[np.bool_]


Rule = Callable[[NoiseModel, float, int, np.random.Generator], RuleResult]


def block_log_ratios(slots: Floats, orders: NDArray[np.int64]) -> Floats:
    """Log-ratios of blocks without gain: slots (..., 4 n) in order of running, orders (..., n) 1 for ABBA, -1 for
    BAAB.
    """
    runs = slots.reshape(*slots.shape[:-1], -1, 4)
    ratios: Floats = orders * (runs[..., 1] + runs[..., 2] - runs[..., 0] - runs[..., 3]) / 2
    return ratios


def random_blocks(
    noise: NoiseModel, rng: np.random.Generator, campaigns: int, blocks: int, *, warm_up: int = 0
) -> Floats:
    """Log-ratios of one session's blocks in random order, without gain and luck, shape (campaigns, blocks).

    warm_up: so many runs from the start of the session are thrown away.
    """
    orders = rng.integers(0, 2, (campaigns, blocks)) * 2 - 1
    return block_log_ratios(noise.slots(rng, campaigns, warm_up + 4 * blocks)[:, warm_up:], orders)


def _simple(
    accept: NDArray[np.bool_], gain: Floats, low: Floats, high: Floats, *, runs: int, starts: int
) -> RuleResult:
    n = len(accept)
    nan = np.full(n, np.nan)
    return RuleResult(
        np.where(accept, ACCEPT, REJECT),
        np.full(n, float(runs)),
        np.full(n, float(starts)),
        np.where(accept, gain, nan),
        np.where(accept, low, nan),
        np.where(accept, high, nan),
        accept,
    )


def stored_baseline(noise: NoiseModel, gain: float, n: int, rng: np.random.Generator) -> RuleResult:
    """One patched run against a stored baseline (mean of five runs of an earlier session): accept above 1 %."""
    baseline = noise.slots(rng, n, 5).mean(axis=1) + noise.server_luck(rng, (n,))
    patched = noise.slots(rng, n, 1)[:, 0] + noise.server_luck(rng, (n,)) + gain
    estimate = patched - baseline
    nan = np.full(n, np.nan)
    return _simple(estimate > np.log1p(0.01), estimate, nan, nan, runs=1, starts=1)


def five_and_five(noise: NoiseModel, gain: float, n: int, rng: np.random.Generator) -> RuleResult:
    """Five runs of A, then five of B, as ten independent samples: accept at one-sided Welch p <= 0.05."""
    slots = noise.slots(rng, n, 10)
    luck = noise.server_luck(rng, (n, 2))
    a, b = slots[:, :5] + luck[:, :1], slots[:, 5:] + luck[:, 1:] + gain
    p = np.asarray(stats.ttest_ind(b, a, axis=1, equal_var=False, alternative="greater").pvalue)
    nan = np.full(n, np.nan)
    return _simple(p <= 0.05, b.mean(axis=1) - a.mean(axis=1), nan, nan, runs=10, starts=2)


def ten_blocks(noise: NoiseModel, gain: float, n: int, rng: np.random.Generator) -> RuleResult:
    """Ten random ABBA blocks on one pair of servers: accept when the one-sided 95 % Student bound is above 0."""
    luck = noise.server_luck(rng, (n, 2))
    x = random_blocks(noise, rng, n, 10) + gain + (luck[:, 1:] - luck[:, :1])
    half = stats.t.ppf(0.95, 9) * x.std(axis=1, ddof=1) / np.sqrt(10)
    mean = x.mean(axis=1)
    return _simple(mean - half > 0, mean, mean - half, mean + half, runs=40, starts=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Our rule: A/A, planned looks, confirmation over restarted pairs; the engine's own statistics throughout.

    literal_floor: accept in discovery only when the lower bound exceeds max(MDE, noise floor), the rule that ADR 0004
    turned down; for comparison. warm_up_runs are thrown away on each server after its start, and counted as cost.
    Guards and engagement are taken as passed.
    """

    design: SequentialDesign = field(default_factory=SequentialDesign)
    confirmation: ConfirmationDesign = field(default_factory=ConfirmationDesign)
    aa_blocks: int = 6
    warm_up_runs: int = 5
    literal_floor: bool = False

    def __call__(self, noise: NoiseModel, gain: float, n: int, rng: np.random.Generator) -> RuleResult:
        d = self.design
        luck = noise.server_luck(rng, (n, 3))  # A, its twin in the A/A, and B that takes the twin's place
        aa = random_blocks(noise, rng, n, self.aa_blocks, warm_up=self.warm_up_runs) + (luck[:, 1:2] - luck[:, :1])
        checked = aa_statistics(aa, resamples=RESAMPLES)
        sd = aa.std(axis=1, ddof=1)
        outcome = np.where(checked.fit, INCONCLUSIVE, INFRA_ERROR)
        runs, starts = np.full(n, 4.0 * self.aa_blocks), np.full(n, 2.0)
        active = checked.fit.copy()
        starts[active] += 1
        blocks = (
            random_blocks(noise, rng, n, d.max_blocks, warm_up=self.warm_up_runs) + gain + (luck[:, 2:] - luck[:, :1])
        )
        discovered = np.zeros(n, dtype=bool)
        factor = spread_upper_limit(1.0, self.aa_blocks)
        mde = sd * factor * detectable_effect(1.0, d.max_blocks, level=d.interval_levels[-1], power=d.power)
        for look, count in enumerate(d.looks):
            rows = np.flatnonzero(active)
            if not len(rows):
                break
            runs[rows] += 4.0 * (count - (d.looks[look - 1] if look else 0))
            floor = stats.t.ppf(1 - d.alpha, self.aa_blocks - 1) * sd[rows] / np.sqrt(count)
            s = look_statistics(
                d,
                look,
                blocks[rows, :count],
                offset=checked.offset[rows],
                noise_floor=floor,
                exact_blocks=EXACT_BLOCKS,
                draws=DRAWS,
                resamples=RESAMPLES,
            )
            accept = s.accept & (s.low > np.maximum(mde[rows], floor)) if self.literal_floor else s.accept
            stop = s.no_gain | s.futile if look < len(d.looks) - 1 else np.ones(len(rows), dtype=bool)
            outcome[rows[s.no_gain & ~accept]] = REJECT
            discovered[rows[accept]] = True
            active[rows[accept | stop]] = False
        return self._confirm(noise, gain, rng, outcome, runs, starts, discovered)

    def _confirm(
        self,
        noise: NoiseModel,
        gain: float,
        rng: np.random.Generator,
        outcome: NDArray[np.int64],
        runs: Floats,
        starts: Floats,
        discovered: NDArray[np.bool_],
    ) -> RuleResult:
        c = self.confirmation
        n, rows = len(outcome), np.flatnonzero(discovered)
        published, low, high = (np.full(n, np.nan) for _ in range(3))
        if len(rows):
            luck = noise.server_luck(rng, (len(rows), c.pairs, 2))
            skip = self.warm_up_runs
            within = np.stack(
                [
                    random_blocks(noise, rng, len(rows), c.blocks_per_pair, warm_up=skip).mean(axis=1)
                    for _ in range(c.pairs)
                ],
                axis=1,
            )
            means = within + gain + luck[..., 1] - luck[..., 0]
            _, lo, hi, accept = confirmation_statistics(c, means, resamples=RESAMPLES)
            outcome[rows] = np.where(accept, ACCEPT, NOT_CONFIRMED)
            # pairs are measured one by one, and no more once too many have shown no gain
            losses = np.cumsum(means <= 0, axis=1)
            lost = 2.0 ** (losses - c.pairs) * c.credit > c.alpha_here
            pairs = np.where(lost.any(axis=1), lost.argmax(axis=1) + 1, c.pairs)
            runs[rows] += 4.0 * c.blocks_per_pair * pairs
            starts[rows] += 2.0 * pairs
            kept = rows[accept]
            published[kept], low[kept], high[kept] = means[accept].mean(axis=1), lo[accept], hi[accept]
        return RuleResult(outcome, runs + self.warm_up_runs * starts, starts, published, low, high, discovered)


RULES: Mapping[str, Rule] = {
    "stored-baseline-1%": stored_baseline,
    "five-and-five": five_and_five,
    "ten-blocks": ten_blocks,
    "gate": Gate(),
    "gate-cold": Gate(warm_up_runs=0),
    "gate-literal-floor": Gate(literal_floor=True),
}
