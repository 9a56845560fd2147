"""The two arms of a comparison: which servers, with which kernels, in which slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deployments.recipe import Regime
from optimizer.context import StepContext
from optimizer.engine.abtest.blocks import Side
from optimizer.engine.serving import LaunchConfig, LocalServer, ServerSpec
from optimizer.kernels import stage
from optimizer.measure import Bench, blocks_of
from optimizer.servers import ensure, stock_spec, stop_slots, with_environment
from rackforge_runtime.staging import Staged


@dataclass(frozen=True, slots=True)
class Group:
    """Regimes whose best stock server is the same one."""

    config: LaunchConfig
    threads: int
    regimes: tuple[Regime, ...]


def groups(context: StepContext) -> list[Group]:
    """The regimes by their baseline's launch configuration."""
    baseline = context.result_of("baseline")
    found = []
    for name, config in baseline["configurations"].items():
        launch = LaunchConfig(name=name, enforce_eager=config["enforce_eager"], threads_bind=config["threads_bind"])
        regimes = tuple(r for r in context.regimes if baseline["best"][r.name] == name)
        found.append(Group(launch, int(config["threads"]), regimes))
    return found


def spec_of(
    context: StepContext, group: Group, kernels: Sequence[dict[str, Any]]
) -> tuple[ServerSpec, Staged | None]:
    """A server of a group with these kernels (none: stock), and the lock it runs."""
    base = group.config.apply(
        stock_spec(recipe=context.recipe, model_path=context.model.path, load_format=context.model.load_format)
    )
    if not kernels:
        return base, None
    staged = stage(context, kernels)
    return with_environment(replace(base, lock=str(staged.lock)), staged.environment), staged


def start_pair(
    context: StepContext,
    bench: Bench,
    group: Group,
    specs: dict[Side, ServerSpec],
    *,
    first: Side = "A",
    seed: int,
) -> dict[Side, LocalServer]:
    """Both servers of a pair, warm. Adopted where they run already, started in the given order otherwise."""
    servers: dict[Side, LocalServer] = {}
    order: tuple[Side, Side] = ("A", "B") if first == "A" else ("B", "A")
    for side in order:
        servers[side] = ensure(context, side.lower(), specs[side], note=f"server {side}")
    for side in order:
        context.progress(0, 1, f"warming up server {side}")
        bench.warm(servers[side], group.regimes, seed=seed)
    return servers


def same_pair(context: StepContext, name: str, servers: dict[Side, LocalServer]) -> bool:
    """Whether these are the servers an earlier attempt measured under this name; they are written down.

    A pair that was restarted is another pair: its luck is another one, so its blocks do not go together.
    """
    ids = {side: server.record.id for side, server in servers.items()}
    pairs: dict[str, Any] = dict(context.checkpoint_data.get("pairs", {}))
    known = pairs.get(name)
    pairs[name] = ids
    context.save_checkpoint(pairs=pairs)
    return known is None or known == ids


def blocks_by_regime(context: StepContext, group: Group, *, key: str | None = None) -> dict[str, list[Any]]:
    """Blocks measured so far in each regime of a group."""
    return {regime.name: blocks_of(context, regime.name, key=key) for regime in group.regimes}


__all__ = ["Group", "blocks_by_regime", "groups", "same_pair", "spec_of", "start_pair", "stop_slots"]
