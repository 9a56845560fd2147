"""Spoiling parts of the framework, to see what an output was made by.

VENDOR: the kernels of torch's own matrix products, softmaxes, norms and activations give plausible noise instead
of their result, in the dispatcher, for every thread and every way of calling them (`a @ b`, `torch.ops.aten.mm`,
`getattr(torch, ...)`, ...). A kernel that does its own work does not notice. KERNELS: launches of Triton kernels do
nothing, so that an output which is right all the same was not made by them.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .frames import Poison

CALLED: list[str] = []

# Leaves of the dispatcher on the CPU, not the composites above them (aten::linear, aten::matmul, aten::einsum).
VENDOR = (
    "mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addbmm", "addmv", "addmv_", "mv", "dot", "vdot", "addr",
    "_int_mm", "_softmax", "_log_softmax", "_safe_softmax", "native_layer_norm", "native_group_norm",
    "_fused_rms_norm", "rms_norm", "silu", "silu_", "gelu", "gelu_", "glu", "mish", "hardswish", "hardsigmoid",
    "logsumexp", "cumsum", "mkldnn_linear", "mkldnn_convolution", "convolution_overrideable", "slow_conv2d_forward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math", "linalg_vector_norm",
    "renorm", "cdist", "_cdist_forward", "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm", "_scaled_mm",
    "_addmm_activation", "_embedding_bag", "var_mean",
)  # fmt: skip
_keep: list[Any] = []


def install(which: int) -> None:
    """Spoil what the bits of `Poison` say; for good, in this process."""
    if which & Poison.VENDOR:
        _spoil_vendor()
    if which & Poison.KERNELS:
        _spoil_kernels()


def _spoil_vendor() -> None:
    import torch

    library = torch.library.Library("aten", "IMPL")
    for packet in VENDOR:
        found = getattr(torch.ops.aten, packet, None)
        for overload in found.overloads() if found is not None else ():
            op = getattr(found, overload)
            name = packet if overload == "default" else f"{packet}.{overload}"
            try:
                library.impl(name, _noise(op), "CPU", allow_override=True)
            except (RuntimeError, TypeError):
                continue  # a composite in this version: its leaves are spoiled
    for other in ("mkldnn", "onednn", "quantized", "_C"):
        _spoil_namespace(torch, other)
    # Out of the reach of the collector and of reference counts: what nobody can find nobody can undo.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
    _keep.append(library)


def _spoil_namespace(torch: Any, name: str) -> None:
    space = getattr(torch.ops, name, None)
    if space is None:
        return
    for op in torch._C._dispatch_get_all_op_names():  # noqa: SLF001
        if op.startswith(f"{name}::"):
            try:
                library = torch.library.Library(name, "IMPL")
                library.impl(op, _raiser(op), "CPU", allow_override=True)
            except (RuntimeError, TypeError):
                continue
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
            _keep.append(library)


def _raiser(name: str) -> Any:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        CALLED.append(name)
        raise RuntimeError(f"{name} is not available")

    return call


def _noise(op: Any) -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def call(*args: Any, **kwargs: Any) -> Any:
        CALLED.append(str(op))
        out = kwargs.get("out")
        if out is not None:
            return out.normal_() if out.is_floating_point() else out.random_()
        if args and op._schema.is_mutable:  # noqa: SLF001
            return args[0].normal_()
        mode = FakeTensorMode(allow_non_fake_inputs=True)

        def fake(value: Any) -> Any:
            return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

        with mode:
            shape = op(*[fake(a) for a in args], **{k: fake(v) for k, v in kwargs.items()})

        def real(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            made = torch.empty(tuple(value.shape), dtype=value.dtype)
            return made.normal_() if made.is_floating_point() else made.zero_()

        return tuple(real(v) for v in shape) if isinstance(shape, (tuple, list)) else real(shape)

    return call


def _spoil_kernels() -> None:
    from triton.runtime import interpreter

    executor: Any = interpreter.GridExecutor
    executor.__call__ = lambda _self, *_args, **_kwargs: None


__all__ = ["CALLED", "Poison", "install"]
