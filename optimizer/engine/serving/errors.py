"""What goes wrong with a server or a benchmark, each saying what, where and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

StartCause = Literal[
    "model_missing",
    "weights_missing",
    "context_too_long",
    "port_in_use",
    "out_of_memory",
    "no_space",
    "bad_argument",
    "environment",
    "compile",
    "other",
    "deadline",
    "cancelled",
]


class ServingError(RuntimeError):
    """Base of everything this package raises for a server's or a benchmark's fault."""


class StartFailed(ServingError):
    """A server did not come up. `kind` classifies, `cause` is the sentence to show, `log` holds the rest."""

    def __init__(self, kind: StartCause, cause: str, *, log: Path | None = None, tail: str = "") -> None:
        super().__init__(f"the server did not start: {cause}" + (f" (log: {log})" if log else ""))
        self.kind: StartCause = kind
        self.cause = cause
        self.log = log
        self.tail = tail


class StartCancelled(StartFailed):
    """The caller's cancel callback ended a start."""

    def __init__(self, *, log: Path | None = None) -> None:
        super().__init__("cancelled", "cancelled while starting", log=log)


class ServerDied(ServingError):
    """A server that was up is gone; `cause` comes from its log."""

    def __init__(self, cause: str, *, log: Path | None = None) -> None:
        super().__init__(f"the server ended on its own: {cause}" + (f" (log: {log})" if log else ""))
        self.cause = cause
        self.log = log


class ServerAnswered(ServingError):
    """A server answered a request of ours with an error status, or not at all (`status` 0)."""

    def __init__(self, what: str, status: int, text: str) -> None:
        detail = " ".join(text.split())[:500]
        super().__init__(f"{what}: " + (f"HTTP {status}: {detail}" if status else detail))
        self.status = status
        self.text = text


class StopFailed(ServingError):
    """Processes of a server are still there after SIGKILL (stuck in the kernel); their ids are in the text."""


class WorkloadError(ValueError):
    """A workload that makes no sense or cannot fit the server's context."""


class BenchFailed(ServingError):
    """A benchmark gave no valid figure: failed requests, an error status, a hang, a crashed client."""


class BenchCancelled(BenchFailed):
    """The caller's cancel callback ended a benchmark."""
