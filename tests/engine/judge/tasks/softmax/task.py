"""A small task for the judge's own tests: softmax over rows, float32, with a 0-d scale."""

from __future__ import annotations

import numpy as np

from optimizer.engine.tasks.base import Array, Budget, Inputs, KernelTask, Shape, Style, TensorSpec


def reference(inputs: Inputs) -> dict[str, Array]:
    x = inputs["x"].astype(np.float64) * float(inputs["scale"])
    if x.size == 0:
        return {"y": x}
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return {"y": e / e.sum(axis=-1, keepdims=True)}


def working(inputs: Inputs) -> dict[str, Array]:
    """In float32 throughout, summed in the plainest order: what any honest kernel may do."""
    x = (inputs["x"] * np.float32(float(inputs["scale"]))).astype(np.float32)
    if x.size == 0:
        return {"y": x}
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return {"y": e / np.cumsum(e, axis=-1, dtype=np.float32)[..., -1:]}


def generate(shape: Shape, rng: np.random.Generator, style: Style) -> Inputs:
    dims = (shape["M"], shape["N"])
    x = rng.standard_normal(dims)
    scale = float(np.float32(rng.uniform(0.5, 1.5)))
    if style == "spikes":
        x = np.where(rng.random(dims) < 0.02, x * 50, x)
    elif style == "huge":
        x = x * 1e4
    elif style == "tiny":
        x = x * 1e-30
    elif style == "binary":
        x, scale = rng.integers(0, 2, dims).astype(np.float64), 1.0
    elif style == "zeros":
        x = np.zeros(dims)
    elif style == "equal":
        x = np.full(dims, float(rng.standard_normal()))
    elif style == "nonfinite" and x.size:
        x.reshape(-1)[:: 3 * shape["N"] + 1] = np.nan
    return {"x": x.astype(np.float32), "scale": np.float64(scale)[()] * np.ones(())}


TASK = KernelTask(
    name="test_softmax",
    title="Softmax over rows, float32",
    inputs=(TensorSpec("x", ("M", "N"), "float32"), TensorSpec("scale", (), "float64")),
    outputs=(TensorSpec("y", ("M", "N"), "float32"),),
    reference=reference,
    working=working,
    generate=generate,
    flops=lambda s: 5.0 * s["M"] * s["N"],
    bytes_moved=lambda s: 8.0 * s["M"] * s["N"],
    shapes=({"M": 4, "N": 64}, {"M": 8, "N": 256}),
    odd_shapes=({"M": 0, "N": 8}, {"M": 1, "N": 1}, {"M": 3, "N": 17}, {"M": 5, "N": 131}),
    budget=Budget(k=4.0, floor_ulps=4.0),
    batch_axis="M",
)
