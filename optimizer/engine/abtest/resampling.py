"""Exact sign-flip tests and small-sample BCa intervals, vectorised over a leading axis.

Every function takes values of shape (..., n), n units of evidence (log-ratios of blocks, or means of server pairs),
and works on the last axis, so that the simulator calibrates the very code that decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Floats = NDArray[np.float64]
EXACT_LIMIT = 16  # 2**16 sign vectors at most for one fixed-size test
DRAWS = 99_999
# Sums that differ by rounding only are ties, and a tie counts as "at least as extreme".
RELATIVE_TIE = 1e-12


def sign_flip_pvalue(values: ArrayLike, *, seed: int = 0, exact_limit: int = EXACT_LIMIT) -> float:
    """One-sided p-value of "the mean is above 0" by flipping signs; exact (a multiple of 2**-n) for n <= exact_limit.

    Above that, Monte Carlo with the observed assignment counted among the draws (Phipson & Smyth 2010), seeded.
    ValueError without values: no evidence is not a test.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"a sign-flip test needs a flat list of at least one value, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("a sign-flip test needs finite values")
    if x.size == 1:  # scipy wants two
        return 0.5 if x[0] > 0 else 1.0

    def mean(sample: Any, axis: int) -> Any:
        return np.mean(sample, axis=axis)

    exact = x.size <= exact_limit
    result = stats.permutation_test(
        (x,),
        mean,
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=2**x.size if exact else DRAWS,
        batch=4096,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def expanded_level(level: float, n: int) -> float:
    """The one-sided level at which to read a bootstrap distribution of n units so that it covers as a t interval
    does.

    A bootstrap interval of few units is too short twice over: its spread has the factor sqrt((n-1)/n), and normal
    quantiles stand where t quantiles belong. Phi(-sqrt(n/(n-1)) t(level, n-1)) undoes both: Hesterberg, "What
    Teachers Should Know About the Bootstrap", The American Statistician 69 (2015) 371-386, section 5.3.
    """
    if n < 2:
        raise ValueError("an interval needs at least two units of evidence")
    if not 0 < level < 0.5:
        raise ValueError(f"a one-sided level lies between 0 and 0.5, not {level}")
    return float(special.ndtr(math.sqrt(n / (n - 1)) * stats.t.ppf(level, n - 1)))


@lru_cache(maxsize=64)
def _weights(n: int, resamples: int, seed: int) -> Floats:
    """Bootstrap weights, shape (resamples, n): how often each unit was drawn, over n."""
    rng = np.random.default_rng(seed)
    weights: Floats = rng.multinomial(n, np.full(n, 1.0 / n), size=resamples).astype(np.float64) / n
    weights.setflags(write=False)
    return weights


def bca_interval(
    values: ArrayLike, *, level: float, resamples: int = 9_999, seed: int = 0, expand: bool = True
) -> tuple[Floats, Floats]:
    """BCa bootstrap interval of the mean over the last axis: two arrays of shape values.shape[:-1].

    level: one-sided error of each end (0.05 gives a two-sided 90 % interval).
    expand: read at `expanded_level(level, n)`; False gives the textbook BCa (Efron 1987), as `scipy.stats.bootstrap`.
    Units that are all equal give an interval of width 0. ValueError for fewer than two units.
    """
    x = np.asarray(values, dtype=np.float64)
    n = x.shape[-1]
    if n < 2:
        raise ValueError("an interval needs at least two units of evidence")
    flat = x.reshape(-1, n)
    mean = flat.mean(axis=1)
    centred = flat - mean[:, None]
    alpha = expanded_level(level, n) if expand else level
    boot = np.sort(centred @ _weights(n, resamples, seed).T, axis=1)  # bootstrap means minus the mean, (C, resamples)
    # bias: the share of resamples below the estimate, ties by half
    tie = RELATIVE_TIE * np.abs(centred).max(axis=1, keepdims=True)
    below = (boot < -tie).mean(axis=1) + 0.5 * (np.abs(boot) <= tie).mean(axis=1)
    z0 = special.ndtri(np.clip(below, 0.5 / resamples, 1 - 0.5 / resamples))
    # acceleration by the jackknife; for a mean its deviations are the centred values over (n-1)
    square = (centred**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        acceleration = np.where(square > 0, (centred**3).sum(axis=1) / (6.0 * square**1.5), 0.0)
    acceleration = np.nan_to_num(acceleration)

    def end(z: float) -> Floats:
        shifted = z0 + z
        q = special.ndtr(z0 + shifted / (1.0 - acceleration * shifted))
        # linear between order statistics, as numpy's default quantile
        position = np.clip(q, 0.0, 1.0) * (resamples - 1)
        lower = np.floor(position).astype(np.int64)
        upper = np.minimum(lower + 1, resamples - 1)
        rows = np.arange(len(flat))
        part = position - lower
        result: Floats = mean + boot[rows, lower] * (1 - part) + boot[rows, upper] * part
        return result

    z = float(special.ndtri(alpha))
    low, high = end(z), end(-z)
    shape = x.shape[:-1]
    return low.reshape(shape), high.reshape(shape)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979): reject where it is <= alpha."""
    m = len(pvalues)
    for p in pvalues:
        if not 0 <= p <= 1:
            raise ValueError(f"a p-value lies between 0 and 1, not {p}")
    adjusted = [1.0] * m
    running = 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: pvalues[i])):
        running = max(running, min(1.0, (m - rank) * pvalues[i]))
        adjusted[i] = running
    return adjusted
