"""Python and Triton candidates: a module `kernel` with

    def prepare(constants: tuple[Tensor, ...]) -> object          (optional)
    def run(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], state: object, threads: int) -> None

the Python form of the C interface. `outputs` are allocated by the caller and are to be filled; a call that the
kernel does not cover returns NotImplemented before it has written anything. Tensors are torch tensors over shared
memory; the memory of inputs is read-only.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .frames import Status, Tensor
from .memory import Segments, span_bytes
from .native import CannotLoad

Call = Callable[[], int]
_DTYPES = {
    1: "float64", 2: "float32", 3: "bfloat16", 4: "float16", 5: "int64", 6: "int32", 7: "int8", 8: "uint8",
    9: "bool",
}  # fmt: skip


class PythonKernel:
    """A loaded module. What it raises goes to stderr, for people; the judge sees only that it failed."""

    def __init__(self, folder: str, segments: Segments) -> None:
        self._segments = segments
        self._states: dict[int, Any] = {}
        sys.path.insert(0, folder)
        try:
            import kernel  # type: ignore[import-not-found]
        except BaseException as error:
            traceback.print_exc()
            raise CannotLoad(f"{type(error).__name__}: {error}") from error
        self._run: Callable[..., Any] | None = getattr(kernel, "run", None)
        self._prepare: Callable[..., Any] | None = getattr(kernel, "prepare", None)
        if not callable(self._run):
            raise CannotLoad("kernel.py has no function run(inputs, outputs, state, threads)")

    def _tensor(self, t: Tensor) -> Any:
        import torch

        dtype, span = getattr(torch, _DTYPES[t.dtype]), span_bytes(t)
        if not span:
            return torch.empty_strided(t.shape, t.stride, dtype=dtype)
        memory = (ctypes.c_char * span).from_address(self._segments.address(t))
        return torch.frombuffer(memory, dtype=dtype).as_strided(t.shape, t.stride)

    def prepare(self, key: int, constants: tuple[Tensor, ...]) -> int:
        self._states.pop(key, None)
        if self._prepare is None:
            return Status.OK
        try:
            self._states[key] = self._prepare(tuple(self._tensor(t) for t in constants))
        except BaseException:  # noqa: BLE001 - whatever a candidate raises is an answer, SystemExit too
            traceback.print_exc()
            return Status.CANDIDATE_ERROR
        return Status.OK

    def bind(self, key: int, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], threads: int) -> Call:
        given, made = (tuple(self._tensor(t) for t in side) for side in (inputs, outputs))
        state, run = self._states.get(key), self._run
        assert run is not None  # noqa: S101 - checked at load

        def call() -> int:
            try:
                answer = run(given, made, state, threads)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                return Status.CANDIDATE_ERROR
            if answer is None:
                return Status.OK
            return Status.UNSUPPORTED if answer is NotImplemented else Status.CANDIDATE_ERROR

        return call

    @staticmethod
    def null() -> Call:
        return lambda: 0
