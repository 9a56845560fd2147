"""Performance models: the least work an operator's recorded arguments imply."""

from __future__ import annotations

from optimizer.engine.profiling.models.base import Work, estimate

__all__ = ["Work", "estimate"]
