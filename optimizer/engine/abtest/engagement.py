"""Did the candidate really run? What the live server counted, per worker process and by digest.

An activity report is `{"workers": [{"pid": 12, "kernels": [{"digest": "sha256:...", "op": "...", "calls": 3,
"fallbacks": 0}]}]}`; calls are calls of the kernel, fallbacks are calls that went to the engine's own operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Counts = dict[int, dict[str, tuple[int, int]]]  # pid -> digest -> (calls, fallbacks), summed over operators


@dataclass(frozen=True, slots=True)
class WorkerCalls:
    """What one worker process did with one kernel between two reports."""

    pid: int
    digest: str
    calls: int
    fallbacks: int

    def __post_init__(self) -> None:
        if self.calls <= 0 or self.fallbacks < 0 or not self.digest:
            raise ValueError(f"a kernel that was not called proves nothing: {self}")


@dataclass(frozen=True, slots=True)
class EngagementProof:
    """Every worker called every expected kernel. Cannot be made without calls."""

    workers: tuple[WorkerCalls, ...]

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("an engagement proof needs at least one worker that called the kernel")

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(w.digest for w in self.workers)

    @property
    def calls(self) -> int:
        return sum(w.calls for w in self.workers)

    @property
    def fallback_share(self) -> float:
        """Share of calls that went to the engine's own operator."""
        fallbacks = sum(w.fallbacks for w in self.workers)
        return fallbacks / (self.calls + fallbacks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "workers": [
                {"pid": w.pid, "digest": w.digest, "calls": w.calls, "fallbacks": w.fallbacks} for w in self.workers
            ]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngagementProof:
        return cls(
            tuple(
                WorkerCalls(int(w["pid"]), str(w["digest"]), int(w["calls"]), int(w["fallbacks"]))
                for w in data["workers"]
            )
        )


@dataclass(frozen=True, slots=True)
class NotEngaged:
    """Why the run does not count. infra: the report is missing or broken, which is not the candidate's doing."""

    reason: str
    infra: bool = False


def _counts(report: Mapping[str, Any], which: str) -> Counts | NotEngaged:
    try:
        counts: Counts = {}
        for worker in report["workers"]:
            pid = int(worker["pid"])
            if pid in counts:
                return NotEngaged(f"the report {which} lists worker {pid} twice", infra=True)
            kernels: dict[str, tuple[int, int]] = {}
            for k in worker["kernels"]:
                calls, fallbacks = int(k["calls"]), int(k.get("fallbacks", 0))
                if calls < 0 or fallbacks < 0:
                    return NotEngaged(f"the report {which} has a negative count in worker {pid}", infra=True)
                before = kernels.get(str(k["digest"]), (0, 0))
                kernels[str(k["digest"])] = (before[0] + calls, before[1] + fallbacks)
            counts[pid] = kernels
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return NotEngaged(f"the report {which} cannot be read: {type(error).__name__}: {error}", infra=True)
    if not counts:
        return NotEngaged(f"the report {which} names no worker process", infra=True)
    return counts


def check_engagement(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    expected: Iterable[str],
    *,
    max_fallback_share: float = 1.0,
) -> EngagementProof | NotEngaged:
    """Proof that between two reports every worker called every expected digest, or the reason why there is none.

    A worker that came, went or restarted in between (counters that fall) voids the run: part of it was not seen. A
    digest that is active but not expected voids it too: something else was measured. max_fallback_share: how much
    of the calls may go to the engine's own operator in any worker (outside the envelope this is right, so 1 by
    default).
    """
    wanted = sorted(set(expected))
    if not wanted:
        return NotEngaged("no kernel digest was expected: nothing could be proven")
    first, last = _counts(before, "before"), _counts(after, "after")
    if isinstance(first, NotEngaged):
        return first
    if isinstance(last, NotEngaged):
        return last
    if set(first) != set(last):
        return NotEngaged(
            f"the worker processes changed during the run: {sorted(first)} before, {sorted(last)} after"
        )
    proofs: list[WorkerCalls] = []
    for pid in sorted(last):
        for digest in sorted(first[pid].keys() | last[pid].keys()):
            start, end = first[pid].get(digest, (0, 0)), last[pid].get(digest, (0, 0))
            calls, fallbacks = end[0] - start[0], end[1] - start[1]
            if calls < 0 or fallbacks < 0:
                return NotEngaged(f"counters of {digest} in worker {pid} went backwards: it restarted during the run")
            if digest not in wanted and calls:
                return NotEngaged(f"worker {pid} also ran {digest}, which is not what is being measured")
        for digest in wanted:
            start, end = first[pid].get(digest, (0, 0)), last[pid].get(digest, (0, 0))
            calls, fallbacks = end[0] - start[0], end[1] - start[1]
            if calls <= 0:
                detail = f"all its {fallbacks} calls fell back" if fallbacks else "it is loaded nowhere on the path"
                return NotEngaged(f"worker {pid} never called {digest}: {detail}")
            if fallbacks / (calls + fallbacks) > max_fallback_share:
                return NotEngaged(f"worker {pid}: {fallbacks} of {calls + fallbacks} calls of {digest} fell back")
            proofs.append(WorkerCalls(pid, digest, calls, fallbacks))
    return EngagementProof(tuple(proofs))


def check_stock(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """None when the baseline server ran no kernel of ours between two reports, else the reason the run is void.

    A report without workers is fine here: a server without the plugin has nothing to say.
    """
    if not after.get("workers"):
        return None
    first, last = _counts(before, "before"), _counts(after, "after")
    if isinstance(last, NotEngaged):
        return last.reason
    for pid, kernels in last.items():
        for digest, (calls, _) in kernels.items():
            earlier = first.get(pid, {}).get(digest, (0, 0))[0] if not isinstance(first, NotEngaged) else 0
            if calls != earlier:
                return f"the baseline is not stock: worker {pid} ran {digest} {calls - earlier} times"
    return None
