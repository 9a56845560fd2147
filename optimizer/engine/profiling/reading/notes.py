"""What could not be read, counted by kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TraceWarning:
    """Something about a trace that a reader of its figures has to know."""

    code: str  # stable, kebab-case
    text: str
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "text": self.text, "count": self.count}


@dataclass(slots=True)
class Notes:
    """Warnings collected while a trace is read; the first text of a kind is kept, later ones are counted."""

    found: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, code: str, text: str, count: int = 1) -> None:
        if count <= 0:
            return
        known = self.found.get(code)
        self.found[code] = (text, count) if known is None else (known[0], known[1] + count)

    def warnings(self) -> tuple[TraceWarning, ...]:
        return tuple(TraceWarning(code, text, count) for code, (text, count) in self.found.items())
