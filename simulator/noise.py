"""Noise as serving benchmarks have it, as log deviations of throughput over consecutive runs.

A session is the life of two servers next to each other. `slots` is what the host does over time, whichever server
runs; `luck` is what a server is stuck with from its start to its end. Everything is in natural logarithms: 0.01 is
1 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Requests per second of consecutive runs on a server that had just started.
WARM_UP_RAMP = (63.9, 133.9, 139.0, 137.3, 117.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """A sum of mechanisms; 0 turns one off.

    white: SD of independent log-normal noise per run. tail_df: if above 0, Student's t of these degrees of freedom
    takes its place, scaled so that the middle half is as wide as the normal's.
    ar, ar_sd: AR(1) coefficient and stationary SD. drift: SD of a random linear trend, over drift_runs runs.
    slow, switch: a bimodal host, `slow` lower in its slow state, which it enters and leaves with probability
    `switch`.
    ramp: the first runs of a session follow WARM_UP_RAMP. luck: SD of the effect each start gives a server.
    luck_slow: a bimodal effect, every second start (at random) is this much slower.
    """

    name: str
    white: float = 0.0
    tail_df: float = 0.0
    ar: float = 0.0
    ar_sd: float = 0.0
    drift: float = 0.0
    drift_runs: int = 40
    slow: float = 0.0
    switch: float = 0.05
    ramp: bool = False
    luck: float = 0.0
    luck_slow: float = 0.0

    def __post_init__(self) -> None:
        if not -1 < self.ar < 1:
            raise ValueError(f"the AR(1) coefficient lies between -1 and 1, not {self.ar}")
        if not 0 < self.switch <= 1 or self.tail_df < 0 or self.drift_runs < 1:
            raise ValueError("needs 0 < switch <= 1, tail_df >= 0, drift_runs >= 1")
        if min(self.white, self.ar_sd, self.drift, self.slow, self.luck, self.luck_slow) < 0:
            raise ValueError("spreads cannot be negative")

    def slots(self, rng: np.random.Generator, campaigns: int, runs: int) -> Floats:
        """Log deviations of `runs` consecutive runs of one session, shape (campaigns, runs)."""
        shape = (campaigns, runs)
        x: Floats = np.zeros(shape)
        if self.white and self.tail_df:
            # 0.6745 is the normal's upper quartile
            quartile = float(np.quantile(np.random.default_rng(0).standard_t(self.tail_df, 200_001), 0.75))
            x += rng.standard_t(self.tail_df, shape) * self.white * 0.6745 / quartile
        elif self.white:
            x += rng.normal(0.0, self.white, shape)
        if self.ar_sd:
            state = rng.normal(0.0, self.ar_sd, campaigns)
            step = self.ar_sd * math.sqrt(1 - self.ar**2)
            for t in range(runs):
                x[:, t] += state
                state = self.ar * state + rng.normal(0.0, step, campaigns)
        if self.drift:
            x += rng.normal(0.0, self.drift, (campaigns, 1)) * np.arange(runs) / self.drift_runs
        if self.slow:
            switches = rng.random(shape) < self.switch
            switches[:, 0] = rng.random(campaigns) < 0.5
            x -= self.slow * (np.cumsum(switches, axis=1) % 2)
        if self.ramp:
            ramp = np.log(np.array(WARM_UP_RAMP) / WARM_UP_RAMP[2])[:runs]
            x[:, : len(ramp)] += ramp
        return x

    def server_luck(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Log effect of each server start."""
        effect: Floats = rng.normal(0.0, self.luck, shape) if self.luck else np.zeros(shape)
        if self.luck_slow:
            effect = effect - self.luck_slow * (rng.random(shape) < 0.5)
        return effect


NOISE: Mapping[str, NoiseModel] = {
    m.name: m
    for m in (
        NoiseModel(name="lognormal-1%", white=0.01),
        NoiseModel(name="lognormal-2%", white=0.02),
        NoiseModel(name="heavy-tails", white=0.01, tail_df=2.5),
        NoiseModel(name="ar1", white=0.005, ar=0.9, ar_sd=0.02),
        NoiseModel(name="drift", white=0.01, drift=0.05),
        NoiseModel(name="bimodal-host", white=0.01, slow=0.06),
        NoiseModel(name="warm-up", white=0.01, ramp=True),
        NoiseModel(name="server-luck", white=0.01, luck=0.01),
        NoiseModel(name="bimodal-luck", white=0.005, luck_slow=0.04),
        NoiseModel(name="everything", white=0.01, tail_df=3.0, ar=0.8, ar_sd=0.01, drift=0.02, ramp=True, luck=0.007),
    )
}
