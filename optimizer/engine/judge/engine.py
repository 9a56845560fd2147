"""The judge: one function, used by campaigns, the command line and the API alike. Nothing else writes a verdict."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.engine.candidate import Candidate
from optimizer.engine.judge.context import Gate, JudgeContext, Progress
from optimizer.engine.judge.envelope import covers
from optimizer.engine.judge.exercise import arena_bytes
from optimizer.engine.judge.gates import GATES
from optimizer.engine.judge.policy import JudgePolicy
from optimizer.engine.judge.pool import SandboxPool
from optimizer.engine.judge.sandbox import Cancelled, CandidateFault, SandboxFault
from optimizer.engine.judge.verdict import GateOutcome, GateResult, Outcome, Verdict, conclude
from optimizer.engine.tasks.base import KernelTask, Shape
from rackforge_runtime.canonical import digest_bytes
from rackforge_runtime.runner.confine import Held
from rackforge_runtime.runner.frames import pack_files


def judge(
    candidate: Candidate,
    task: KernelTask,
    *,
    build_cache: Path,
    shapes: Sequence[Shape] | None = None,
    store: Callable[[bytes], str] = digest_bytes,
    serving_python: Path | None = None,
    cpu_flags: frozenset[str] | None = None,
    policy: JudgePolicy | None = None,
    seed: bytes | None = None,
    on_progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    pool: SandboxPool | None = None,
    gates: Sequence[Gate] = GATES,
) -> Verdict:
    """Judge one candidate; always returns a verdict, in bounded time.

    shapes: those it is meant for (a server's own); None: the task's declared ones. Only those inside of the
        candidate's declared envelope are judged.
    store: keeps a piece of evidence (the object) and returns its digest.
    serving_python: interpreter with torch, for Python and Triton candidates.
    seed: only to replay a verdict; drawn secretly otherwise.
    pool: warm sandboxes to use; without one, sandboxes are started and ended here.
    gates: only for tests of single gates; a verdict without the required ones cannot accept.

    Raises Cancelled when `cancelled()` says so, ValueError for a task or shapes that cannot be judged.
    """
    policy = policy or JudgePolicy()
    wanted = tuple(shapes if shapes is not None else task.shapes)
    if not wanted:
        raise ValueError(f"{task.name}: no shapes to judge at")
    # Shapes outside of the declared envelope are not what it is for: it is not asked to run them, and the verdict
    # does not speak of them. A candidate which covers none of them declines in G4.
    wanted = tuple(s for s in wanted if covers(candidate.envelope, task, s)) or wanted[:1]
    if sum(arena_bytes(task, wanted)) > policy.max_call_bytes * 4:
        raise ValueError(f"{task.name}: a call moves more than max_call_bytes = {policy.max_call_bytes}")
    if pool is None:
        try:
            with SandboxPool(serving_python=serving_python) as own:
                return judge(
                    candidate, task, build_cache=build_cache, shapes=wanted, store=store, cpu_flags=cpu_flags,
                    policy=policy, seed=seed, on_progress=on_progress, cancelled=cancelled, pool=own, gates=gates,
                )  # fmt: skip
        except SandboxFault as error:
            return _no_sandbox(candidate, task, policy, wanted, str(error))
    began, start = datetime.now(UTC), time.monotonic()
    deadline = start + policy.wall_s
    ctx = JudgeContext(
        candidate=candidate,
        task=task,
        policy=policy,
        shapes=wanted,
        seed=seed if seed is not None else secrets.token_bytes(32),
        pool=pool,
        store=store,
        build_cache=build_cache,
        cpu_flags=cpu_flags if cpu_flags is not None else host_cpu_flags(),
        progress=on_progress or _quiet,
        cancelled=cancelled or _never,
    )
    results: list[GateResult] = []
    for gate in gates:
        ctx.progress(gate.title, 0.0)
        results.append(_run(gate, ctx, deadline))
        if results[-1].outcome not in (GateOutcome.PASS, GateOutcome.NOT_APPLICABLE, GateOutcome.QUARANTINE):
            break
    # What a replay and a registry need: the sources, and the object that ran.
    store(pack_files(sorted(candidate.files.items())))
    for name, data in ctx.files:
        if name == "kernel.so":
            store(data)
    outcome, reason = conclude(tuple(results))
    verdict = Verdict(
        outcome=outcome,
        reason=reason,
        certified=False,
        candidate_digest=candidate.digest,
        object_digest=ctx.object_digest,
        task=task.name,
        kind=candidate.kind,
        gates=tuple(results),
        seed=ctx.seed.hex(),
        environment=environment(ctx),
        policy=policy.document(),
        started_at=began.isoformat(),
        wall_s=time.monotonic() - start,
        shapes=wanted,
        speedups=ctx.speedups if outcome in (Outcome.ACCEPT, Outcome.QUARANTINE) else {},
    )
    return replace(verdict, certified=_certifies(ctx, outcome, seed))


def _run(gate: Gate, ctx: JudgeContext, deadline: float) -> GateResult:
    start = time.monotonic()
    if start > deadline:
        reason = f"deadline: the judgement took more than {ctx.policy.wall_s:.0f} s"
        return GateResult(gate.name, gate.version, GateOutcome.INCONCLUSIVE, reason)
    try:
        result = gate.check(ctx)
    except Cancelled:
        raise
    except CandidateFault as fault:
        evidence = {"comparisons": ctx.comparisons, "detail": fault.detail[-2000:]}
        result = GateResult(gate.name, gate.version, GateOutcome.FAIL, str(fault)[:500], evidence)
    except SandboxFault as fault:
        result = GateResult(gate.name, gate.version, GateOutcome.INFRA_ERROR, f"sandbox: {fault}"[:500])
    except Exception as error:  # noqa: BLE001 - whatever breaks in here is ours, and a verdict is owed
        reason = f"judge: {type(error).__name__}: {error}"
        result = GateResult(gate.name, gate.version, GateOutcome.INFRA_ERROR, reason[:500])
    return replace(result, wall_s=time.monotonic() - start)


def _certifies(ctx: JudgeContext, outcome: Outcome, seed: bytes | None) -> bool:
    """Only behind a wall that held, on an unweakened policy, with a seed that nobody knew before."""
    needed = Held.SECCOMP | Held.NO_NEW_PRIVS | Held.NON_ROOT
    return (
        outcome in (Outcome.ACCEPT, Outcome.REJECT, Outcome.QUARANTINE)
        and ctx.pool.walled
        and ctx.pool.report.certifies
        and (ctx.held & needed == needed or outcome is Outcome.REJECT)
        and ctx.policy.certifies
        and seed is None
    )


def _no_sandbox(
    candidate: Candidate, task: KernelTask, policy: JudgePolicy, shapes: tuple[Shape, ...], why: str
) -> Verdict:
    gate = GateResult("wall", 1, GateOutcome.INFRA_ERROR, f"sandbox: {why}"[:500])
    return Verdict(
        outcome=Outcome.INFRA_ERROR, reason=f"wall: {gate.reason}", certified=False,
        candidate_digest=candidate.digest, object_digest="", task=task.name, kind=candidate.kind, gates=(gate,),
        seed="", environment={"machine": platform.machine()}, policy=policy.document(),
        started_at=datetime.now(UTC).isoformat(), wall_s=0.0, shapes=shapes,
    )  # fmt: skip


def environment(ctx: JudgeContext) -> dict[str, Any]:
    """Where the verdict was reached, as far as it bears on it. No host name, no paths."""
    return {
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpu": host_cpu_model(),
        "walled": ctx.pool.walled,
        "held": [h.name for h in Held if h in ctx.held],
        "wall": ctx.pool.report.document(),
    }


def host_cpu_flags() -> frozenset[str]:
    """CPU flags of this host, by the names of /proc/cpuinfo."""
    for line in _cpuinfo():
        if line.startswith(("flags", "Features")):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def host_cpu_model() -> str:
    """The CPU's name."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _quiet(_stage: str, _done: float) -> None:
    return None


def _never() -> bool:
    return False
