"""A small task with constants: y = x @ w.T + b in bfloat16, accumulated in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from optimizer.engine.tasks.base import Array, Inputs, KernelTask, Shape, Style, TensorSpec

BF16 = ml_dtypes.bfloat16


def reference(inputs: Inputs) -> dict[str, Array]:
    x, w, b = (inputs[n].astype(np.float64) for n in ("x", "w", "b"))
    return {"y": x @ w.T + b}


def working(inputs: Inputs) -> dict[str, Array]:
    x, w, b = (inputs[n].astype(np.float32) for n in ("x", "w", "b"))
    return {"y": (x @ w.T + b).astype(BF16)}


def generate(shape: Shape, rng: np.random.Generator, style: Style) -> Inputs:
    m, n, k = shape["M"], shape["N"], shape["K"]
    x, w, b = rng.standard_normal((m, k)), rng.standard_normal((n, k)) / max(k, 1) ** 0.5, rng.standard_normal(n)
    if style == "spikes":
        x = np.where(rng.random((m, k)) < 0.02, x * 50, x)
    elif style == "huge":
        x, b = x * 1e12, b * 1e12
    elif style == "tiny":
        x, b = x * 1e-15, b * 1e-15
    elif style == "binary":
        x, w, b = (rng.integers(0, 2, a.shape).astype(np.float64) for a in (x, w, b))
    elif style == "zeros":
        x = np.zeros_like(x)
    elif style == "equal":
        x = np.full_like(x, 0.5)
    elif style == "nonfinite" and x.size:
        x.reshape(-1)[0] = np.inf
    return {"x": x.astype(BF16), "w": w.astype(BF16), "b": b.astype(BF16)}


TASK = KernelTask(
    name="test_affine",
    title="Affine map with constant weights, bfloat16",
    inputs=(
        TensorSpec("x", ("M", "K"), "bfloat16"),
        TensorSpec("w", ("N", "K"), "bfloat16", constant=True),
        TensorSpec("b", ("N",), "bfloat16", constant=True),
    ),
    outputs=(TensorSpec("y", ("M", "N"), "bfloat16"),),
    reference=reference,
    working=working,
    generate=generate,
    flops=lambda s: 2.0 * s["M"] * s["N"] * s["K"],
    bytes_moved=lambda s: 2.0 * (s["M"] * s["K"] + s["N"] * s["K"] + s["M"] * s["N"]),
    shapes=({"M": 2, "N": 32, "K": 64}, {"M": 8, "N": 32, "K": 64}),
    odd_shapes=({"M": 0, "N": 8, "K": 8}, {"M": 1, "N": 1, "K": 1}, {"M": 3, "N": 7, "K": 13}),
    batch_axis="M",
)
