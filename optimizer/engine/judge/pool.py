"""Warm sandboxes, kept for the next candidate and replaced when they die."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from optimizer.engine.judge import wall
from optimizer.engine.judge.sandbox import Sandbox, SandboxFault


class SandboxPool:
    """Hands out warm sandboxes by kind of candidate. Safe for many threads; each sandbox serves one at a time.

    serving_python: the interpreter with torch, for Python and Triton candidates.
    walled=False: children without a wall, for development on hosts that have none; nothing they give certifies.
    """

    def __init__(self, *, serving_python: Path | None = None, walled: bool | None = None) -> None:
        self._python = serving_python
        self.report = wall.probe_wall()
        self.walled = self.report.certifies if walled is None else walled
        self._bwrap = wall.find_bwrap()[0] if self.walled else None
        if self.walled and not self._bwrap:
            raise SandboxFault(self.report.problem)
        self._idle: dict[tuple[str, bool], list[Sandbox]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def sandbox(self, kind: str, *, trusted: bool = False) -> Iterator[Sandbox]:
        """A live sandbox for a kind, back in the pool afterwards if it still lives.

        trusted: for the baseline, which may use the serving environment's own kernels.
        """
        found = self._take(kind, trusted)
        try:
            yield found
        finally:
            with self._lock:
                keep = found.alive
                if keep:
                    self._idle.setdefault((kind, trusted), []).append(found)
            if not keep:
                found.close()

    def _take(self, kind: str, trusted: bool) -> Sandbox:
        with self._lock:
            waiting = self._idle.get((kind, trusted), [])
            while waiting:
                found = waiting.pop()
                if found.alive:
                    return found
                found.close()
        if kind == "cpp":
            python = wall.base_python()
        elif self._python is None or not self._python.exists():
            raise SandboxFault(
                f"{kind} candidates need the serving environment's Python; there is none at {self._python}"
            )
        else:
            python = self._python
        return Sandbox(kind=kind, python=python, bwrap=self._bwrap, trusted=trusted)

    def close(self) -> None:
        with self._lock:
            for waiting in self._idle.values():
                for found in waiting:
                    found.close()
            self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
