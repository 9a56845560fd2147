"""Residual add and RMS normalisation, vLLM's IR operator `fused_add_rms_norm`.

residual' = x + x_residual; y = residual' / sqrt(mean(residual'^2) + epsilon) * weight. The sum is normalised
before it is rounded to bfloat16 for the residual stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from optimizer.engine.tasks.base import (
    Array,
    Inputs,
    KernelTask,
    OpMatch,
    Shape,
    Style,
    SwapPoint,
    TensorSpec,
)
from optimizer.engine.tasks.generators import bf16, values
from optimizer.engine.tasks.rms_norm_cpu import EPSILON, normalise32, normalise64


def reference(inputs: Inputs) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        total = inputs["x"].astype(np.float64) + inputs["x_residual"].astype(np.float64)
    weight = inputs["weight"].astype(np.float64)
    return {"y": normalise64(total, weight, float(inputs["epsilon"])), "residual": total}


def working(inputs: Inputs) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        total = inputs["x"].astype(np.float32) + inputs["x_residual"].astype(np.float32)
    return {"y": normalise32(total, inputs["weight"], float(inputs["epsilon"])), "residual": bf16(total)}


def generate(shape: Shape, rng: np.random.Generator, style: Style) -> Inputs:
    m, h = shape["M"], shape["H"]
    return {
        "x": bf16(values((m, h), rng, style)),
        "x_residual": bf16(values((m, h), rng, style)),
        "weight": bf16(1.0 + values((h,), rng, "normal", scale=0.1)),
        "epsilon": np.asarray(EPSILON),
    }


def flops(shape: Shape) -> float:
    return 5.0 * shape["M"] * shape["H"]


def bytes_moved(shape: Shape) -> float:
    return 2.0 * (4 * shape["M"] * shape["H"] + shape["H"])


def shape_of_call(dims: Sequence[Any], dtypes: Sequence[str]) -> dict[str, int] | None:
    """Axes from (x [..., H], x_residual [..., H], weight [H], epsilon, variance_size)."""
    if len(dims) < 3 or len(dtypes) < 3 or "bfloat16" not in dtypes[0].lower():
        return None
    x, residual, weight = dims[0], dims[1], dims[2]
    if not isinstance(x, list) or len(x) < 2 or residual != x or weight != x[-1:]:
        return None
    rows = 1
    for length in x[:-1]:
        rows *= int(length)
    return {"M": rows, "H": int(x[-1])}


TASK = KernelTask(
    name="fused_add_rms_norm_cpu",
    title="Residual add and RMS normalisation, bfloat16, CPU",
    inputs=(
        TensorSpec("x", ("M", "H"), "bfloat16"),
        TensorSpec("x_residual", ("M", "H"), "bfloat16"),
        TensorSpec("weight", ("H",), "bfloat16"),
        TensorSpec("epsilon", (), "float64"),
    ),
    outputs=(
        TensorSpec("y", ("M", "H"), "bfloat16", may_alias="x"),
        TensorSpec("residual", ("M", "H"), "bfloat16", may_alias="x_residual"),
    ),
    reference=reference,
    working=working,
    generate=generate,
    flops=flops,
    bytes_moved=bytes_moved,
    shapes=({"M": 1, "H": 1024}, {"M": 8, "H": 1024}),
    odd_shapes=({"M": 0, "H": 64}, {"M": 1, "H": 1}, {"M": 3, "H": 17}, {"M": 5, "H": 1027}),
    swap=SwapPoint("vllm.ir-provider", "fused_add_rms_norm"),
    match=OpMatch(("vllm_ir::fused_add_rms_norm",), shape_of_call),
    batch_axis="M",
    notes="variance_size is None: a call that sets it keeps the engine's own operator.",
)
