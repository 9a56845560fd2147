"""Measuring servers for a campaign: single runs, A/B blocks, activity reports; everything kept as evidence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from deployments.recipe import Regime
from optimizer.context import Interrupted, StepContext
from optimizer.engine.abtest import Block, PlannedBlock
from optimizer.engine.abtest.blocks import Side
from optimizer.engine.serving import (
    BenchCancelled,
    BenchClient,
    BenchResult,
    LocalServer,
    Probe,
    Readings,
    ServerAnswered,
    Workload,
    take_readings,
)
from optimizer.servers import environment
from rackforge_runtime.canonical import canonical_json

GUARD_METRICS = ("ttft_p99_ms", "tpot_p99_ms")


def workload(regime: Regime, *, seed: int, warmup: bool = False) -> Workload:
    """One benchmark run of a regime. The same seed gives the same prompts on every server."""
    return Workload(
        input_len=regime.input_len,
        output_len=regime.output_len,
        concurrency=regime.concurrency,
        num_requests=max(regime.warmup_requests, regime.concurrency) if warmup else regime.num_requests,
        seed=seed,
    )


def figures(result: BenchResult) -> dict[str, Any]:
    """What a run measured, for people and for guards; times in milliseconds."""
    shown = result.to_dict()
    return {
        "output_tok_s": result.output_tok_s,
        "request_s": result.request_s,
        "duration_s": result.duration_s,
        "completed": result.completed,
        "failed": result.failed,
        **{f"{name}_{stat}_ms": shown[name][stat] for name in ("ttft", "tpot") for stat in ("mean", "median", "p99")},
    }


@dataclass(frozen=True, slots=True)
class Run:
    """One benchmark run: its figures and the digest of vLLM's own report."""

    figures: dict[str, Any]
    digest: str


class Bench:
    """The resident benchmark client of a step; a context manager that ends it."""

    def __init__(self, context: StepContext) -> None:
        self.context = context
        self._client = BenchClient(environment(context.platform), log=context.platform.logs / "bench-client.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._client.close()

    @property
    def client(self) -> BenchClient:
        return self._client

    def run(self, server: LocalServer, regime: Regime, *, seed: int) -> Run:
        """One run. Raises BenchFailed or ServerDied with the cause, Interrupted when the campaign stops."""
        self.context.check()
        try:
            result = self._client.run(
                server.endpoint, workload(regime, seed=seed), cancelled=self.context.stopping, timeout_s=600
            )
        except BenchCancelled as error:
            raise Interrupted from error
        except Exception:
            server.check()  # a dead server says more than the requests that failed with it
            raise
        return Run(figures(result), self.context.store(result.raw_json))

    def warm(self, server: LocalServer, regimes: Iterable[Regime], *, seed: int) -> None:
        """Runs that are thrown away: a server's first blocks are slow."""
        for regime in regimes:
            self.context.check()
            try:
                self._client.run(
                    server.endpoint, workload(regime, seed=seed, warmup=True), cancelled=self.context.stopping
                )
            except BenchCancelled as error:
                raise Interrupted from error

    def block(
        self, servers: Mapping[Side, LocalServer], regime: Regime, planned: PlannedBlock, *, seed: int, pair: int = 0
    ) -> Block:
        """One block of four runs. Both runs of a side, and both sides, get the same prompts."""
        runs = [self.run(servers[side], regime, seed=seed + planned.index) for side in planned.sides]
        metrics = {
            name: tuple(float(run.figures[name]) for run in runs)
            for name in GUARD_METRICS
            if all(run.figures[name] is not None for run in runs)
        }
        return Block(
            index=planned.index,
            order=planned.order,
            runs=tuple(run.figures["output_tok_s"] for run in runs),  # type: ignore[arg-type]
            digests=tuple(run.digest for run in runs),
            pair=pair,
            metrics=metrics,
        )


def keep_block(context: StepContext, regime: str, block: Block) -> None:
    """Write a block down; a next attempt goes on after it."""
    context.measure(
        kind="block", regime=regime, index=block.index, payload=block.to_dict(), evidence=list(block.digests)
    )


def blocks_of(context: StepContext, regime: str, *, key: str | None = None) -> list[Block]:
    """The blocks of a step in order."""
    return [Block.from_dict(m.payload) for m in context.measurements(kind="block", regime=regime, key=key)]


def activity(server: LocalServer) -> dict[str, Any]:
    """What the server says of its kernels; a stock server has nothing to say."""
    try:
        body: dict[str, Any] = server.request("GET", "/rackforge/activity", timeout_s=10).json()
    except ServerAnswered as error:
        if error.status == 404:
            return {"workers": []}
        raise
    return body


def activities(servers: Mapping[Side, LocalServer]) -> dict[Side, dict[str, Any]]:
    """What both servers of a pair say of their kernels."""
    return {side: activity(server) for side, server in servers.items()}


def keep_json(context: StepContext, value: Any) -> str:
    """Keep a JSON value as evidence; its digest."""
    return context.store(canonical_json(json.loads(json.dumps(value))))


def readings(context: StepContext, server: LocalServer, *, concurrency: int) -> Readings:
    """What a server says to the fidelity probe at a batch size."""
    probe = Probe.for_model(
        context.model.path, seed=context.config.seed, concurrency=concurrency, prompts=max(8, concurrency)
    )
    return take_readings(server, probe)


def distances(a: Readings, b: Readings) -> list[float]:
    """Mean absolute log-probability difference of each prompt in nats a token.

    Teacher-forced tokens, and decoded tokens as far as both servers decoded the same.
    """
    found = []
    for i in range(len(a.forced)):
        gaps = [abs(x - y) for x, y in zip(a.forced[i].logprobs, b.forced[i].logprobs, strict=True)]
        for j, (x, y) in enumerate(zip(a.decoded[i].tokens, b.decoded[i].tokens, strict=False)):
            if x != y:
                break
            gaps.append(abs(a.decoded[i].logprobs[j] - b.decoded[i].logprobs[j]))
        found.append(sum(gaps) / len(gaps))
    return found


def memory_bytes(server: LocalServer) -> float:
    """Resident memory of all the server's processes, shared pages counted once each process."""
    import psutil

    total = 0
    for pid in server.pids:
        try:
            total += psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return float(total)


def median_run(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of the run with the middle throughput."""
    ordered = sorted(runs, key=lambda run: run["output_tok_s"])
    return dict(ordered[len(ordered) // 2])
