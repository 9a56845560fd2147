"""Variants of templates/rowwise.cpp: normalisation and gated activation, one pass over each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from optimizer.engine.agents.tuner.family import Choice, Host, Params, constants, fill
from optimizer.engine.tasks.base import KernelTask

TEMPLATE = "rowwise.cpp"
ISAS = ("avx512_bf16", "avx512", "avx2", "neon_bf16", "neon", "generic")
OPERATORS: Mapping[str, int] = {"rms_norm_cpu": 0, "fused_add_rms_norm_cpu": 1, "silu_and_mul_cpu": 2}


@dataclass(frozen=True, slots=True)
class Rowwise:
    name: str = "rowwise"
    tasks: tuple[str, ...] = tuple(OPERATORS)
    max_batch: int = 64

    def space(self, task: KernelTask, host: Host, batch: int) -> dict[str, BaseDistribution]:
        isas = tuple(isa for isa in ISAS if host.runs(isa))
        space: dict[str, BaseDistribution] = {
            "isa": CategoricalDistribution(isas),
            "block": CategoricalDistribution((8, 16, 32, 64, 128)),  # elements of the innermost loop
        }
        if task.name == "silu_and_mul_cpu":
            space["degree"] = CategoricalDistribution((0, 5, 6))  # of the exponential; 0 is the C library's
        else:
            space["chains"] = CategoricalDistribution((1, 2, 4))  # independent sums of squares
            space["hold"] = CategoricalDistribution((False, True))  # keep the row in fp32 or read it again
        if host.threads > 1 and batch > 1:
            space["rows_per_thread"] = CategoricalDistribution((1, 2, 4, 16, 64))
        return space

    def repair(self, params: Params, host: Host, batch: int) -> dict[str, Any]:  # noqa: ARG002 - interface
        return {"degree": 0, "chains": 1, "hold": False, "rows_per_thread": 64, **params}

    def fits(self, params: Params, shape: Mapping[str, int], host: Host) -> bool:  # noqa: ARG002 - interface
        return True

    def layout(self, params: Params) -> tuple[Any, ...]:
        # There is no prepared state, but one object has one variant: all shapes and batches share it.
        return tuple(sorted(params.items()))

    def isa(self, params: Params, host: Host) -> str:  # noqa: ARG002 - interface
        return str(params["isa"])

    def trial_source(self, task: KernelTask, params: Params, batch: int) -> str:
        return self._source(task, params, [Choice({}, batch, batch, params)])

    def composed_source(self, task: KernelTask, choices: Sequence[Choice]) -> str:
        return self._source(task, choices[0].params, choices)

    def unify(self, choices: Sequence[Choice]) -> list[Choice]:
        """One variant for all: the one that was picked for most shapes and batches."""
        keys = [tuple(sorted(c.params.items())) for c in choices]
        common = Counter(keys).most_common(1)[0][0]
        return [Choice(c.shape, c.m_min, c.m_max, dict(common)) for c in choices]

    def _source(self, task: KernelTask, p: Params, choices: Sequence[Choice]) -> str:
        values: dict[str, bool | int] = {
            "kOperator": OPERATORS[task.name],
            "kBlock": int(p["block"]),
            "kChains": int(p["chains"]),
            "kHold": bool(p["hold"]),
            "kDegree": int(p["degree"]),
            "kRowsPerThread": int(p["rows_per_thread"]),
        }
        rows = ", ".join(f"{{{self._length(c.shape)}, {c.m_min}, {c.m_max}}}" for c in choices)
        return fill(
            TEMPLATE,
            "\n".join(
                [
                    constants("Variant", values),
                    "struct Range {  // length 0: any",
                    "  int64_t length, m_min, m_max;",
                    "};",
                    f"constexpr Range kTable[] = {{{rows}}};",
                ]
            ),
        )

    @staticmethod
    def _length(shape: Mapping[str, int]) -> int:
        """Length of an output row."""
        return shape.get("D", shape.get("H", 0))


FAMILY = Rowwise()
