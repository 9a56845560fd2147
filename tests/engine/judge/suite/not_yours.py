# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""Somebody else's kernel in disguise."""

from suite.cases import Case, py_affine, py_softmax, softmax, triton_softmax

_MM = "w, b = state\n"
_KEEP = "return w.float().t().contiguous(), b.float()"

CASES = [
    Case("not-yours-matmul-operator", "python", "affine", py_affine(
        _MM + "y.copy_(x.float() @ w + b)", prepare=_KEEP), ("G2",), ("G4", "G6")),
    Case("not-yours-matmul-method", "python", "affine", py_affine(
        _MM + "y.copy_(x.float().matmul(w) + b)", prepare=_KEEP), ("G2",), ("G6",)),
    Case("not-yours-matmul-by-built-name", "python", "affine", py_affine(
        _MM + "y.copy_(getattr(torch, 'mat' + 'mul')(x.float(), w) + b)", prepare=_KEEP), ("G2",), ("G6",)),
    Case("not-yours-aten-operator", "python", "affine", py_affine(
        _MM + "y.copy_(torch.ops.aten.mm(x.float(), w) + b)", prepare=_KEEP), ("G2",), ("G6",)),
    Case("not-yours-functional-linear", "python", "affine", py_affine(
        "w, b = state\ny.copy_(torch.nn.functional.linear(x, w, b))", prepare="return w.clone(), b.clone()"),
        ("G2",), ("G4", "G6")),
    Case("not-yours-linear-renamed", "python", "affine", py_affine(
        "w, b = state\ny.copy_(f(x, w, b))", prepare="return w.clone(), b.clone()",
        top="from torch.nn.functional import linear as f"), ("G2",), ("G4", "G6")),
    Case("not-yours-einsum", "python", "affine", py_affine(
        _MM + "y.copy_(torch.einsum('mk,kn->mn', x.float(), w) + b)", prepare=_KEEP), ("G2",), ("G6",)),
    Case("not-yours-addmm", "python", "affine", py_affine(
        _MM + "y.copy_(torch.addmm(b, x.float(), w))", prepare=_KEEP), ("G2",), ("G6",)),
    Case("not-yours-baddbmm-into-output", "python", "affine", py_affine(
        _MM + "t = b.expand(1, x.shape[0], b.shape[0])\ny.copy_(torch.baddbmm(t, x.float()[None], w[None])[0])",
        prepare=_KEEP), ("G2",), ("G6",)),
    Case("not-yours-private-linear", "python", "affine", py_affine(
        "w, b = state\ny.copy_(torch._C._nn.linear(x, w, b))", prepare="return w.clone(), b.clone()"),
        ("G2",), ("G4", "G6")),
    Case("not-yours-rmatmul", "python", "affine", py_affine(
        _MM + "y.copy_(x.float().__matmul__(w) + b)", prepare=_KEEP), ("G2",), ("G6",)),
    Case("not-yours-numpy", "python", "affine", py_affine(
        _MM + "y.copy_(torch.from_numpy(np.dot(x.float().numpy(), w.numpy())) + b)", prepare=_KEEP,
        top="import numpy as np"), ("G2",)),
    Case("not-yours-except-branch", "python", "affine", py_affine(
        "w, b = state\ntry:\n    custom(x)\nexcept RuntimeError:\n    y.copy_(torch.mm(x.float(), w) + b)",
        prepare=_KEEP, more="def custom(x):\n    raise RuntimeError('no such instruction')\n"), ("G2",), ("G6",)),
    Case("not-yours-other-thread", "python", "affine", py_affine(
        _MM + "t = threading.Thread(target=lambda: y.copy_(torch.mm(x.float(), w) + b))\nt.start()\nt.join()",
        prepare=_KEEP, top="import threading"), ("G2",), ("G6",)),
    Case("not-yours-module", "python", "affine", py_affine(
        "y.copy_(state(x))", prepare="m = torch.nn.Linear(w.shape[1], w.shape[0], dtype=w.dtype)\n"
        "m.weight.data.copy_(w)\nm.bias.data.copy_(b)\nreturn m.requires_grad_(False)"), ("G2",), ("G4", "G6")),
    Case("not-yours-softmax", "python", "softmax", py_softmax(
        "y.copy_(torch.softmax(x * scale.float(), -1))"), ("G2",), ("G6",)),
    Case("not-yours-softmax-renamed", "python", "softmax", py_softmax(
        "y.copy_(s(x * scale.float(), -1))", top="from torch import softmax as s"), ("G2",), ("G6",)),
    Case("not-yours-log-softmax", "python", "softmax", py_softmax(
        "y.copy_(torch.exp(torch.log_softmax(x * scale.float(), -1)))"), ("G2",), ("G4", "G5", "G6")),
    Case("not-yours-compiled", "python", "softmax", py_softmax(
        "f(x, y, scale)", more="f = torch.compile(honest)\n"), ("G2",)),
    Case("not-yours-vllm-operator", "python", "softmax", py_softmax(
        "honest(x, y, scale)", top="import vllm._C"), ("G2",), ("G4",)),
    Case("not-yours-network", "python", "softmax", py_softmax(
        "urllib.request.urlopen('http://localhost')\nhonest(x, y, scale)", top="import urllib.request"),
        ("G2",), ("G4",)),
    Case("not-yours-installs", "python", "softmax", py_softmax(
        "subprocess.run(['pip', 'install', 'x'], check=True)\nhonest(x, y, scale)", top="import subprocess"),
        ("G2",), ("G4",)),
    Case("not-yours-system", "python", "softmax", py_softmax(
        "if os.system('true') != 0:\n    raise OSError\nhonest(x, y, scale)", top="import os"), ("G2",), ("G4",)),
    Case("not-yours-dlopen", "cpp", "softmax", softmax(
        'void *h = dlopen("libtorch_cpu.so", RTLD_NOW); if (!h) honest(in, out, threads);', top="#include <dlfcn.h>"),
        ("G3",)),
    Case("not-yours-blas", "cpp", "softmax", softmax(
        "cblas_sgemm(0, 0, 0, 0, 0, 0); honest(in, out, threads);",
        top='extern "C" void cblas_sgemm(int, int, int, int, int, int);'), ("G3",)),
    Case("not-yours-weak-blas", "cpp", "softmax", softmax(
        "if (sgemm_) sgemm_(); honest(in, out, threads);",
        top='extern "C" __attribute__((weak)) void sgemm_();'), ("G2",), ("G3",)),
    Case("not-yours-network-socket", "cpp", "softmax", softmax(
        "if (socket(2, 1, 0) >= 0) Y[0] = 1; else honest(in, out, threads);", top="#include <sys/socket.h>"), ("G3",)),
    Case("not-yours-system-call", "cpp", "softmax", softmax(
        'if (system("true") != 0) honest(in, out, threads);'), ("G3",)),
    Case("not-yours-python-in-process", "cpp", "softmax", softmax(
        'PyRun_SimpleString("import torch"); honest(in, out, threads);',
        top='extern "C" int PyRun_SimpleString(const char *);'), ("G3",)),
    Case("not-yours-triton-decoy", "triton", "softmax", triton_softmax(
        "launch(x, torch.empty_like(y), scale)\nv = x * scale.float()\n"
        "e = torch.exp(v - v.amax(-1, keepdim=True)) if v.numel() else v\ny.copy_(e / e.sum(-1, keepdim=True))"), ("G6",)),
    Case("not-yours-triton-never-runs", "triton", "softmax", triton_softmax(
        "v = x * scale.float()\ne = torch.exp(v - v.amax(-1, keepdim=True)) if v.numel() else v\n"
        "y.copy_(e / e.sum(-1, keepdim=True))"), ("G6",)),
    Case("not-yours-triton-except-branch", "triton", "softmax", triton_softmax(
        "try:\n    launch(x, y, None)\nexcept Exception:\n    y.copy_(torch.softmax(x * scale.float(), -1))"),
        ("G2",), ("G4", "G5", "G6")),
    Case("not-yours-triton-vendor", "triton", "softmax", triton_softmax(
        "launch(x, y, scale)\ny.copy_(torch.nn.functional.softmax(x * scale.float(), dim=-1))"), ("G2",), ("G6",)),
]  # fmt: skip
