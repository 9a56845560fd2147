"""The best stock server there is: a gain over a bad configuration is not a gain."""

from __future__ import annotations

from typing import Any

from optimizer.context import StepContext, StepFailed, StepResult
from optimizer.engine.serving import BenchFailed, LaunchConfig, ServerDied, StartFailed, launch_configurations
from optimizer.measure import Bench, median_run
from optimizer.servers import ensure, stock_spec, stop_slots
from rackforge_runtime.facts import HostFacts, collect_facts

SLOT = "baseline"


def configurations(context: StepContext, facts: HostFacts) -> list[LaunchConfig]:
    """The declared launch configurations, narrowed by the campaign's own list. Raises StepFailed."""
    declared = launch_configurations(facts)
    wanted = context.config.launch_configurations
    if wanted is None:
        return list(declared)
    known = {config.name: config for config in declared}
    for name in wanted:
        if name not in known:
            raise StepFailed(f"launch configuration {name!r} does not exist here; there are {', '.join(known)}")
    return [known[name] for name in wanted]


def threads_of(config: dict[str, Any], facts: HostFacts) -> int:
    """Threads vLLM's engine computes with under a launch configuration (see engine/serving/configurations)."""
    bind = str(config["threads_bind"])
    return max(1, facts.physical_cores - 1) if bind == "auto" else len(bind.split(","))


def run(context: StepContext) -> StepResult:
    """Measure every launch configuration in every regime and choose the best stock one for each regime."""
    facts = collect_facts(context.platform.serving_python)
    candidates = configurations(context, facts)
    base = stock_spec(recipe=context.recipe, model_path=context.model.path, load_format=context.model.load_format)
    repeats = context.config.baseline_repeats
    total = len(candidates) * len(context.regimes) * repeats
    measured: dict[str, dict[str, Any]] = dict(context.checkpoint_data.get("measured", {}))
    failures: dict[str, str] = dict(context.checkpoint_data.get("failures", {}))
    with Bench(context) as bench:
        for position, config in enumerate(candidates):
            if config.name in measured or config.name in failures:
                continue
            try:
                server = ensure(context, SLOT, config.apply(base), note=config.name)
                bench.warm(server, context.regimes, seed=context.config.seed)
                runs: dict[str, list[dict[str, Any]]] = {regime.name: [] for regime in context.regimes}
                for repeat in range(repeats):
                    for number, regime in enumerate(context.regimes):
                        done = (position * len(context.regimes) + number) * repeats + repeat
                        context.progress(done, total, f"{config.name}, concurrency {regime.concurrency}")
                        one = bench.run(server, regime, seed=context.config.seed + 1 + repeat)
                        runs[regime.name].append(one.figures)
                        context.measure(
                            kind="bench",
                            regime=f"{regime.name}:{config.name}",
                            index=repeat,
                            payload=one.figures,
                            evidence=[one.digest],
                        )
            except (StartFailed, BenchFailed, ServerDied) as error:
                # One configuration that does not work is no reason to stop: the others are there.
                failures[config.name] = str(error)
                context.failure(f"launch configuration {config.name}", str(error))
                context.save_checkpoint(failures=failures)
                stop_slots(context)
                continue
            measured[config.name] = {name: median_run(values) for name, values in runs.items()}
            context.save_checkpoint(measured=measured)
            stop_slots(context)
    if not measured:
        raise StepFailed(f"no stock server could be measured: {next(iter(failures.values()))}")
    best = {
        regime.name: max(measured, key=lambda name: float(measured[name][regime.name]["output_tok_s"]))
        for regime in context.regimes
    }
    by_name = {config.name: config for config in candidates}
    chosen = {
        name: {
            "name": name,
            "enforce_eager": by_name[name].enforce_eager,
            "threads_bind": by_name[name].threads_bind,
        }
        for name in sorted(set(best.values()))
    }
    for config_dict in chosen.values():
        config_dict["threads"] = threads_of(config_dict, facts)
    context.progress(total, total, "; ".join(f"{regime}: {name}" for regime, name in best.items()))
    return StepResult({"measured": measured, "best": best, "configurations": chosen, "failures": failures})
