"""Amdahl's law: what a faster kernel can do for the whole, and which gains are too good to be true."""

from __future__ import annotations

import math


def amdahl_gain(share: float, speedup: float = math.inf) -> float:
    """Throughput gain, as a fraction, when `share` of the time runs `speedup` times as fast: 1/(1-f+f/s) - 1.

    With speedup=inf: the ceiling 1/(1-f) - 1. ValueError outside 0 <= share < 1, speedup > 0.
    """
    if not 0 <= share < 1:
        raise ValueError(f"a share of the time lies in [0, 1), not {share}")
    if not speedup > 0:
        raise ValueError(f"a speed-up is above 0, not {speedup}")
    return 1.0 / (1.0 - share + share / speedup) - 1.0


def implausible(ci_low_pct: float, bound: float) -> bool:
    """Whether a measured gain is above the Amdahl bound (a fraction) by more than its noise: its lower bound is."""
    return ci_low_pct > bound * 100.0
