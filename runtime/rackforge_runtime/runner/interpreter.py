"""Triton's interpreter on the CPU, with bfloat16 made right.

The interpreter (triton 3.x, TRITON_INTERPRET=1) keeps bfloat16 as raw 16-bit integers and computes on those bits:
products, sums and comparisons come out silently wrong. Here each operation widens its bfloat16 operands to float32,
computes, and rounds to nearest even. What cannot be repaired (atomics) refuses bfloat16. Launch arguments are CPU
tensors already, so that the copies from and to a device are left out; inputs are never written back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """float32 of raw bfloat16 bits; exact."""
    return np.ascontiguousarray(np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: Any) -> NDArray[np.uint16]:
    """Raw bfloat16 bits of float32 values, to nearest even; a NaN stays one."""
    exact = np.ascontiguousarray(values, dtype=np.float32)
    bits = exact.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        np.uint16
    )
    return np.where(np.isnan(exact), np.uint16(0x7FC0), rounded).reshape(np.shape(values))


def install() -> None:
    """Repair the interpreter of this process."""
    import triton.language as tl
    from triton.runtime import interpreter as it

    handle, bf16 = it.TensorHandle, tl.bfloat16
    builder: Any = it.InterpreterBuilder

    def is_bf16(h: Any) -> bool:
        return bool(h.dtype.scalar == bf16)

    def up(h: Any) -> Any:
        return handle(widen(h.data), tl.float32) if is_bf16(h) else h

    def down(h: Any) -> Any:
        return h if h.data.dtype == np.bool_ else handle(narrow(h.data), bf16)

    plain_cast, plain_fp = builder.cast_impl, builder.create_fp_to_fp

    def cast(self: Any, src: Any, dst: Any) -> Any:
        if src.dtype.scalar == bf16 and dst.scalar != bf16:
            return plain_cast(self, up(src), dst) if dst.scalar != tl.float32 else up(src)
        if dst.scalar == bf16 and src.dtype.scalar != bf16:
            return handle(narrow(src.data.astype(np.float32)), bf16)
        return plain_cast(self, src, dst)

    def fp_to_fp(self: Any, src: Any, dst: Any, rounding: Any) -> Any:
        wide = (tl.float16, tl.float32, tl.float64)
        if (is_bf16(src) and dst.scalar in wide) or (dst.scalar == bf16 and src.dtype.scalar in wide):
            return cast(self, src, dst)
        return plain_fp(self, src, dst, rounding)

    plain = {
        name: getattr(builder, name) for name in ("binary_op", "unary_op", "create_fma", "create_dot", "create_fabs")
    }

    def binary(self: Any, left: Any, right: Any, op: Any) -> Any:
        if not is_bf16(left):
            return plain["binary_op"](self, left, right, op)
        return down(plain["binary_op"](self, up(left), up(right), op))

    def unary(self: Any, arg: Any, op: Any) -> Any:
        return plain["unary_op"](self, arg, op) if not is_bf16(arg) else down(plain["unary_op"](self, up(arg), op))

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not is_bf16(z):
            return plain["create_fma"](self, up(x), up(y), z)
        return down(plain["create_fma"](self, up(x), up(y), up(z)))

    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return plain["create_dot"](self, up(a), up(b), d, *rest)

    def no_atomics(self: Any, op: Any, ptr: Any, val: Any, *rest: Any) -> Any:
        if is_bf16(val):
            raise NotImplementedError("bfloat16 atomics are not right in the interpreter")
        return plain_atomic(self, op, ptr, val, *rest)

    plain_atomic = builder.create_atomic_rmw
    builder.cast_impl, builder.create_fp_to_fp = cast, fp_to_fp
    # Bound by lambdas or copies at class creation: set again.
    for name in ("fp_trunc", "fp_ext", "si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui"):
        setattr(builder, f"create_{name}", cast)
    builder.binary_op, builder.unary_op, builder.create_fma, builder.create_dot = binary, unary, fma, dot
    builder.create_atomic_rmw = no_atomics
    _repair_reductions(it, tl)
    executor: Any = it.GridExecutor
    executor._init_args_hst = lambda _self, args, kwargs: (args, kwargs)  # noqa: SLF001
    executor._restore_args_dev = lambda *_args: None  # noqa: SLF001


def _repair_reductions(it: Any, tl: Any) -> None:
    for scope in (it.ReduceOps, it.ScanOps):
        plain = scope.apply_impl

        def apply(self: Any, given: Any, plain: Any = plain) -> Any:
            narrowed = [t.dtype.scalar == tl.bfloat16 for t in given]
            if not any(narrowed):
                return plain(self, given)
            wide = tuple(
                self.to_tensor(widen(t.handle.data), tl.float32) if n else t
                for t, n in zip(given, narrowed, strict=True)
            )
            made = plain(self, wide)
            several = isinstance(made, (list, tuple))
            out = [
                self.to_tensor(narrow(t.handle.data), tl.bfloat16) if t.dtype.scalar == tl.float32 else t
                for t in (made if several else (made,))
            ]
            return tuple(out) if several else out[0]

        scope.apply_impl = apply
