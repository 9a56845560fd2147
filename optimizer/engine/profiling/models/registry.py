"""Operator names to performance models."""

from __future__ import annotations

from optimizer.engine.profiling.models.base import Model


def find_model(op: str) -> Model | None:
    """The model of an operator; None for those without one."""
    del op
    return None
