"""Comparing a candidate's output with the fp64 truth, by the error budget of the task.

For an output element with truth t (fp64), working-precision result w and candidate's result c:

    |c - t| <= k * max(|w - t| over the row) + floor_ulps * ulp(t)

where a row is the last axis (rounding errors of one element alone can be zero by luck; those of a row tell the
operator's error) and ulp(t) is the spacing of the output dtype at t. Over the whole tensor, in root mean square,

    rms(c - t) <= k * max(rms(w - t), rms(ulp(t)) / sqrt(12)) + floor_ulps * rms(ulp32(t))

where ulp / sqrt(12) is what perfect rounding makes (an error uniform within half a unit has that deviation) and
ulp32 is the spacing of float32: another order of summation moves a result by units of the accumulator. For outputs
narrower than float32 the error must not lean either: its mean, in ulps away from zero, stays within a quarter of one
(truncation makes a half) plus five standard errors. The first rule catches wrong elements, the second and third
less precision than the task's. Elements which the truth or the
working result makes non-finite must be of the same class in the candidate: NaN for NaN, an infinity for one of the
same sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from optimizer.engine.tasks.base import Array, Budget

# Below this many elements the root mean square says no more than the elements do.
RMS_MIN_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class Difference:
    """How one output compares. `worst` is the largest error as a share of its bound (at most 1 when ok)."""

    ok: bool
    why: str
    elements: int
    worst: float
    rms_share: float
    mismatched: int
    first: tuple[int, ...] = ()

    def document(self) -> dict[str, Any]:
        return {
            "ok": self.ok, "why": self.why, "elements": self.elements, "worst": round(self.worst, 4),
            "rms_share": round(self.rms_share, 4), "mismatched": self.mismatched, "first": list(self.first),
        }  # fmt: skip


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy dtype of a TensorSpec's dtype name; TypeError for an unknown one."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def _finfo(kind: np.dtype[Any]) -> Any:
    return ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]


def ulp(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Spacing of a floating dtype at some magnitudes; that of its subnormals near zero, 1 for integers."""
    if not _is_float(dtype):
        return np.ones_like(values)
    info = _finfo(dtype)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(np.where(np.isfinite(values), values, 0.0)))
        # frexp calls the exponent of zero 0, as if it were a half.
        spacing = np.where(values == 0.0, 0.0, np.ldexp(1.0, exponent - 1 - info.nmant))
    return np.asarray(np.maximum(spacing, float(info.smallest_subnormal)))


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and hasattr(ml_dtypes, dtype.name))


def compare(candidate: Array, truth: Array, working: Array, *, budget: Budget, dtype: str) -> Difference:
    """Judge one output. All three have the same shape; `candidate` and `working` the output dtype.

    ValueError when shapes or dtypes are not what they must be: that is a caller's fault, never a verdict.
    """
    kind = dtype_of(dtype)
    if candidate.shape != truth.shape or working.shape != truth.shape:
        raise ValueError(f"shapes {candidate.shape}, {truth.shape}, {working.shape} are compared")
    if candidate.dtype != kind:
        raise ValueError(f"dtype {candidate.dtype} where {kind} is compared")
    if truth.size == 0:
        return Difference(True, "", 0, 0.0, 0.0, 0)
    if not _is_float(kind):
        wrong = np.asarray(candidate != truth)
        return _verdict(wrong, wrong.astype(np.float64), 0.0, "differs")
    with np.errstate(all="ignore"):
        c = candidate.astype(np.float64)
        t = np.asarray(truth, dtype=np.float64)
        w = working.astype(np.float64)
        # What the truth is in the output's own range: 1e39 is an infinity in float32.
        t_out = t.astype(kind).astype(np.float64)
        special = ~np.isfinite(t_out)
        overflowed = np.isfinite(t_out) & ~np.isfinite(w)  # only on the way, at working precision
        wrong = special & ~_same_class(c, t_out)
        # An overflow that rounding decides: the largest finite value and infinity are both right at the edge.
        edge = special & np.isfinite(t) & np.isfinite(c) & (np.abs(c - t) <= ulp(t, kind) * budget.floor_ulps)
        wrong &= ~edge
        finite = np.isfinite(t_out)
        err_w = np.where(finite & np.isfinite(w), np.abs(w - t), 0.0)
        unit = ulp(t, kind)
        row = err_w.max(axis=-1, keepdims=True) if err_w.ndim else err_w
        bound = budget.k * row + budget.floor_ulps * unit
        err_c = np.where(finite, np.abs(c - t), 0.0)
        err_c = np.where(np.isnan(err_c), np.inf, err_c)
        excused = overflowed & _same_class(c, w)
        share = np.where(finite & ~excused, err_c / bound, 0.0)
        wrong |= share > 1.0
        used = finite & ~excused & ~overflowed
        rms_share = 0.0
        if int(used.sum()) >= RMS_MIN_ELEMENTS and not wrong.any():
            unit32 = ulp(t, np.dtype(np.float32))
            rms_share = _rms_share(err_c[used], err_w[used], unit[used], unit32[used], budget)
            if _finfo(kind).nmant < _finfo(np.dtype(np.float32)).nmant:
                rms_share = max(rms_share, _lean_share((c - t)[used] * np.sign(t[used]) / unit[used]))
    if wrong.any():
        return _verdict(wrong, np.where(special & wrong, np.inf, share), rms_share, "outside its error budget")
    if rms_share > 1.0:
        why = "less precise as a whole than the task's own precision"
        return Difference(False, why, truth.size, float(share.max()), rms_share, 0)
    return Difference(True, "", truth.size, float(share.max()), rms_share, 0)


def _rms_share(
    err_c: NDArray[np.float64], err_w: NDArray[np.float64], unit: NDArray[np.float64], unit32: NDArray[np.float64],
    budget: Budget,
) -> float:  # fmt: skip
    # Relative to the largest, so that huge magnitudes do not overflow their squares.
    scale = float(max(err_c.max(), err_w.max(), unit.max()))
    if scale == 0.0 or not math.isfinite(scale):
        return 0.0
    got, work, ulps, ulps32 = (float(np.sqrt(np.mean(np.square(x / scale)))) for x in (err_c, err_w, unit, unit32))
    return got / (budget.k * max(work, ulps / math.sqrt(12.0)) + budget.floor_ulps * ulps32)


def _lean_share(signed: NDArray[np.float64]) -> float:
    """Mean signed error, in ulps away from zero, as a share of what is allowed."""
    error = float(signed.std()) / math.sqrt(signed.size)
    return abs(float(signed.mean())) / (0.25 + 5.0 * error)


def _same_class(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Both NaN, or the same infinity."""
    return np.asarray((np.isnan(a) & np.isnan(b)) | (np.isinf(a) & np.isinf(b) & (np.sign(a) == np.sign(b))))


def _verdict(wrong: NDArray[np.bool_], share: NDArray[np.float64], rms_share: float, why: str) -> Difference:
    count = int(wrong.sum())
    if not count:
        return Difference(True, "", wrong.size, float(share.max(initial=0.0)), rms_share, 0)
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape)) if wrong.ndim else ()
    return Difference(False, why, wrong.size, float(share.max()), rms_share, count, first)
