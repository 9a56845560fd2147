"""Input values for kernel tasks, by style. Shared by the tasks of this folder; holds no task itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from optimizer.engine.tasks.base import Style

BF16 = np.dtype(ml_dtypes.bfloat16)

# Powers of two, so that scaling is exact. Dot-product instructions (and AMX) treat subnormal numbers as zero
# by definition, and so does the vendor library the engine uses: "tiny" values stay small enough to show a
# lost bit yet large enough that products and sums of them are normal numbers, "huge" ones that they are finite.
HUGE = 2.0**40
TINY = 2.0**-40


def values(size: Sequence[int], rng: np.random.Generator, style: Style, *, scale: float = 1.0) -> NDArray[np.float64]:
    """Random values of a style, in float64 (callers round to their dtype).

    normal: standard normal times scale. spikes: the same with one value in 64 a thousand times larger, as
    activations of language models have. huge, tiny: times 2**40, 2**-40. binary: 0 or 1 (sums are exact).
    zeros. equal: one value everywhere. nonfinite: normal with an infinity or NaN in about 1 % of places.
    """
    if style == "zeros":
        return np.zeros(size)
    if style == "equal":
        return np.full(size, scale * (0.5 + rng.random()))
    if style == "binary":
        return rng.integers(0, 2, size).astype(np.float64)
    base = rng.standard_normal(size) * scale
    if style == "spikes":
        return np.where(rng.random(size) < 1 / 64, base * 1000.0, base)
    if style == "huge":
        return np.asarray(base * HUGE)
    if style == "tiny":
        return np.asarray(base * TINY)
    if style == "nonfinite":
        which = rng.random(size)
        base = np.where(which < 0.004, np.inf, base)
        base = np.where((which >= 0.004) & (which < 0.008), -np.inf, base)
        return np.where((which >= 0.008) & (which < 0.01), np.nan, base)
    return np.asarray(base)


def bf16(array: NDArray[Any]) -> NDArray[Any]:
    """Round to bfloat16 (to nearest, ties to even)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(array).astype(np.float32).astype(BF16)
