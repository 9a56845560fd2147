"""The unit of evidence: one randomised block of four runs, ABBA or BAAB.

Why the order is a fair coin for each block, and not balanced over the plan: the coin *is* the test. When A and B
are the same code, swapping the labels of a block only negates its log-ratio, whatever the host does over time (drift,
autocorrelation, warm-up, a neighbour that comes and goes). The sign-flip test over blocks is then exact by design
(Fisher's randomisation argument; Edgington & Onghena, *Randomization Tests*, 4th ed., ch. 3), not by assumption.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

Order = Literal["ABBA", "BAAB"]
Side = Literal["A", "B"]
ORDERS: tuple[Order, Order] = ("ABBA", "BAAB")
RUNS_PER_BLOCK = 4


def _coin(kind: str, seed: int, index: int) -> bool:
    # A string seed is hashed with SHA-512 by `random`: equal on every platform and Python version, and item i
    # does not depend on how many items are planned.
    return random.Random(f"rackforge:{kind}:{seed}:{index}").random() < 0.5  # noqa: S311 - a plan, not a secret


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """What to measure next: block `index` in this order of sides."""

    index: int
    order: Order

    @property
    def sides(self) -> tuple[Side, Side, Side, Side]:
        """The side of each of the four runs, in the order of running."""
        a, b, c, d = self.order
        return cast("tuple[Side, Side, Side, Side]", (a, b, c, d))


def plan_blocks(n: int, seed: int, start: int = 0) -> list[PlannedBlock]:
    """`n` blocks with indices start ... start+n-1, each ABBA or BAAB by a fair coin that depends on (seed, index)
    only.

    A campaign that was killed plans the rest with start=len(measured) and gets what it would have got.
    """
    if n < 0 or start < 0:
        raise ValueError(f"cannot plan {n} blocks from index {start}: both must be 0 or more")
    return [PlannedBlock(i, ORDERS[_coin("block", seed, i)]) for i in range(start, start + n)]


def plan_pairs(n: int, seed: int, start: int = 0) -> list[tuple[Side, Side]]:
    """In what order the two servers of each pair of a confirmation are started, by a fair coin.

    The server started first may be the luckier one (memory layout, cores); the coin keeps luck apart from the label,
    so that the sign-flip test over pairs is exact too.
    """
    if n < 0 or start < 0:
        raise ValueError(f"cannot plan {n} pairs from index {start}: both must be 0 or more")
    return [("B", "A") if _coin("pair", seed, i) else ("A", "B") for i in range(start, start + n)]


@dataclass(frozen=True, slots=True)
class Block:
    """One measured block.

    runs: throughput of the four runs in the order of running (output tokens/s; any positive unit, the same for all).
    metrics: other figures by name, each four values in the order of running (for example `ttft_p99_ms`): for guards.
    digests: content digests of the raw evidence, one per run in the order of running; may be empty in simulations.
    pair: which pair of servers was measured; a restart of either server starts a new pair.
    Raises ValueError for anything but four finite positive throughputs: zero tokens is a failed run, not a slow one.
    """

    index: int
    order: Order
    runs: tuple[float, float, float, float]
    digests: tuple[str, ...] = ()
    pair: int = 0
    metrics: Mapping[str, tuple[float, float, float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"block {self.index}: order must be one of {ORDERS}, not {self.order!r}")
        if self.index < 0 or self.pair < 0:
            raise ValueError(f"block index and pair must be 0 or more, not {self.index} and {self.pair}")
        if len(self.runs) != RUNS_PER_BLOCK or not all(math.isfinite(r) and r > 0 for r in self.runs):
            raise ValueError(f"block {self.index}: needs four finite positive throughputs, got {self.runs!r}")
        if len(self.digests) not in (0, RUNS_PER_BLOCK):
            raise ValueError(f"block {self.index}: needs one digest per run, got {len(self.digests)}")
        for name, values in self.metrics.items():
            if len(values) != RUNS_PER_BLOCK or not all(math.isfinite(v) and v >= 0 for v in values):
                raise ValueError(f"block {self.index}: metric {name!r} needs four finite values >= 0, got {values!r}")

    @property
    def log_ratio(self) -> float:
        """mean(log B) - mean(log A): the natural logarithm of B's speed over A's. Requests are never pooled."""
        return self._contrast(self.runs)

    def metric_log_ratio(self, name: str) -> float:
        """The same for a metric; KeyError when it was not measured, ValueError when it is zero somewhere."""
        values = self.metrics[name]
        if not all(v > 0 for v in values):
            raise ValueError(f"block {self.index}: metric {name!r} has a zero, its ratio means nothing: {values!r}")
        return self._contrast(values)

    def side(self, side: Side, metric: str | None = None) -> tuple[float, float]:
        """The two values of one side, throughput unless a metric is named."""
        values = self.runs if metric is None else self.metrics[metric]
        first, second = (v for v, s in zip(values, self.order, strict=True) if s == side)
        return first, second

    def _contrast(self, values: Sequence[float]) -> float:
        outer = (math.log(values[0]) + math.log(values[3])) / 2
        inner = (math.log(values[1]) + math.log(values[2])) / 2
        return inner - outer if self.order == "ABBA" else outer - inner

    def swapped(self) -> Block:
        """The same runs with A and B exchanged; its log-ratio is exactly the negative."""
        other: Order = "BAAB" if self.order == "ABBA" else "ABBA"
        return Block(self.index, other, self.runs, self.digests, self.pair, self.metrics)

    def to_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "order": self.order,
            "runs": list(self.runs),
            "digests": list(self.digests),
            "pair": self.pair,
            "metrics": {k: list(v) for k, v in sorted(self.metrics.items())},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Block:
        return cls(
            index=int(data["index"]),
            order=data["order"],
            runs=_four(data["runs"]),
            digests=tuple(str(d) for d in data.get("digests", ())),
            pair=int(data.get("pair", 0)),
            metrics={str(k): _four(v) for k, v in data.get("metrics", {}).items()},
        )


def _four(values: Iterable[Any]) -> tuple[float, float, float, float]:
    # length is checked by Block, which can say which block it was
    return cast("tuple[float, float, float, float]", tuple(float(v) for v in values))


def check_complete(blocks: Sequence[Block]) -> None:
    """ValueError unless the blocks are 0, 1, 2, ... in order: no block may be dropped, repeated or reordered.

    Leaving out the blocks one does not like is the oldest way to make a gain.
    """
    indices = [b.index for b in blocks]
    if indices != list(range(len(blocks))):
        raise ValueError(f"blocks must be numbered 0 ... {len(blocks) - 1} without gap or repetition, got {indices}")


def log_ratios(blocks: Sequence[Block]) -> list[float]:
    """The log-ratio of each block, in order."""
    return [b.log_ratio for b in blocks]


def pair_means(blocks: Sequence[Block]) -> list[float]:
    """Mean log-ratio of each server pair, in order of pair: the unit of evidence once servers are restarted."""
    pairs: dict[int, list[float]] = {}
    for block in blocks:
        pairs.setdefault(block.pair, []).append(block.log_ratio)
    return [math.fsum(v) / len(v) for _, v in sorted(pairs.items())]


def percent(log_ratio: float) -> float:
    """A log-ratio as a gain in percent."""
    return math.expm1(log_ratio) * 100.0


def from_percent(gain_pct: float) -> float:
    """A gain in percent as a log-ratio. ValueError at or below -100 %."""
    if not gain_pct > -100.0:
        raise ValueError(f"a gain of {gain_pct} % has no logarithm")
    return math.log1p(gain_pct / 100.0)
