"""What the discovery A/B and the confirmation share: the evidence of one pair of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deployments.recipe import Regime
from optimizer.context import StepContext
from optimizer.engine.abtest import (
    Block,
    EngagementProof,
    GuardResult,
    NotEngaged,
    amdahl_gain,
    check_engagement,
    check_stock,
    error_guard,
    fidelity_guard,
    latency_guard,
    memory_guard,
)
from optimizer.engine.abtest.blocks import Side
from optimizer.engine.serving import LocalServer
from optimizer.measure import blocks_of, distances, memory_bytes, readings

MEMORY_MARGIN_PCT = 25.0  # the engine's own product stays prepared beside the kernel's weights, for the fallback


def amdahl_bound(profile: Mapping[str, Any], regime: str, task: str) -> float:
    """The largest believable gain of a regime as a fraction: the task's share at the roofline's speed."""
    target = profile["regimes"][regime]["targets"][task]
    return amdahl_gain(min(0.99, float(target["share"])), float(target["attainable_speedup"]))


def engagement(
    before: Mapping[Side, Mapping[str, Any]],
    after: Mapping[Side, Mapping[str, Any]],
    *,
    expected: Sequence[str],
    shared: Sequence[str],
) -> EngagementProof | NotEngaged:
    """Proof that B ran the expected kernels and A none but the shared ones between two activity reports."""
    if not shared:
        reason = check_stock(before["A"], after["A"])
        if reason is not None:
            return NotEngaged(reason, infra=True)
    return check_engagement(before["B"], after["B"], expected)


def pair_evidence(context: StepContext, regime: Regime, servers: Mapping[Side, LocalServer]) -> dict[str, Any]:
    """What one pair of servers shows besides speed: output distances and memory. JSON, kept in the checkpoint."""
    said = {side: readings(context, server, concurrency=regime.concurrency) for side, server in servers.items()}
    return {
        "distances": distances(said["A"], said["B"]),
        "memory_a": memory_bytes(servers["A"]),
        "memory_b": memory_bytes(servers["B"]),
    }


def guards(
    context: StepContext, regime: Regime, blocks: Sequence[Block], evidence: Sequence[Mapping[str, Any]]
) -> list[GuardResult]:
    """Nothing else may become worse: latency tails, errors, memory, output."""
    aa = context.result_of("aa")
    aa_blocks = blocks_of(context, regime.name, key="aa")
    # A run with a failed request raises in the benchmark, so what was measured has none.
    requests = len(blocks) * 2 * regime.num_requests
    return [
        *(latency_guard(blocks, metric, aa=aa_blocks) for metric in ("ttft_p99_ms", "tpot_p99_ms")),
        error_guard(failed_a=0, total_a=requests, failed_b=0, total_b=requests),
        memory_guard(
            [float(e["memory_a"]) for e in evidence],
            [float(e["memory_b"]) for e in evidence],
            margin_pct=MEMORY_MARGIN_PCT,
        ),
        fidelity_guard(
            [float(d) for e in evidence for d in e["distances"]], [float(d) for d in aa["fidelity"][regime.name]]
        ),
    ]
