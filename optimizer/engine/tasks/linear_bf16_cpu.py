"""Unquantised bfloat16 linear layer on a CPU: y[M, N] = x[M, K] @ w[N, K]^T."""

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
    with np.errstate(all="ignore"):
        return {"y": inputs["x"].astype(np.float64) @ inputs["w"].astype(np.float64).T}


def working(inputs: Inputs) -> dict[str, Array]:
    """bf16 in, fp32 sums, one rounding at the end."""
    with np.errstate(all="ignore"):
        return {"y": bf16(inputs["x"].astype(np.float32) @ inputs["w"].astype(np.float32).T)}


def generate(shape: Shape, rng: np.random.Generator, style: Style) -> Inputs:
    """Weights have the magnitude of a trained layer's (1/sqrt(K)), so that outputs are about as large as x."""
    m, n, k = shape["M"], shape["N"], shape["K"]
    # An infinity in a weight would poison whole columns and hide everything else: activations carry them.
    weight_style: Style = "normal" if style in ("nonfinite", "huge") else style
    return {
        "x": bf16(values((m, k), rng, style)),
        "w": bf16(values((n, k), rng, weight_style, scale=max(k, 1) ** -0.5)),
    }


def flops(shape: Shape) -> float:
    return 2.0 * shape["M"] * shape["N"] * shape["K"]


def bytes_moved(shape: Shape) -> float:
    m, n, k = shape["M"], shape["N"], shape["K"]
    return 2.0 * (m * k + n * k + m * n)


def _bf16_name(text: str) -> bool:
    return "bfloat16" in text.lower()


def shape_of_call(dims: Sequence[Any], dtypes: Sequence[str]) -> dict[str, int] | None:
    """Axes from a recorded `_C::onednn_mm(Tensor! c, Tensor a, Tensor? bias, Tensor handler)`.

    The weight is behind the handler, so N comes from the output c [M, N] and K from a [M, K]. A call with a
    bias is another operator.
    """
    if len(dims) < 3 or len(dtypes) < 3 or not (_bf16_name(dtypes[0]) and _bf16_name(dtypes[1])):
        return None
    out, x, bias = dims[0], dims[1], dims[2]
    if not (isinstance(out, list) and isinstance(x, list) and len(out) == len(x) == 2) or bias:
        return None
    if out[0] != x[0]:
        return None
    return {"M": int(out[0]), "N": int(out[1]), "K": int(x[1])}


TASK = KernelTask(
    name="linear_bf16_cpu",
    title="bfloat16 linear layer without bias, CPU",
    inputs=(TensorSpec("x", ("M", "K"), "bfloat16"), TensorSpec("w", ("N", "K"), "bfloat16", constant=True)),
    outputs=(TensorSpec("y", ("M", "N"), "bfloat16"),),
    reference=reference,
    working=working,
    generate=generate,
    flops=flops,
    bytes_moved=bytes_moved,
    shapes=(
        {"M": 1, "N": 1536, "K": 1024},
        {"M": 8, "N": 1024, "K": 1024},
        {"M": 8, "N": 5632, "K": 1024},
        {"M": 8, "N": 1024, "K": 2816},
        {"M": 1, "N": 10240, "K": 1024},
    ),
    odd_shapes=(
        {"M": 0, "N": 64, "K": 64},
        {"M": 1, "N": 1, "K": 1},
        {"M": 3, "N": 17, "K": 31},
        {"M": 5, "N": 48, "K": 96},
        {"M": 13, "N": 112, "K": 352},
        {"M": 33, "N": 257, "K": 129},
    ),
    swap=SwapPoint("vllm.linear", "cpu_unquantized_gemm"),
    match=OpMatch(("_C::onednn_mm",), shape_of_call),
    batch_axis="M",
    notes=(
        "Subnormal inputs and sums may count as zero: bf16 dot-product instructions do so by definition. "
        "Layers with a bias keep the engine's own operator."
    ),
)
