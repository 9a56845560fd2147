"""Batches of decoded records to columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.engine.profiling.tracedata import Events

_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("start", np.int64),
    ("duration", np.int64),
    ("name", np.int32),
    ("kind", np.int8),
    ("track", np.int32),
    ("external", np.int64),
    ("correlation", np.int64),
    ("call", np.int32),
    ("size", np.int64),
    ("launch", np.int32),
)


class Columns:
    """Grows by whole batches; `finish` sorts."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name, _ in _COLUMNS}
        self.rows = 0

    def add(self, rows: int, **columns: Sequence[int] | NDArray[Any]) -> None:
        """One batch. Columns left out are absent (-1)."""
        for name, dtype in _COLUMNS:
            values = columns.get(name)
            self._parts[name].append(np.full(rows, -1, dtype) if values is None else np.asarray(values, dtype))
        self.rows += rows

    def finish(self) -> tuple[Events, NDArray[np.int64]]:
        """The sorted columns and, for each row, its number in the order of adding."""
        joined: dict[str, NDArray[Any]] = {}
        for name, dtype in _COLUMNS:
            parts = self._parts.pop(name)
            joined[name] = np.concatenate(parts) if parts else np.empty(0, dtype)
            parts.clear()
        order = np.lexsort((-joined["duration"], joined["start"]))
        for name in joined:
            joined[name] = joined[name][order]
        return Events(**joined), order
