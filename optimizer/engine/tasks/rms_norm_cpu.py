"""RMS normalisation, vLLM's IR operator `rms_norm`: y = x / sqrt(mean(x^2) + epsilon) * weight."""

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

EPSILON = 1e-5


def normalise64(x: Array, weight: Array, epsilon: float) -> Array:
    """The truth in float64; rows are the leading axis."""
    with np.errstate(all="ignore"):
        variance = np.mean(np.square(x), axis=-1, keepdims=True) if x.shape[-1] else 0.0
        return np.asarray(x / np.sqrt(variance + epsilon) * weight)


def normalise32(x: Array, weight: Array, epsilon: float) -> Array:
    """As the engine does it: fp32, then rounded to bf16 before and after the multiplication by the weight."""
    with np.errstate(all="ignore"):
        variance = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
        scaled = x * (np.float32(1.0) / np.sqrt(variance + np.float32(epsilon)))
        return bf16(bf16(scaled).astype(np.float32) * weight.astype(np.float32))


def reference(inputs: Inputs) -> dict[str, Array]:
    x, weight = inputs["x"].astype(np.float64), inputs["weight"].astype(np.float64)
    return {"y": normalise64(x, weight, float(inputs["epsilon"]))}


def working(inputs: Inputs) -> dict[str, Array]:
    return {"y": normalise32(inputs["x"].astype(np.float32), inputs["weight"], float(inputs["epsilon"]))}


def generate(shape: Shape, rng: np.random.Generator, style: Style) -> Inputs:
    m, h = shape["M"], shape["H"]
    return {
        "x": bf16(values((m, h), rng, style)),
        "weight": bf16(1.0 + values((h,), rng, "normal", scale=0.1)),
        "epsilon": np.asarray(EPSILON),
    }


def flops(shape: Shape) -> float:
    return 4.0 * shape["M"] * shape["H"]


def bytes_moved(shape: Shape) -> float:
    return 2.0 * (2 * shape["M"] * shape["H"] + shape["H"])


def shape_of_call(dims: Sequence[Any], dtypes: Sequence[str]) -> dict[str, int] | None:
    """Axes from (x [..., H], weight [H], epsilon, variance_size)."""
    if len(dims) < 2 or len(dtypes) < 2 or "bfloat16" not in dtypes[0].lower():
        return None
    x, weight = dims[0], dims[1]
    if not isinstance(x, list) or len(x) < 2 or not isinstance(weight, list) or weight != x[-1:]:
        return None
    rows = 1
    for length in x[:-1]:
        rows *= int(length)
    return {"M": rows, "H": int(x[-1])}


TASK = KernelTask(
    name="rms_norm_cpu",
    title="RMS normalisation, bfloat16, CPU",
    inputs=(
        TensorSpec("x", ("M", "H"), "bfloat16"),
        TensorSpec("weight", ("H",), "bfloat16"),
        TensorSpec("epsilon", (), "float64"),
    ),
    outputs=(TensorSpec("y", ("M", "H"), "bfloat16"),),
    reference=reference,
    working=working,
    generate=generate,
    flops=flops,
    bytes_moved=bytes_moved,
    shapes=({"M": 1, "H": 1024}, {"M": 8, "H": 1024}),
    odd_shapes=({"M": 0, "H": 64}, {"M": 1, "H": 1}, {"M": 3, "H": 17}, {"M": 5, "H": 1027}),
    swap=SwapPoint("vllm.ir-provider", "rms_norm"),
    match=OpMatch(("vllm_ir::rms_norm",), shape_of_call),
    batch_axis="M",
    notes="variance_size is None: a call that sets it keeps the engine's own operator.",
)
