"""Variants of templates/linear_bf16.cpp: packed-weight bf16 linear layers for small batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from optimizer.engine.agents.tuner.family import Choice, Host, Params, constants, fill
from optimizer.engine.tasks.base import KernelTask

TEMPLATE = "linear_bf16.cpp"
# Vector instruction sets, best first: fp32 lanes of a register, and registers left for sums (the rest hold
# weights and activations).
VECTOR_ISAS: Mapping[str, tuple[int, int]] = {
    "avx512_bf16": (16, 28),
    "avx512": (16, 26),
    "avx2": (8, 11),
    "neon_bf16": (4, 26),
    "neon": (4, 22),
    "generic": (8, 4),
}
TILE_ROWS = 16
TILE_SUMS = 4  # tiles 0-3 hold sums, 4-5 activations, 6-7 weights
MAX_INLINED = 384  # dot-product instructions in the innermost block


@dataclass(frozen=True, slots=True)
class LinearBf16:
    name: str = "linear_bf16"
    tasks: tuple[str, ...] = ("linear_bf16_cpu",)
    max_batch: int = TILE_ROWS

    def space(
        self,
        task: KernelTask,  # noqa: ARG002 - interface
        host: Host,
        batch: int,
    ) -> dict[str, BaseDistribution]:
        engines = ["vector"]
        if host.runs("amx_bf16") and batch <= TILE_ROWS:
            engines.append("matrix")
        space: dict[str, BaseDistribution] = {
            "group": CategoricalDistribution((1, 2, 3, 4)),  # panels worked on together
            "streams": CategoricalDistribution((1, 2, 4, 8, 16)),  # places along K read side by side
            "unroll": CategoricalDistribution((1, 2, 4)),  # k pairs of a stream at a time
            "chains": CategoricalDistribution((1, 2, 4)),  # independent sums of one output
            "ahead": CategoricalDistribution((0, 512, 1024, 2048, 4096, 8192)),  # prefetch distance, bytes
            "hint": CategoricalDistribution(("l1", "l2", "nta")),  # where a prefetch goes
            "every": CategoricalDistribution((1, 2, 4)),  # prefetch one line in so many
            "interleaved": CategoricalDistribution((False, True)),  # panels of a group share one stream
            "skew": CategoricalDistribution((0, 320)),  # bytes between panels, against cache set conflicts
        }
        if len(engines) > 1:
            space["engine"] = CategoricalDistribution(tuple(engines))
            space["stream_load"] = CategoricalDistribution((False, True))
        if batch > 1:
            space["rows"] = CategoricalDistribution(tuple(r for r in (1, 2, 4, 8) if r <= batch))
        if host.threads > 1:
            space["cyclic"] = CategoricalDistribution((False, True))  # panel groups to threads in turn
        return space

    def repair(self, params: Params, host: Host, batch: int) -> dict[str, Any]:
        p = {"engine": "vector", "stream_load": False, "rows": 1, "cyclic": False, **params}
        if p["ahead"] == 0:
            p |= {"hint": "none", "every": 1}
        if p["group"] == 1:
            p["interleaved"] = False
        if p["interleaved"]:
            p["skew"] = 0  # neighbours share a stream already
        if p["engine"] == "matrix":
            p |= {"unroll": 1, "rows": min(batch, TILE_ROWS)}
            p["chains"] = max(c for c in (1, 2, 4) if c <= p["chains"] and c * p["group"] <= TILE_SUMS)
            return p
        p["stream_load"] = False
        _, registers = VECTOR_ISAS[self._vector_isa(host)]
        # Rows share each weight that was loaded, so they keep their registers; chains give way first.
        for name, floor in (("chains", 1), ("group", 1), ("rows", 1)):
            while p["rows"] * p["group"] * p["chains"] > registers and p[name] > floor:
                p[name] = p[name] // 2 if name != "group" else p[name] - 1
        p["chains"] = min(p["chains"], p["streams"] * p["unroll"])
        while p["streams"] * p["unroll"] * p["group"] * p["rows"] > MAX_INLINED and p["unroll"] > 1:
            p["unroll"] //= 2
        while p["streams"] * p["unroll"] * p["group"] * p["rows"] > MAX_INLINED and p["streams"] > 1:
            p["streams"] //= 2
        if p["group"] == 1:
            p["interleaved"] = False
        return p

    def fits(self, params: Params, shape: Mapping[str, int], host: Host) -> bool:
        lanes, _ = VECTOR_ISAS[self._vector_isa(host)]
        return shape["N"] % (lanes * params["group"]) == 0 and shape["K"] % 32 == 0

    def layout(self, params: Params) -> tuple[Any, ...]:
        return (params["group"] if params["interleaved"] else 1, params["skew"])

    def isa(self, params: Params, host: Host) -> str:
        return "amx_bf16" if params["engine"] == "matrix" else self._vector_isa(host)

    def trial_source(self, task: KernelTask, params: Params, batch: int) -> str:  # noqa: ARG002 - interface
        choice = Choice({"N": 0, "K": 0}, batch, batch, params)
        return self._source([choice])

    def composed_source(self, task: KernelTask, choices: Sequence[Choice]) -> str:  # noqa: ARG002 - interface
        return self._source(choices)

    def unify(self, choices: Sequence[Choice]) -> list[Choice]:
        return list(choices)

    def _vector_isa(self, host: Host) -> str:
        return next(isa for isa in VECTOR_ISAS if host.runs(isa))

    def _source(self, choices: Sequence[Choice]) -> str:
        def key_of(choice: Choice) -> tuple[tuple[str, Any], ...]:
            # Row counts that do not fill a block of rows need the smaller blocks compiled, too.
            tails = any(m % choice.params["rows"] for m in range(choice.m_min, choice.m_max + 1))
            return tuple(sorted(self._constants(choice.params, tails=tails).items()))

        names: dict[tuple[tuple[str, Any], ...], str] = {}
        structs: list[str] = []
        for choice in choices:
            key = key_of(choice)
            if key not in names:
                names[key] = f"Variant{len(names)}"
                structs.append(constants(names[key], dict(key)))
        shapes = sorted({(c.shape["N"], c.shape["K"]) for c in choices})
        entries = []
        for n, k in shapes:
            mine = sorted((c for c in choices if (c.shape["N"], c.shape["K"]) == (n, k)), key=lambda c: c.m_min)
            layouts = {self.layout(c.params) for c in mine}
            if len(layouts) != 1:
                raise ValueError(f"N={n} K={k}: variants disagree in the layout of weights: {sorted(layouts)}")
            group, skew = next(iter(layouts))
            ranges = ", ".join(f"{{{c.m_min}, {c.m_max}, run<{names[key_of(c)]}>}}" for c in mine)
            # Divisibility matters only where the shape is open (n == 0): then the group of the variant counts.
            unit = mine[0].params["group"] if n == 0 else group
            interleaved = "true" if mine[0].params["interleaved"] else "false"
            entries.append(f"    {{{n}, {k}, {unit}, {interleaved}, {skew}, {len(mine)}, {{{ranges}}}}},")
        table = "\n".join(["constexpr Entry kTable[] = {", *entries, "};"])
        return fill(TEMPLATE, "\n\n".join([*structs, table]))

    @staticmethod
    def _constants(p: Params, *, tails: bool) -> dict[str, bool | int]:
        return {
            "kMatrix": p["engine"] == "matrix",
            "kInterleaved": bool(p["interleaved"]),
            "kCyclic": bool(p["cyclic"]),
            "kStreamLoad": bool(p["stream_load"]),
            "kTails": tails and p["engine"] != "matrix",
            "kGroup": int(p["group"]),
            "kStreams": int(p["streams"]),
            "kUnroll": int(p["unroll"]),
            "kChains": int(p["chains"]),
            "kRows": int(p["rows"]),
            "kHint": {"none": 0, "l1": 1, "l2": 2, "nta": 3}[p["hint"]],
            "kEvery": int(p["every"]),
            "kAhead": int(p["ahead"]),
            "kSkew": int(p["skew"]),
        }


FAMILY = LinearBf16()
