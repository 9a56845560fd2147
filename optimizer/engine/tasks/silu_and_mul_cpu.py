"""Gated activation of Llama-like models: y[M, D] = silu(x[:, :D]) * x[:, D:]."""

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


def reference(inputs: Inputs) -> dict[str, Array]:
    x = inputs["x"].astype(np.float64)
    d = x.shape[-1] // 2
    with np.errstate(all="ignore"):
        return {"y": x[:, :d] / (1.0 + np.exp(-x[:, :d])) * x[:, d:]}


def working(inputs: Inputs) -> dict[str, Array]:
    """As the engine's eager operator: silu in fp32 rounded to bf16, then the product rounded to bf16."""
    x = inputs["x"].astype(np.float32)
    d = x.shape[-1] // 2
    with np.errstate(all="ignore"):
        gate = bf16(x[:, :d] / (np.float32(1.0) + np.exp(-x[:, :d])))
        return {"y": bf16(gate.astype(np.float32) * x[:, d:])}


def generate(shape: Shape, rng: np.random.Generator, style: Style) -> Inputs:
    return {"x": bf16(values((shape["M"], shape["D2"]), rng, style))}


def flops(shape: Shape) -> float:
    return 5.0 * shape["M"] * (shape["D2"] // 2)


def bytes_moved(shape: Shape) -> float:
    return 2.0 * shape["M"] * (shape["D2"] + shape["D2"] // 2)


def shape_of_call(dims: Sequence[Any], dtypes: Sequence[str]) -> dict[str, int] | None:
    """Axes from `_C::silu_and_mul(Tensor! out [M, D], Tensor x [M, 2 D])`."""
    if len(dims) < 2 or len(dtypes) < 2 or "bfloat16" not in dtypes[0].lower():
        return None
    out, x = dims[0], dims[1]
    if not isinstance(out, list) or not isinstance(x, list) or len(x) < 2 or out[:-1] != x[:-1]:
        return None
    if 2 * out[-1] != x[-1]:
        return None
    rows = 1
    for length in x[:-1]:
        rows *= int(length)
    return {"M": rows, "D2": int(x[-1]), "D": int(out[-1])}


TASK = KernelTask(
    name="silu_and_mul_cpu",
    title="SiLU of one half times the other, bfloat16, CPU",
    inputs=(TensorSpec("x", ("M", "D2"), "bfloat16"),),
    outputs=(TensorSpec("y", ("M", "D"), "bfloat16"),),
    reference=reference,
    working=working,
    generate=generate,
    flops=flops,
    bytes_moved=bytes_moved,
    shapes=({"M": 1, "D2": 5632, "D": 2816}, {"M": 8, "D2": 5632, "D": 2816}),
    odd_shapes=(
        {"M": 0, "D2": 64, "D": 32},
        {"M": 1, "D2": 2, "D": 1},
        {"M": 3, "D2": 34, "D": 17},
        {"M": 5, "D2": 2054, "D": 1027},
    ),
    swap=SwapPoint("torch.library-override", "_C::silu_and_mul"),
    match=OpMatch(("_C::silu_and_mul",), shape_of_call),
    batch_axis="M",
)
