"""Simulated campaigns: how often a rule is wrong, and how often it sees what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from optimizer.engine.abtest.aa import aa_statistics
from optimizer.engine.abtest.blocks import from_percent, percent
from simulator.noise import NOISE, NoiseModel
from simulator.rules import ACCEPT, OUTCOMES, RESAMPLES, RULES, Rule, random_blocks

CHUNK = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """accept_rate is the false-accept rate when true_gain_pct is 0 and the power otherwise.

    low, high: two-sided 95 % Clopper-Pearson interval of it. discovery_rate: accepted before the confirmation.
    published_gain_pct: mean published gain of the accepted. coverage: share of published intervals that hold the
    truth.
    """

    rule: str
    noise: str
    true_gain_pct: float
    campaigns: int
    accepted: int
    accept_rate: float
    low: float
    high: float
    discovery_rate: float
    outcomes: dict[str, int]
    mean_runs: float
    mean_starts: float
    published_gain_pct: float | None
    coverage: float | None

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a proportion (Clopper & Pearson 1934)."""
    ci = stats.binomtest(successes, trials).proportion_ci(confidence_level=confidence, method="exact")
    return float(ci.low), float(ci.high)


def simulate_campaigns(
    rule: Rule | str,
    noise: NoiseModel | str,
    true_gain_pct: float,
    n: int,
    seed: int,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Run n independent campaigns of a rule (or its name in RULES) under a noise (or its name in NOISE).

    Deterministic from the seed: campaigns come in chunks of 2,000, each with a stream of its own. progress(done, n)
    is called after each; raise from it to cancel.
    """
    if n < 1:
        raise ValueError(f"at least one campaign, not {n}")
    decide, rule_name = (RULES[rule], rule) if isinstance(rule, str) else (rule, getattr(rule, "__name__", "custom"))
    model = NOISE[noise] if isinstance(noise, str) else noise
    gain = from_percent(true_gain_pct)
    streams = np.random.SeedSequence(seed).spawn((n + CHUNK - 1) // CHUNK)
    parts = []
    for i, stream in enumerate(streams):
        size = min(CHUNK, n - i * CHUNK)
        parts.append(decide(model, gain, size, np.random.default_rng(stream)))
        if progress is not None:
            progress(i * CHUNK + size, n)
    outcome = np.concatenate([p.outcome for p in parts])
    published, low, high = (np.concatenate([getattr(p, k) for p in parts]) for k in ("gain", "low", "high"))
    accepted = int((outcome == ACCEPT).sum())
    known = np.isfinite(low)
    bounds = clopper_pearson(accepted, n)
    return SimulationResult(
        rule=rule_name,
        noise=model.name,
        true_gain_pct=true_gain_pct,
        campaigns=n,
        accepted=accepted,
        accept_rate=accepted / n,
        low=bounds[0],
        high=bounds[1],
        discovery_rate=float(np.concatenate([p.discovered for p in parts]).mean()),
        outcomes={name: int((outcome == i).sum()) for i, name in enumerate(OUTCOMES) if (outcome == i).any()},
        mean_runs=float(np.concatenate([p.runs for p in parts]).mean()),
        mean_starts=float(np.concatenate([p.starts for p in parts]).mean()),
        published_gain_pct=percent(float(published[np.isfinite(published)].mean())) if accepted else None,
        coverage=float(((low <= gain) & (gain <= high))[known].mean()) if known.any() else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AASimulation:
    """How often an A/A run of two equal servers is called unfit, with a 95 % Clopper-Pearson interval."""

    noise: str
    blocks: int
    tolerated_offset_pct: float
    campaigns: int
    unfit_rate: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def simulate_aa(
    noise: NoiseModel | str,
    n: int,
    seed: int,
    *,
    blocks: int = 6,
    warm_up: int = 5,
    tolerated_offset_pct: float = 0.0,
) -> AASimulation:
    """Simulate A/A runs. Without server luck each unfit is a false alarm: the rate is to stay <= 5 %."""
    model = NOISE[noise] if isinstance(noise, str) else noise
    rng = np.random.default_rng(seed)
    luck = model.server_luck(rng, (n, 2))
    ratios = random_blocks(model, rng, n, blocks, warm_up=warm_up) + (luck[:, 1:] - luck[:, :1])
    fit = aa_statistics(ratios, tolerated_offset_pct=tolerated_offset_pct, resamples=RESAMPLES).fit
    unfit = int((~fit).sum())
    low, high = clopper_pearson(unfit, n)
    return AASimulation(
        noise=model.name,
        blocks=blocks,
        tolerated_offset_pct=tolerated_offset_pct,
        campaigns=n,
        unfit_rate=unfit / n,
        low=low,
        high=high,
    )
