"""One emulated model step: which calls, in which order, on how many distinct copies of the constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from optimizer.engine.agents.tuner.values import LiveShape, TunerError
from optimizer.engine.judge.compare import compare
from optimizer.engine.tasks.base import KernelTask, TensorSpec

# Numbers of enum rf_dtype in rackforge_kernel.h.
DTYPES: Mapping[str, int] = {
    "float64": 1, "float32": 2, "bfloat16": 3, "float16": 4,
    "int64": 5, "int32": 6, "int8": 7, "uint8": 8, "bool": 9,
}  # fmt: skip
MAX_ROTATION_BYTES = 768 << 20


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step as it is timed: `order` lists (label, copy); every copy has its own constants in memory.

    `copies` is calls_per_step, cut down evenly when the constants of a whole step are more than
    MAX_ROTATION_BYTES (far beyond any cache by then). A model smaller than the cache stays as small as it is.
    """

    task: str
    live: tuple[LiveShape, ...]
    copies: Mapping[str, int]
    order: tuple[tuple[str, int], ...]
    bytes_total: int

    def shape(self, label: str, batch: int, batch_axis: str | None) -> dict[str, int]:
        found = next(s for s in self.live if s.label == label)
        return {**found.shape, **({batch_axis: batch} if batch_axis else {})}


def constant_bytes(task: KernelTask, shape: Mapping[str, int]) -> int:
    """Bytes of the constants (weights) of one call."""
    return sum(int(np.prod([shape[axis] for axis in t.dims], dtype=np.int64)) * itemsize(t) for t in task.constants)


def itemsize(spec: TensorSpec) -> int:
    return int(numpy_dtype(spec.dtype).itemsize)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def make_plan(task: KernelTask, live: Sequence[LiveShape], *, max_bytes: int = MAX_ROTATION_BYTES) -> StepPlan:
    """Lay out a step layer by layer: the i-th call of every shape, then the next.

    Raises TunerError for no shapes, for one given twice, or for missing axes.
    """
    if not live:
        raise TunerError(f"{task.name}: no live shapes to tune for")
    labels = [s.label for s in live]
    if len(set(labels)) != len(labels):
        raise TunerError(f"{task.name}: a live shape is given twice: {', '.join(labels)}")
    needed = {axis for t in (*task.inputs, *task.outputs) for axis in t.dims} - {task.batch_axis}
    for item in live:
        if set(item.shape) != needed:
            raise TunerError(f"{task.name}: shape {item.label} must name the axes {sorted(needed)}")
        if item.calls_per_step < 1 or not item.batches:
            raise TunerError(f"{task.name}: shape {item.label} has no calls or no batch sizes")
    total = sum(constant_bytes(task, s.shape) * s.calls_per_step for s in live)
    scale = min(1.0, max_bytes / total) if total else 1.0
    copies = {s.label: max(1, int(s.calls_per_step * scale)) for s in live}
    order = tuple((s.label, layer) for layer in range(max(copies.values())) for s in live if layer < copies[s.label])
    kept = sum(constant_bytes(task, s.shape) * copies[s.label] for s in live)
    return StepPlan(task.name, tuple(live), copies, order, kept)


class StepData:
    """Inputs of every label in one file, and the truth to check outputs against.

    They are generated once, for the largest batch; a smaller batch takes the first rows (the batch axis comes
    first in every tensor that has it), so its bytes are a prefix. The file is mapped by each child.
    """

    def __init__(self, task: KernelTask, plan: StepPlan, *, path: Path, seed: int, max_batch: int) -> None:
        if task.batch_axis is not None:
            for t in (*task.inputs, *task.outputs):
                if task.batch_axis in t.dims[1:]:
                    raise TunerError(f"{task.name}: {t.name} has the batch axis in another place than the first")
        self.task, self.plan, self.path, self.max_batch = task, plan, path, max_batch
        self._offsets: dict[tuple[str, str], int] = {}
        self._truth: dict[tuple[str, str], tuple[NDArray[Any], NDArray[Any]]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        size = 0
        with path.open("wb") as file:
            for number, label in enumerate(sorted(s.label for s in plan.live)):
                shape = plan.shape(label, max_batch, task.batch_axis)
                inputs = task.generate(shape, np.random.default_rng([seed, number]), "normal")
                for spec in task.inputs:
                    array = np.ascontiguousarray(inputs[spec.name]).astype(numpy_dtype(spec.dtype), copy=False)
                    bytes_ = array.tobytes()
                    self._offsets[label, spec.name] = size
                    size += file.write(bytes_ + b"\0" * (-len(bytes_) % 64))
                truth, working = task.reference(inputs), task.working(inputs)
                for spec in task.outputs:
                    self._truth[label, spec.name] = (truth[spec.name], working[spec.name])

    def tensor(self, label: str, batch: int, spec: TensorSpec, *, output: bool = False) -> str:
        """A tensor in the runner's notation: dtype, rank, lengths, offset."""
        shape = self.plan.shape(label, batch, self.task.batch_axis)
        lengths = [shape[axis] for axis in spec.dims]
        offset = 0 if output else self._offsets[label, spec.name]
        return " ".join(map(str, [DTYPES[spec.dtype], len(lengths), *lengths, offset]))

    def verify(self, label: str, batch: int, data: bytes) -> str:
        """Empty when the output bytes are within the task's budget of the truth, else what is wrong."""
        shape = self.plan.shape(label, batch, self.task.batch_axis)
        at = 0
        for spec in self.task.outputs:
            lengths = [shape[axis] for axis in spec.dims]
            dtype = numpy_dtype(spec.dtype)
            size = int(np.prod(lengths, dtype=np.int64)) * dtype.itemsize
            if len(data) < at + size:
                return f"{spec.name}: {len(data) - at} bytes of {size}"
            got = np.frombuffer(data[at : at + size], dtype).reshape(lengths)
            at += size
            truth, working = self._truth[label, spec.name]
            if self.task.batch_axis in spec.dims:
                truth, working = truth[:batch], working[:batch]
            found = compare(got, truth, working, budget=self.task.budget, dtype=spec.dtype)
            if not found.ok:
                where = found.first
                return (
                    f"{spec.name}{list(where)} is {float(got[where]):.6g}, truth {float(truth[where]):.6g}: "
                    f"{found.why}; {found.mismatched} of {found.elements} elements"
                    if where
                    else f"{spec.name}: {found.why}"
                )
        return ""
