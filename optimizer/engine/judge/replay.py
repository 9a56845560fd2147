"""Running a verdict again from its document, and saying whether it agrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from optimizer.engine.candidate import Candidate
from optimizer.engine.judge.engine import judge
from optimizer.engine.judge.policy import JudgePolicy, Roofline
from optimizer.engine.judge.pool import SandboxPool
from optimizer.engine.judge.verdict import SCHEMA, Verdict
from optimizer.engine.tasks.base import KernelTask


class NotReplayable(ValueError):
    """A document that cannot be run again; the text says what is missing or does not match."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The verdict of the second run, and in what it differs. Times and host facts may differ; findings may not."""

    verdict: Verdict
    differences: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences


def policy_of(document: Mapping[str, Any], baseline: Candidate | None = None) -> JudgePolicy:
    """The policy that a verdict document records."""
    recorded = dict(document["policy"])
    wanted = recorded.pop("baseline", None)
    if (baseline.digest if baseline else None) != wanted:
        raise NotReplayable(f"this verdict was reached against baseline {wanted}; give that one")
    roofline = recorded.pop("roofline", None)
    known = {f.name for f in fields(JudgePolicy)}
    unknown = sorted(set(recorded) - known)
    if unknown:
        raise NotReplayable(f"a policy of another version of the judge: {', '.join(unknown)}")
    recorded["threads"] = tuple(recorded["threads"])
    recorded["extra_allowed"] = frozenset(recorded["extra_allowed"])
    return JudgePolicy(**recorded, baseline=baseline, roofline=Roofline(**roofline) if roofline else None)


def replay(
    document: Mapping[str, Any],
    candidate: Candidate,
    task: KernelTask,
    *,
    build_cache: Path,
    serving_python: Path | None = None,
    baseline: Candidate | None = None,
    pool: SandboxPool | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Replay:
    """Judge again with the recorded seed, shapes and policy.

    NotReplayable when the document is no verdict, or candidate, task or baseline are not those it speaks of.
    """
    if document.get("schema") != SCHEMA:
        raise NotReplayable(f"not a verdict document: schema is {document.get('schema')!r}")
    if candidate.digest != document["candidate"]:
        raise NotReplayable(f"the verdict is on {document['candidate']}, this candidate is {candidate.digest}")
    if task.name != document["task"]:
        raise NotReplayable(f"the verdict is on task {document['task']!r}, this one is {task.name!r}")
    if not document["seed"]:
        raise NotReplayable("no sandbox was there: nothing was run that could be run again")
    verdict = judge(
        candidate,
        task,
        build_cache=build_cache,
        shapes=[{k: int(v) for k, v in s.items()} for s in document["shapes"]],
        serving_python=serving_python,
        policy=policy_of(document, baseline),
        seed=bytes.fromhex(document["seed"]),
        pool=pool,
        cancelled=cancelled,
    )
    return Replay(verdict, tuple(_differences(document, verdict)))


def _differences(document: Mapping[str, Any], verdict: Verdict) -> list[str]:
    again = verdict.document()
    found = [
        f"{key}: {document[key]!r} then, {again[key]!r} now"
        for key in ("outcome", "object")
        if document[key] != again[key]
    ]
    now = {g["gate"]: g for g in again["gates"]}
    for gate in document["gates"]:
        name = gate["gate"]
        if name not in now:
            found.append(f"{name}: was not reached this time")
        elif gate["version"] != now[name]["version"]:
            found.append(f"{name}: version {gate['version']} then, {now[name]['version']} now")
        elif gate["outcome"] != now[name]["outcome"]:
            found.append(f"{name}: {gate['outcome']} then, {now[name]['outcome']} now ({now[name]['reason']})")
    return found
