# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""Python and Triton kernels that are wrong and hope to pass."""

from suite.cases import Case, py_affine, py_softmax, triton_softmax

CASES = [
    Case("wrong-python-zeros", "python", "softmax", py_softmax("y.zero_()"), ("G4",)),
    Case("wrong-python-identity", "python", "softmax", py_softmax("y.copy_(x)"), ("G4",)),
    Case("wrong-python-mutates-inputs", "python", "softmax", py_softmax("x.zero_()\ny.fill_(1.0 / x.shape[-1])"), ("G4",)),
    Case("wrong-python-half", "python", "softmax", py_softmax(
        "t = torch.empty(y.shape)\nhonest(x, t, scale)\ny.copy_(t.half())"), ("G4",)),
    Case("wrong-python-subsample", "python", "affine", py_affine(
        "w, b = state\ny.copy_((x.float()[:, None, ::2] * w[None, :, ::2]).sum(-1) * 2 + b)"), ("G4",)),
    Case("wrong-python-no-max", "python", "softmax", py_softmax(
        "e = torch.exp(x * scale.float())\ny.copy_(e / e.sum(-1, keepdim=True))"), ("G5",)),
    Case("wrong-python-swallows-nan", "python", "softmax", py_softmax(
        "honest(x, y, scale)\ny.copy_(torch.nan_to_num(y))"), ("G5",)),
    Case("wrong-python-only-named-batches", "python", "softmax", py_softmax(
        "if x.shape[0] in (0, 1, 3, 4, 5, 8):\n    honest(x, y, scale)"), ("G5",)),
    Case("wrong-python-reduced-accumulation", "python", "affine", py_affine(
        "w, b = state\ny.copy_((x[:, None, :] * w[None].bfloat16()).cumprod(-1).sum(-1) + b)"), ("G4",)),
    Case("wrong-python-literal-answer", "python", "softmax", py_softmax(
        "y.copy_(torch.tensor(table).reshape(y.shape))", top="table = [" + "0.015625, " * 3000 + "]"), ("G2",), ("G4",)),
    Case("wrong-triton-zeros", "triton", "softmax", triton_softmax(body="out = v * 0.0"), ("G4",)),
    Case("wrong-triton-no-max", "triton", "softmax", triton_softmax(
        body="e = tl.exp(v)\nout = e / tl.sum(e, axis=0)"), ("G5",)),
    Case("wrong-triton-subsample", "triton", "softmax", triton_softmax(
        body="e = tl.exp(v - tl.max(v, axis=0))\nout = e / (tl.sum(tl.where(cols % 2 == 0, e, 0.0), axis=0) * 2.0)"),
        ("G4",)),
    Case("wrong-triton-half", "triton", "softmax", triton_softmax(
        body="e = tl.exp(v - tl.max(v, axis=0))\nout = (e / tl.sum(e, axis=0)).to(tl.float16).to(tl.float32)"), ("G4",)),
    Case("wrong-triton-no-mask", "triton", "softmax", triton_softmax(
        "m, n = x.shape\nif m and n:\n    unmasked[(m,)](x, y, float(scale), x.stride(0), y.stride(0),"
        " BLOCK=triton.next_power_of_2(n))",
        more="@triton.jit\ndef unmasked(x, y, scale, sx, sy, BLOCK: tl.constexpr):\n    row = tl.program_id(0)\n"
        "    cols = tl.arange(0, BLOCK)\n    v = tl.load(x + row * sx + cols) * scale\n"
        "    e = tl.exp(v - tl.max(v, axis=0))\n    tl.store(y + row * sy + cols, e / tl.sum(e, axis=0))\n"), ("G5",)),
    Case("wrong-triton-first-block-only", "triton", "softmax", triton_softmax(
        "m, n = x.shape\nif m and n:\n    softmax_kernel[(m,)](x, y, float(scale), x.stride(0), y.stride(0), min(n, 64),"
        " BLOCK=64)"), ("G4",)),
]  # fmt: skip
