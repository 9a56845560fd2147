"""Honest Python and Triton kernels which must be accepted."""

from suite.cases import Case, py_affine, py_softmax, triton_softmax

_AFFINE_DOT = """
import torch
import triton
import triton.language as tl

@triton.jit
def affine_kernel(x, w, b, y, M, N, K, sx, sw, sy, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(x + rm[:, None] * sx + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        c = tl.load(w + rn[None, :] * sw + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0)
        acc += tl.dot(a, c)
    bias = tl.load(b + rn, mask=rn < N, other=0.0).to(tl.float32)
    acc += bias[None, :]
    tl.store(y + rm[:, None] * sy + rn[None, :], acc.to(tl.bfloat16), mask=(rm[:, None] < M) & (rn[None, :] < N))

def prepare(constants):
    w, b = constants
    return w.clone(), b.clone()

def run(inputs, outputs, state, threads):
    (x,) = inputs
    (y,) = outputs
    w, b = state
    m, k = x.shape
    n = w.shape[0]
    if m and n:
        grid = (triton.cdiv(m, 16), triton.cdiv(n, 32))
        affine_kernel[grid](x, w, b, y, m, n, k, x.stride(0), w.stride(0), y.stride(0), BM=16, BN=32, BK=32)
"""

CASES = [
    Case("twin-python-softmax", "python", "softmax", py_softmax()),
    Case("twin-python-rows", "python", "softmax", py_softmax(
        "for i in range(x.shape[0]):\n    honest(x[i : i + 1], y[i : i + 1], scale)")),
    Case("twin-python-double", "python", "softmax", py_softmax(
        "v = x.double() * scale\ne = torch.exp(v - v.amax(-1, keepdim=True)) if v.numel() else v\n"
        "y.copy_(e / e.sum(-1, keepdim=True))")),
    Case("twin-python-try-except", "python", "softmax", py_softmax(
        "try:\n    e = torch.special.exp2\nexcept AttributeError:\n    return NotImplemented\nhonest(x, y, scale)")),
    Case("twin-python-declines-small", "python", "softmax", py_softmax(
        "if x.shape[1] < 32:\n    return NotImplemented\nhonest(x, y, scale)")),
    Case("twin-python-two-files", "python", "softmax", py_softmax(
        "honest(x, y, scale)\nfinish(y)", top="from helper import finish",
        extra={"helper.py": "def finish(y):\n    return y\n"})),
    Case("twin-python-affine", "python", "affine", py_affine()),
    Case("twin-python-workspace-in-state", "python", "affine", py_affine(
        "w, b, work = state\nt = work[: x.shape[0]] if x.shape[0] <= 64 else torch.empty(x.shape[0], w.shape[0])\n"
        "t.copy_((x.float()[:, None, :] * w[None]).sum(-1))\ny.copy_(t + b)",
        prepare="return w.float().clone(), b.float().clone(), torch.empty(64, w.shape[0])")),
    Case("twin-python-no-grad", "python", "affine", py_affine(
        "with torch.no_grad():\n    honest(x, y, state)")),
    Case("twin-triton-softmax", "triton", "softmax", triton_softmax()),
    Case("twin-triton-exp2", "triton", "softmax", triton_softmax(
        body="t = (v - tl.max(v, axis=0)) * 1.4426950408889634\ne = tl.exp2(t)\nout = e / tl.sum(e, axis=0)")),
    Case("twin-triton-helper", "triton", "softmax", triton_softmax(
        top="@triton.jit\ndef normalise(e):\n    return e / tl.sum(e, axis=0)\n",
        body="out = normalise(tl.exp(v - tl.max(v, axis=0)))")),
    Case("twin-triton-dot-bfloat16", "triton", "affine", {"kernel.py": _AFFINE_DOT}),
]  # fmt: skip
