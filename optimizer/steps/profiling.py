"""Where the time of a step goes, from vLLM's own profiler at the steady state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from optimizer.bottlenecks import regime_bottlenecks
from optimizer.context import Interrupted, StepContext, StepResult
from optimizer.engine.serving import BenchCancelled, capture_profile
from optimizer.kernels import accepted_kernels
from optimizer.measure import Bench, workload
from optimizer.servers import ensure, stop_slots
from optimizer.states import StepKind
from optimizer.steps.arms import groups, spec_of

SLOT = "profile"
MAX_REQUESTS = 16


def run(context: StepContext) -> StepResult:
    """Profile the server as it is now (with the kernels accepted so far) in every regime; rank what could be won."""
    round_number = round_of(context)
    kernels = accepted_kernels(context)
    regimes: dict[str, Any] = {}
    fit = [r for r in context.regimes if r.name not in context.result_of("aa")["unfit"]]
    for group in groups(context):
        wanted = [regime for regime in group.regimes if regime in fit]
        if not wanted:
            continue
        spec, _ = spec_of(context, group, kernels)
        folder = context.work / f"profile-{round_number}"
        folder.mkdir(parents=True, exist_ok=True)
        server = ensure(context, SLOT, replace(spec, profiler_dir=str(folder)), note="profiling server")
        with Bench(context) as bench:
            for number, regime in enumerate(wanted):
                context.progress(number, len(wanted), f"profiling {regime.name}")
                # A few steps say where the time goes; a long trace says it again.
                load = replace(
                    workload(regime, seed=context.config.seed + 77),
                    num_requests=min(MAX_REQUESTS, max(regime.concurrency, 2)),
                    output_len=min(regime.output_len, 32),
                )
                try:
                    capture = capture_profile(server, bench.client, load, cancelled=context.stopping)
                except BenchCancelled as error:
                    raise Interrupted from error
                digest = context.store(capture.trace.read_bytes())
                found = regime_bottlenecks(context, group, regime, capture.trace)
                regimes[regime.name] = {"trace": digest, "configuration": group.config.name, **found}
                capture.trace.unlink(missing_ok=True)
        stop_slots(context)
    context.progress(1, 1, "profiled")
    return StepResult(
        {"regimes": regimes, "round": round_number}, next=[(StepKind.TARGETS, f"targets:{round_number}")]
    )


def round_of(context: StepContext) -> int:
    """The round a step belongs to: `profile` is of round 1, `profile:2` of round 2."""
    _, _, number = context.key.partition(":")
    return int(number or 1)
