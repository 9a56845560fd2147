"""What a performance model gives, and which one belongs to an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from optimizer.engine.profiling.tracedata import Call


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of one call: operations (a multiply-add counts as two) and bytes each moved once.

    dtype: of the arithmetic, for the peak that applies. axes: the problem's size in the field's letters.
    """

    model: str
    flops: float
    bytes_moved: float
    dtype: str
    axes: Mapping[str, int]

    @property
    def intensity(self) -> float | None:
        """FLOP per byte."""
        return self.flops / self.bytes_moved if self.bytes_moved else None


Model = Callable[[Call], Work | None]


def estimate(op: str, call: Call) -> Work | None:
    """Work of one call; None where no model knows the operator or its arguments were not recorded."""
    model = _model_of(op)
    if model is None:
        return None
    try:
        return model(call)
    except (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError):
        return None  # arguments of a form the model does not know


@lru_cache(maxsize=4096)
def _model_of(op: str) -> Model | None:
    from optimizer.engine.profiling.models.registry import find_model

    return find_model(op)
