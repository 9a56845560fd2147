"""A/A: what two equal servers differ by on this host, before any budget is spent."""

from __future__ import annotations

from typing import Any

from optimizer.context import StepContext, StepResult
from optimizer.design import sequential_design
from optimizer.engine.abtest import assess_aa, plan_blocks
from optimizer.measure import Bench, distances, keep_block, keep_json, memory_bytes, readings
from optimizer.states import StepKind
from optimizer.steps.arms import blocks_by_regime, groups, same_pair, spec_of, start_pair, stop_slots


def run(context: StepContext) -> StepResult:
    """Measure two stock servers against each other in every regime; an unfit host ends the campaign."""
    test = context.config.test
    design = sequential_design(context.config)
    found: dict[str, Any] = {}
    fidelity: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    total = test.aa_blocks * len(context.regimes)
    done = 0
    for group in groups(context):
        spec, _ = spec_of(context, group, [])
        with Bench(context) as bench:
            servers = start_pair(context, bench, group, {"A": spec, "B": spec}, seed=context.config.seed)
            if not same_pair(context, group.config.name, servers):
                for regime in group.regimes:
                    context.drop_measurements(kind="block", regime=regime.name, why="the servers were restarted")
            measured = blocks_by_regime(context, group)
            for planned in plan_blocks(test.aa_blocks, context.config.seed):
                for regime in group.regimes:
                    done += 1
                    if planned.index < len(measured[regime.name]):
                        continue
                    context.progress(done - 1, total, f"A/A block {planned.index + 1}, {regime.name}")
                    block = bench.block(servers, regime, planned, seed=context.config.seed + 1000)
                    keep_block(context, regime.name, block)
                    measured[regime.name].append(block)
            for regime in group.regimes:
                pair = [readings(context, servers[s], concurrency=regime.concurrency) for s in ("A", "B")]
                fidelity[regime.name] = distances(pair[0], pair[1])
                memory[regime.name] = [memory_bytes(servers[s]) for s in ("A", "B")]
        stop_slots(context)
        for regime in group.regimes:
            result = assess_aa(measured[regime.name], design, seed=context.config.seed)
            found[regime.name] = result.to_dict()
    evidence = keep_json(context, {"aa": found, "fidelity": fidelity})
    unfit = {name: one["reason"] for name, one in found.items() if not one["fit"]}
    summary = "; ".join(
        f"{name}: noise floor {one['noise_floor_pct']:.2f} %, detectable {one['mde_pct']:.2f} %"
        for name, one in found.items()
    )
    context.progress(total, total, summary)
    result_dict = {"regimes": found, "fidelity": fidelity, "memory": memory, "evidence": evidence}
    if len(unfit) == len(found):
        why = "; ".join(f"{name}: {reason}" for name, reason in unfit.items())
        context.failure("A/A", why)
        return StepResult(result_dict | {"unfit": unfit}, skip_rest=True, next=[(StepKind.REPORT, "report")])
    for name, reason in unfit.items():
        context.failure(f"A/A of regime {name}", f"{reason}; this regime is left out")
    return StepResult(result_dict | {"unfit": unfit})
