"""Kind `vllm.linear`: unquantised linear layers on CPU.

Every layer whose weight some kernel covers calls one registered operator, in eager and in compiled mode
alike. The operator decides call by call, on the number of tokens in the step, between the kernels and the
engine's own product: a decision in traced code would be frozen at the value it had while tracing.

The engine's own product stays prepared beside the kernel's weights, for steps outside of the envelope. That
is twice the memory of the covered layers, which the report shows (`prepared_bytes`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from rackforge_runtime.activity import ERRORS, FIRST, OUTSIDE, UNSUPPORTED
from rackforge_runtime.manifests import as_range, inside
from rackforge_runtime.vllm_plugin.native import (
    BFLOAT16,
    OK,
    CannotUse,
    Described,
    Frame,
    NativeObject,
    Prepared,
    RunFunction,
)

if TYPE_CHECKING:
    from rackforge_runtime.plan import PlanEntry
    from rackforge_runtime.vllm_plugin.install import Host

logger = logging.getLogger("vllm.rackforge")
TARGETS = frozenset(("cpu_unquantized_gemm", "linear"))
MAX_ROWS = 4096  # of tokens a step that are looked up; more is out of every envelope here
GIVE_UP_AFTER = 3  # errors of one kernel at one layer, after which the layer runs the engine's own product


class Call:
    """One kernel at one layer: its prepared weight and ready-made C frames."""

    __slots__ = ("failures", "frames", "k", "label", "n", "prepared", "refusals", "row", "run", "state", "threads")

    def __init__(self, run: RunFunction, prepared: Prepared, k: int, n: int, row: int, label: str) -> None:
        self.run, self.prepared, self.state = run, prepared, prepared.address
        self.k, self.n, self.row, self.label = k, n, row, label
        self.threads = 0  # asked from torch at the first call: the engine binds its threads after loading
        self.failures = self.refusals = 0
        # Frames in nobody's hands. Taking one is atomic, so two threads never share one.
        self.frames: list[tuple[Frame, Frame]] = [self.new_frames()]

    def new_frames(self) -> tuple[Frame, Frame]:
        return (
            Frame([Described(0, (0, self.k), (self.k, 1), BFLOAT16)]),
            Frame([Described(0, (0, self.n), (self.n, 1), BFLOAT16)]),
        )


class Layer:
    """A linear layer under the operator: which kernel serves how many tokens, and the engine's own product."""

    __slots__ = ("handle", "k", "n", "row", "stock", "table", "top", "weight")

    def __init__(self, k: int, n: int, stock: Callable[..., torch.Tensor], weight: torch.Tensor) -> None:
        self.k, self.n, self.stock, self.weight = k, n, stock, weight
        self.table: list[Call | None] = []
        self.top = -1
        self.row = -1
        self.handle: torch.Tensor | None = None


def install(entries: list[PlanEntry], host: Host) -> None:
    """Register the operator and wrap vLLM's dispatch of CPU linear layers."""
    from vllm.model_executor.layers import utils

    entries = [e for e in entries if _takes(e, host)]
    if not entries:
        return
    operator = Operator(entries, host)
    stock_dispatch = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        try:
            wanted = not weight.is_meta and operator.covers(weight)
            original = weight.data if wanted else None
        except Exception:  # noqa: BLE001
            wanted, original = False, None
        stock_dispatch(layer, remove_weight)
        if wanted and original is not None:
            try:
                operator.take_over(layer, original)
            except Exception as error:  # noqa: BLE001 - the layer keeps what stock dispatch gave it
                host.recorder.skip("linear", f"a layer {tuple(original.shape)} could not be taken over: {error!r}")

    utils.dispatch_cpu_unquantized_gemm = dispatch
    _rebind(stock_dispatch, dispatch)


def _rebind(old: Any, new: Any) -> None:
    """Modules that imported the function by name hold the old one."""
    import sys

    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and getattr(module, "dispatch_cpu_unquantized_gemm", None) is old:
            module.dispatch_cpu_unquantized_gemm = new  # type: ignore[attr-defined]


def _takes(entry: PlanEntry, host: Host) -> bool:
    if entry.label.op not in TARGETS:
        host.skip(entry, f"no such linear operator: {entry.label.op!r}")
        return False
    if set(entry.selector.get("dtypes", ["bfloat16"])) != {"bfloat16"}:
        host.skip(entry, "only bfloat16 linear layers can be replaced")
        return False
    return True


class Operator:
    """The registered operator `rackforge::linear_<digest>` and its layers."""

    def __init__(self, entries: list[PlanEntry], host: Host) -> None:
        self.host = host
        self.entries = entries
        self.layers: list[Layer] = []
        self.by_pointer: dict[int, Layer] = {}
        self.prepared_bytes = 0
        # Named after what is active: a graph compiled for other kernels cannot find this operator.
        name = f"linear_{host.digest[7:19]}"
        self.library = torch.library.Library("rackforge", "FRAGMENT")
        self.library.define(f"{name}(Tensor x, Tensor handle, Tensor? bias, SymInt n) -> Tensor")
        self.library.impl(name, self._make_run(), "CPU")
        torch.library.register_fake(
            f"rackforge::{name}",
            lambda x, handle, bias, n: x.new_empty((*x.shape[:-1], n)),  # noqa: ARG005
            lib=self.library,
        )
        self.op = getattr(torch.ops.rackforge, name).default

    def covers(self, weight: torch.Tensor) -> bool:
        """Whether any kernel's envelope holds this weight, by its shape alone.

        The answer decides what is traced, so it must not depend on anything that can differ between two
        starts, such as memory: what fails later falls back inside of the operator.
        """
        if weight.dtype != torch.bfloat16 or weight.ndim != 2:
            return False
        n, k = weight.shape
        return any(_boxes(e, n, k) for e in self.entries)

    def take_over(self, layer: Any, weight: torch.Tensor) -> None:
        """Prepare the kernels for a layer and point the layer at the operator."""
        n, k = weight.shape
        recorder = self.host.recorder
        made = Layer(k, n, layer.cpu_linear, layer.weight)
        weight = weight.contiguous()
        constant = Described(weight.data_ptr(), (n, k), (k, 1), BFLOAT16)
        prepared: dict[str, Prepared] = {}
        for entry in self.entries:
            boxes = _boxes(entry, n, k)
            if not boxes:
                continue
            # The row is there before anything can fail: a kernel that never ran shows as never called.
            row = recorder.row(entry.label, {"N": n, "K": k})
            made.row = row if made.row < 0 else made.row
            native: NativeObject | None = self.host.object(entry)
            if native is None:
                continue
            try:
                digest = entry.label.object_digest
                if digest not in prepared:
                    prepared[digest] = native.prepare([constant])
                    self.prepared_bytes += prepared[digest].bytes
            except CannotUse as error:
                self.host.skip(entry, str(error))
                continue
            call = Call(native.run, prepared[digest], k, n, row, entry.key)
            for low, high in boxes:
                _enter(made, call, low, high)
        made.top = len(made.table) - 1
        index = len(self.layers)
        self.layers.append(made)
        # The pointer in a tensor, as vLLM does it: as a number it would be baked into the compiled graph.
        handle = torch.tensor([index], dtype=torch.int64)
        made.handle = handle
        self.by_pointer[handle.data_ptr()] = made
        op = self.op

        def forward(x: torch.Tensor, _weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            return op(x, handle, bias, n)  # type: ignore[no-any-return]

        layer.cpu_linear = forward
        recorder.note("prepared_bytes", self.prepared_bytes)
        recorder.note("layers", len(self.layers))

    def _make_run(self) -> Callable[..., torch.Tensor]:
        by_pointer, layers = self.by_pointer, self.layers
        counts: memoryview | None = None
        bfloat16, empty = torch.bfloat16, torch.empty

        def run(x: torch.Tensor, handle: torch.Tensor, bias: torch.Tensor | None, n: int) -> torch.Tensor:
            nonlocal counts
            layer = by_pointer.get(handle.data_ptr())
            if layer is None:  # a compiled graph may hand a copy of the handle
                layer = layers[int(handle.item())]
            if counts is None:
                counts = self.host.recorder.counts
            shape = x.shape
            m = shape[0] if len(shape) == 2 else x.numel() // layer.k
            if 0 < m <= layer.top and bias is None and x.dtype is bfloat16 and x.is_contiguous():
                call = layer.table[m]
                if call is not None:
                    out = empty((m, n) if len(shape) == 2 else (*shape[:-1], n), dtype=bfloat16)
                    try:
                        frames = call.frames.pop()
                    except IndexError:
                        frames = call.new_frames()
                    source, target = frames[0].words, frames[1].words
                    # words 0 and 1 of an rf_tensor: the data and the first length
                    source[0], source[1] = x.data_ptr(), m
                    target[0], target[1] = out.data_ptr(), m
                    threads = call.threads
                    if not threads:
                        threads = call.threads = torch.get_num_threads()
                    status = call.run(frames[0].address, 1, frames[1].address, 1, call.state, threads)
                    call.frames.append(frames)
                    row = call.row
                    if status == OK:
                        if not counts[row]:
                            counts[row + FIRST] = time.time_ns()
                        counts[row] += 1
                        return out
                    self._failed(layer, call, m, status, counts)
            if layer.row >= 0:
                counts[layer.row + OUTSIDE] += 1
            return layer.stock(x, layer.weight, bias)

        return run

    def _failed(self, layer: Layer, call: Call, m: int, status: int, counts: memoryview) -> None:
        """Count a call the kernel did not answer; take it out where it keeps not answering."""
        if status == 1:
            counts[call.row + UNSUPPORTED] += 1
            layer.table[m] = None  # the same size will not be supported next time either
            self.host.recorder.skip("linear", f"{call.label}: refuses {m}x{layer.n}x{layer.k}")
            return
        counts[call.row + ERRORS] += 1
        call.failures += 1
        if call.failures >= GIVE_UP_AFTER:
            layer.table = [None if c is call else c for c in layer.table]
            reason = f"{call.label}: answered {status} {call.failures} times for {m}x{layer.n}x{layer.k}; taken out"
            logger.warning("Rackforge: %s", reason)
            self.host.recorder.skip("linear", reason)


def _enter(layer: Layer, call: Call, low: int, high: int) -> None:
    """Let a kernel serve low..high tokens where no earlier (better ranked) one does."""
    if len(layer.table) <= high:
        layer.table += [None] * (high + 1 - len(layer.table))
    for m in range(max(low, 1), high + 1):
        if layer.table[m] is None:
            layer.table[m] = call


def _boxes(entry: PlanEntry, n: int, k: int) -> list[tuple[int, int]]:
    """Ranges of tokens per step for which an entry covers a weight of n x k."""
    found = []
    boxes: list[Mapping[str, Any]] = list(entry.selector.get("shapes", ())) or [{}]
    for box in boxes:
        allowed = {axis: as_range(v) for axis, v in box.items()}
        if inside(n, allowed.get("N", (0, None))) and inside(k, allowed.get("K", (0, None))):
            low, high = allowed.get("M", (1, None))
            found.append((low, MAX_ROWS if high is None else min(high, MAX_ROWS)))
    return found
