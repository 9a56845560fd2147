"""Planned looks: alpha spending, boundaries, and a sign-flip test that stays exact over several looks.

The spending function says how much of alpha may be used up by each look; what a look cannot use, because sign-flip
p-values come in steps of 2**-n, goes over to the next. The critical value of each look is taken from the joint
sign-flip distribution of the statistics of all looks so far, given the sizes of the log-ratios, so that under the
null P(accept at look 1 or 2 or ... k) <= spent(k) exactly, for any distribution of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from optimizer.engine.abtest.resampling import RELATIVE_TIE

Floats = NDArray[np.float64]
SpendingName = Literal["pocock", "obrien-fleming"]
EXACT_BLOCKS = 20  # 2**20 sign vectors, 8 MB and about 20 ms for one campaign
DRAWS = 2**15


def spending(name: SpendingName, alpha: float, fraction: float) -> float:
    """One-sided alpha spent when `fraction` of the planned blocks is in (Lan & DeMets 1983).

    pocock: alpha ln(1 + (e-1) t). obrien-fleming: 2 (1 - Phi(z(1-alpha/2) / sqrt t)).
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"an information fraction lies in (0, 1], not {fraction}")
    if name == "pocock":
        return alpha * math.log1p((math.e - 1) * fraction)
    if name == "obrien-fleming":
        return float(2 * special.ndtr(special.ndtri(alpha / 2) / math.sqrt(fraction)))
    raise ValueError(f"unknown spending function {name!r}: pocock or obrien-fleming")


@lru_cache(maxsize=64)
def normal_boundaries(fractions: tuple[float, ...], spent: tuple[float, ...]) -> tuple[float, ...]:
    """Critical z values of each look for cumulative one-sided `spent`, for normal statistics.

    By recursive integration over the score process, whose increments are independent N(0, t_k - t_{k-1})
    (Armitage, McPherson & Rowe 1969; Jennison & Turnbull, *Group Sequential Methods*, ch. 19).
    They give the levels of the repeated confidence intervals.
    """
    points = 1_201
    grid: Floats | None = None
    mass: Floats | None = None  # density at the grid points times the integration weight
    bounds: list[float] = []
    before_t = before_spent = 0.0
    for t, total in zip(fractions, spent, strict=True):
        step, share = math.sqrt(t - before_t), total - before_spent
        if grid is None or mass is None:
            score = -step * float(special.ndtri(share))
        else:
            g, m = grid, mass

            def excess(bound: float, g: Floats = g, m: Floats = m, step: float = step, share: float = share) -> float:
                return float(special.ndtr((g - bound) / step) @ m) - share

            score = float(optimize.brentq(excess, -10.0, 10.0, xtol=1e-10))
        bounds.append(score / math.sqrt(t))
        new = np.linspace(-8.0 * math.sqrt(t), score, points)
        if grid is None or mass is None:
            density = np.exp(-0.5 * (new / step) ** 2) / (step * math.sqrt(2 * math.pi))
        else:
            kernel = np.exp(-0.5 * ((new[:, None] - grid[None, :]) / step) ** 2) / (step * math.sqrt(2 * math.pi))
            density = kernel @ mass
        weight = np.ones(points)
        weight[1:-1:2], weight[2:-1:2] = 4.0, 2.0  # Simpson's rule
        grid, mass = new, density * weight * (new[1] - new[0]) / 3.0
        before_t, before_spent = t, total
    return tuple(bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialDesign:
    """How the discovery A/B is run: fixed before the first block, kept with the evidence.

    looks: total number of blocks at each planned look, increasing, at most four looks.
    alpha: one-sided error over all looks together. power: the power the minimum detectable effect is stated at.
    min_gain_pct: the lower bound must exceed this (and any offset that the A/A has shown).
    worthwhile_gain_pct: a gain below this is not worth having: once the upper bound is below it, stop with REJECT.
    futility_power: stop with INCONCLUSIVE when the conditional power falls below this. Both are non-binding: the
        type I error does not count on their being obeyed.
    Raises ValueError for a design that can never accept: with n blocks no sign-flip p-value is below 2**-n.

    The default spends by Pocock: look 1 (6 of 20 blocks) may use 0.0208 >= 1/64, so that a large gain is accepted
    at once. O'Brien-Fleming would have 0.0003 to spend there, out of reach of six blocks.
    """

    looks: tuple[int, ...] = (6, 10, 14, 20)
    alpha: float = 0.05
    spending: SpendingName = "pocock"
    power: float = 0.8
    min_gain_pct: float = 0.0
    worthwhile_gain_pct: float = 1.0
    futility_power: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.looks) <= 4 or any(b <= a for a, b in zip((1, *self.looks), self.looks, strict=False)):
            raise ValueError(
                f"a design has one to four looks at increasing numbers of blocks (>= 2), not {self.looks}"
            )
        if not 0 < self.alpha < 0.5:
            raise ValueError(f"alpha is one-sided and lies between 0 and 0.5, not {self.alpha}")
        if not 0.5 <= self.power < 1:
            raise ValueError(f"power lies in [0.5, 1), not {self.power}")
        if not 0 <= self.futility_power < self.power:
            raise ValueError(f"futility_power lies in [0, power), not {self.futility_power}")
        if self.min_gain_pct < 0 or self.worthwhile_gain_pct < self.min_gain_pct:
            raise ValueError("needs 0 <= min_gain_pct <= worthwhile_gain_pct")
        spending(self.spending, self.alpha, 1.0)
        if self.first_reachable_look is None:
            raise ValueError(
                f"no look can accept: the last, with {self.looks[-1]} blocks, has p >= 2**-{self.looks[-1]} = "
                f"{2.0 ** -self.looks[-1]:.3g} > alpha = {self.alpha:g}; plan more blocks"
            )

    @property
    def max_blocks(self) -> int:
        return self.looks[-1]

    @property
    def spent(self) -> tuple[float, ...]:
        """Cumulative one-sided alpha by look."""
        return tuple(spending(self.spending, self.alpha, n / self.max_blocks) for n in self.looks)

    @property
    def first_reachable_look(self) -> int | None:
        """Index (from 0) of the first look that can accept at all."""
        return next((i for i, (n, a) in enumerate(zip(self.looks, self.spent, strict=True)) if 2.0**-n <= a), None)

    @property
    def z_bounds(self) -> tuple[float, ...]:
        """Critical values of the looks for normal statistics."""
        return normal_boundaries(tuple(n / self.max_blocks for n in self.looks), self.spent)

    @property
    def interval_levels(self) -> tuple[float, ...]:
        """One-sided level of the repeated confidence interval of each look.

        All looks' intervals together hold the true gain with 1 - 2 alpha (Jennison & Turnbull 1989), so an interval
        shown at the moment of stopping is not flattered by having stopped.
        """
        return tuple(float(special.ndtr(-z)) for z in self.z_bounds)

    def look_of(self, n_blocks: int) -> int:
        """Index of the look planned at exactly n_blocks; ValueError between looks: no peeking."""
        if n_blocks not in self.looks:
            raise ValueError(f"no look is planned at {n_blocks} blocks, only at {self.looks}: no peeking in between")
        return self.looks.index(n_blocks)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"looks": list(self.looks)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SequentialDesign:
        return cls(**{**data, "looks": tuple(int(n) for n in data["looks"])})


def _sign_sums(values: Floats) -> Floats:
    """Sums of values over all sign vectors, shape (C, m) -> (C, 2**m); all plus comes first."""
    sums = np.zeros((len(values), 1))
    for i in range(values.shape[1]):
        v = values[:, i : i + 1]
        sums = np.stack([sums + v, sums - v], axis=2).reshape(len(values), -1)
    return sums


@lru_cache(maxsize=8)
def _sign_draws(n: int, draws: int, seed: int) -> Floats:
    signs: Floats = np.random.default_rng(seed).integers(0, 2, size=(draws, n)).astype(np.float64) * 2.0 - 1.0
    signs[0] = 1.0  # the observed assignment is one of the draws: this keeps the test valid for any number of draws
    signs.setflags(write=False)
    return signs


def sequential_pvalues(
    values: ArrayLike,
    *,
    looks: Sequence[int],
    spent: Sequence[float],
    exact_blocks: int = EXACT_BLOCKS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """Sequential one-sided sign-flip p-values at the last of `looks`; shape (..., n) -> (...).

    p = P(some earlier look crossed its boundary, or the sum at this look is at least the observed one), over all sign
    vectors. The look accepts when p <= spent[-1]. n = looks[-1]; exact for n <= exact_blocks, else `draws` random
    sign vectors with the observed one among them (valid as a test: the draws are exchangeable under the null;
    Hemerik & Goeman 2018).
    """
    x = np.asarray(values, dtype=np.float64)
    if len(looks) != len(spent) or not looks or x.shape[-1] != looks[-1]:
        raise ValueError(
            f"{x.shape[-1]} blocks, looks at {tuple(looks)}, {len(spent)} spending values: they disagree"
        )
    if not np.isfinite(x).all():
        raise ValueError("log-ratios must be finite")
    flat = x.reshape(-1, x.shape[-1])
    exact = x.shape[-1] <= exact_blocks
    vectors = 2 ** x.shape[-1] if exact else draws
    rows = max(1, (1 << 22) // vectors)
    parts = [
        _sequential_rows(flat[i : i + rows], looks, spent, None if exact else _sign_draws(x.shape[-1], draws, seed))
        for i in range(0, len(flat), rows)
    ]
    return np.concatenate(parts).reshape(x.shape[:-1])


def _sequential_rows(x: Floats, looks: Sequence[int], spent: Sequence[float], draws: Floats | None) -> Floats:
    count = len(x)
    tie = RELATIVE_TIE * np.abs(x).sum(axis=1, keepdims=True)
    sums: Floats = np.zeros((count, 1 if draws is None else len(draws)))
    crossed = np.zeros(sums.shape, dtype=bool)
    start = 0
    for look, (n, share) in enumerate(zip(looks, spent, strict=True)):
        new = x[:, start:n]
        if draws is None:
            added = _sign_sums(new)
            sums = (sums[:, :, None] + added[:, None, :]).reshape(count, -1)
            crossed = np.repeat(crossed, added.shape[1], axis=1)
        else:
            sums = sums + new @ draws[:, start:n].T
        start = n
        vectors = sums.shape[1]
        if look == len(looks) - 1:
            observed = sums[:, :1]  # the all-plus vector
            p: Floats = (crossed | (sums >= observed - tie)).mean(axis=1)
            return p
        # at most `allowed` sign vectors may have crossed by now; those strictly above the next one in line do
        allowed = math.floor(share * vectors * (1 + RELATIVE_TIE))
        open_sums = np.where(crossed, -np.inf, sums)
        room = allowed - crossed.sum(axis=1)
        ordered = -np.partition(-open_sums, min(allowed, vectors - 1), axis=1)[:, : allowed + 1]
        ordered = -np.sort(-ordered, axis=1)
        threshold = ordered[np.arange(count), np.clip(room, 0, ordered.shape[1] - 1)][:, None]
        crossed |= open_sums > threshold + tie
    raise AssertionError("unreachable: looks is never empty")
