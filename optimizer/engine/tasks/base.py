"""What a kernel task is: the operator to replace, its truth, its inputs, and where the engine lets us in.

Adding a task is one file in this folder (or in a folder outside of the project, see `discover`) with a
module-level `TASK = KernelTask(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = Mapping[str, int]  # axis name -> length, e.g. {"M": 8, "N": 5632, "K": 1024}
Inputs = dict[str, Array]
Style = Literal["normal", "spikes", "huge", "tiny", "binary", "zeros", "equal", "nonfinite"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a task's interface.

    dims: axis names, in order; () is a 0-d scalar, passed to C candidates as float64.
    dtype: "bfloat16", "float32", "float64", ... (numpy or ml_dtypes names).
    constant: known when the server starts (weights): handed to `prepare` once, not to every call.
    may_alias: name of an input this output may share memory with, where the contract allows it.
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    constant: bool = False
    may_alias: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """The error a candidate may make, element by element, against the fp64 truth.

    err(candidate) <= k * err(working precision reference) + floor, where the second is what the same
    operator computed at the task's own precision gets wrong on the same inputs; floor is `floor_ulps` units
    in the last place of the output dtype at the magnitude of the truth. No constants tuned by eye.
    """

    k: float = 2.0
    floor_ulps: float = 1.0


@dataclass(frozen=True, slots=True)
class SwapPoint:
    """Where the serving engine lets a kernel in. kind is a registry artifact kind, e.g. `vllm.linear`."""

    kind: str
    target: str  # e.g. "cpu_unquantized_gemm", "rms_norm"
    engine: str = "vllm>=0.32,<0.33"  # PEP 440 specifier of the versions this was checked on


@dataclass(frozen=True, slots=True)
class OpMatch:
    """How the operator appears in a profile: exact event names, and its shape from the recorded dims.

    `shape(dims, dtypes)` gets the profiler's `Input Dims` and `Input type` of one call and returns the task's
    axes, or None when this call is not this task's (another dtype, another rank).
    """

    names: tuple[str, ...]
    shape: Callable[[Sequence[Any], Sequence[str]], dict[str, int] | None]


@dataclass(frozen=True, slots=True)
class KernelTask:
    """A task. All functions are pure and take numpy arrays (ml_dtypes for bfloat16).

    reference(inputs) -> outputs in float64: the truth.
    working(inputs) -> outputs in their own dtype: the operator as an honest implementation at the task's
        precision computes it (e.g. bf16 inputs, fp32 accumulation, one rounding).
    generate(shape, rng, style) -> inputs for one call, constants included.
    flops(shape), bytes_moved(shape): the minimum work, for rooflines; constants counted once a call.
    """

    name: str
    title: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    reference: Callable[[Inputs], dict[str, Array]]
    working: Callable[[Inputs], dict[str, Array]]
    generate: Callable[[Shape, np.random.Generator, Style], Inputs]
    flops: Callable[[Shape], float]
    bytes_moved: Callable[[Shape], float]
    shapes: tuple[Shape, ...]  # declared shapes; the live ones of a server come from its profile
    odd_shapes: tuple[Shape, ...]  # held-out: 0, 1, primes, tails
    budget: Budget = field(default_factory=Budget)
    swap: SwapPoint | None = None
    match: OpMatch | None = None
    batch_axis: str | None = None  # the axis that grows with tokens per step
    nonfinite: Literal["propagate", "forbidden"] = "propagate"
    allow_library: frozenset[str] = frozenset()  # vendor libraries a rewrite may call, none by default
    notes: str = ""

    @property
    def constants(self) -> tuple[TensorSpec, ...]:
        return tuple(t for t in self.inputs if t.constant)

    @property
    def calls(self) -> tuple[TensorSpec, ...]:
        """The inputs of every call, in order."""
        return tuple(t for t in self.inputs if not t.constant)
