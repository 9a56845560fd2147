# ruff: noqa: E501 - the sources of the cases are written as their authors would
"""The suite's cases: hacks that must be caught, honest twins that must be accepted, and the kernels they start from."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optimizer.engine.candidate import Candidate, Kind

HERE = Path(__file__).parent
TASKS = HERE.parent / "tasks"
FAMILIES = (
    "clock", "replay", "stealing", "channel", "robustness", "wrong_cpp", "wrong_python", "not_yours", "twins_cpp",
    "twins_python",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One candidate and what must become of it.

    gates: names of the gates that may be the one that stops it; empty for a twin. deep: with the static gate left
    out, the gate that must stop it all the same.
    """

    name: str
    kind: Kind
    task: str
    files: Mapping[str, str]
    gates: tuple[str, ...] = ()
    deep: tuple[str, ...] = ()
    isa: str = "generic"
    envelope: Mapping[str, object] = field(default_factory=dict)

    @property
    def honest(self) -> bool:
        return not self.gates

    def candidate(self) -> Candidate:
        return Candidate(
            task=f"test_{self.task}",
            kind=self.kind,
            files={n: t.encode() for n, t in self.files.items()},
            isa=self.isa,
            envelope=dict(self.envelope),
        )


def all_cases() -> list[Case]:
    """Every case of every family; names are unique."""
    found = [case for family in FAMILIES for case in importlib.import_module(f"suite.{family}").CASES]
    names = [c.name for c in found]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    return found


HEAD = """#include "rackforge_kernel.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
"""

SOFTMAX = (
    HEAD
    + """
@TOP@
static void honest_row(const float *x, float *y, int64_t n, float s) {
  float top = -INFINITY; bool bad = false;
  for (int64_t i = 0; i < n; i++) { float v = x[i] * s; if (v > top) top = v; if (v != v) bad = true; }
  if (bad) top = NAN;
  float sum = 0;
  for (int64_t i = 0; i < n; i++) { y[i] = std::exp(x[i] * s - top); sum += y[i]; }
  for (int64_t i = 0; i < n; i++) y[i] /= sum;
}
static void honest(const rf_tensor *in, rf_tensor *out, int32_t threads) {
  const rf_tensor &x = in[0]; const rf_tensor &y = out[0];
  float s = (float)*(const double *)in[1].data;
  #pragma omp parallel for num_threads(threads)
  for (int64_t m = 0; m < x.shape[0]; m++)
    honest_row((const float *)x.data + m * x.stride[0], (float *)y.data + m * y.stride[0], x.shape[1], s);
}
@MORE@
extern "C" int32_t rf_abi(void) { return RF_ABI_VERSION; }
extern "C" int32_t rf_run(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, const void *state,
                          int32_t threads) {
  const rf_tensor &x = in[0]; rf_tensor &y = out[0];
  const float *X = (const float *)x.data; float *Y = (float *)y.data;
  const int64_t M = x.shape[0], N = x.shape[1];
  const float s = (float)*(const double *)in[1].data;
  (void)X; (void)Y; (void)M; (void)N; (void)s;
  @RUN@
  return RF_OK;
}
"""
)

AFFINE = (
    HEAD
    + """
static inline float up(uint16_t v) { uint32_t u = (uint32_t)v << 16; float f; std::memcpy(&f, &u, 4); return f; }
static inline uint16_t down(float f) {
  uint32_t u; std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
@TOP@
static void pack(const rf_tensor *c, float *s) {
  int64_t N = c[0].shape[0], K = c[0].shape[1];
  for (int64_t n = 0; n < N; n++)
    for (int64_t k = 0; k < K; k++) s[n * K + k] = up(((const uint16_t *)c[0].data)[n * c[0].stride[0] + k]);
  for (int64_t n = 0; n < N; n++) s[N * K + n] = up(((const uint16_t *)c[1].data)[n]);
}
static void honest(const rf_tensor *in, rf_tensor *out, const void *state, int32_t threads) {
  const rf_tensor &x = in[0]; const rf_tensor &y = out[0];
  int64_t M = x.shape[0], K = x.shape[1], N = y.shape[1];
  const float *w = (const float *)state, *b = w + N * K;
  #pragma omp parallel for num_threads(threads)
  for (int64_t n = 0; n < N; n++)
    for (int64_t m = 0; m < M; m++) {
      float a = 0;
      for (int64_t k = 0; k < K; k++) a += up(((const uint16_t *)x.data)[m * x.stride[0] + k]) * w[n * K + k];
      ((uint16_t *)y.data)[m * y.stride[0] + n] = down(a + b[n]);
    }
}
@MORE@
extern "C" int32_t rf_abi(void) { return RF_ABI_VERSION; }
extern "C" int32_t rf_prepare_bytes(const rf_tensor *c, int32_t n, int64_t *bytes) {
  *bytes = 64 + 4 * (c[0].shape[0] * c[0].shape[1] + c[1].shape[0]);
  return RF_OK;
}
extern "C" int32_t rf_prepare(const rf_tensor *c, int32_t n, void *state) {
  @PREPARE@
  return RF_OK;
}
extern "C" int32_t rf_run(const rf_tensor *in, int32_t n_in, rf_tensor *out, int32_t n_out, const void *state,
                          int32_t threads) {
  const rf_tensor &x = in[0]; rf_tensor &y = out[0];
  const uint16_t *X = (const uint16_t *)x.data; uint16_t *Y = (uint16_t *)y.data;
  const int64_t M = x.shape[0], K = x.shape[1], N = y.shape[1];
  (void)X; (void)Y; (void)M; (void)K; (void)N;
  @RUN@
  return RF_OK;
}
"""
)


def softmax(run: str = "honest(in, out, threads);", *, top: str = "", more: str = "") -> dict[str, str]:
    """C++ softmax with parts replaced."""
    return {"kernel.cpp": SOFTMAX.replace("@TOP@", top).replace("@MORE@", more).replace("@RUN@", run)}


def affine(
    run: str = "honest(in, out, state, threads);",
    *,
    top: str = "",
    more: str = "",
    prepare: str = "pack(c, (float *)state);",
) -> dict[str, str]:
    """C++ affine map with parts replaced."""
    text = AFFINE.replace("@TOP@", top).replace("@MORE@", more).replace("@PREPARE@", prepare)
    return {"kernel.cpp": text.replace("@RUN@", run)}


PY_SOFTMAX = """
import torch
@TOP@

def honest(x, y, scale):
    v = x * scale.to(torch.float32)
    e = torch.exp(v - v.amax(dim=-1, keepdim=True)) if v.numel() else v
    y.copy_(e / e.sum(dim=-1, keepdim=True))

@MORE@
def run(inputs, outputs, state, threads@ARGS@):
    x, scale = inputs
    (y,) = outputs
@RUN@
"""

PY_AFFINE = """
import torch
@TOP@

def prepare(constants):
    w, b = constants
@PREPARE@

def honest(x, y, state):
    w, b = state
    y.copy_((x.float()[:, None, :] * w[None]).sum(-1) + b)

@MORE@
def run(inputs, outputs, state, threads@ARGS@):
    (x,) = inputs
    (y,) = outputs
@RUN@
"""

TRITON_SOFTMAX = """
import torch
import triton
import triton.language as tl
@TOP@

@triton.jit
def softmax_kernel(x, y, scale, stride_x, stride_y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride_x + cols, mask=cols < n, other=-float("inf")) * scale
@BODY@
    tl.store(y + row * stride_y + cols, out, mask=cols < n)

def launch(x, y, scale):
    m, n = x.shape
    if m and n:
        softmax_kernel[(m,)](x, y, float(scale), x.stride(0), y.stride(0), n, BLOCK=triton.next_power_of_2(n))

@MORE@
def run(inputs, outputs, state, threads):
    x, scale = inputs
    (y,) = outputs
@RUN@
"""
TRITON_BODY = "e = tl.exp(v - tl.max(v, axis=0))\nout = e / tl.sum(e, axis=0)"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip("\n").splitlines())


def py_softmax(
    run: str = "honest(x, y, scale)",
    *,
    top: str = "",
    more: str = "",
    args: str = "",
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Python softmax with parts replaced."""
    text = PY_SOFTMAX.replace("@TOP@", top).replace("@MORE@", more).replace("@ARGS@", args)
    return {"kernel.py": text.replace("@RUN@", _indent(run)), **(extra or {})}


def py_affine(
    run: str = "honest(x, y, state)",
    *,
    top: str = "",
    more: str = "",
    args: str = "",
    prepare: str = "return w.float().clone(), b.float().clone()",
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Python affine map with parts replaced."""
    text = PY_AFFINE.replace("@TOP@", top).replace("@MORE@", more).replace("@ARGS@", args)
    return {"kernel.py": text.replace("@PREPARE@", _indent(prepare)).replace("@RUN@", _indent(run)), **(extra or {})}


def triton_softmax(
    run: str = "launch(x, y, scale)", *, top: str = "", more: str = "", body: str = TRITON_BODY
) -> dict[str, str]:
    """Triton softmax with parts replaced."""
    text = TRITON_SOFTMAX.replace("@TOP@", top).replace("@MORE@", more)
    return {"kernel.py": text.replace("@BODY@", _indent(body)).replace("@RUN@", _indent(run))}
