"""Times vLLM's own operators the way a serving step uses them. Runs in the serving environment.

First line of stdin: a plan (JSON): task, threads, batches, shapes {label: {axis: length}}, copies {label: n},
order [[label, copy], ...]. Answers {"ready": true, ...}. Then {"batch": m, "reps": r} lines, each answered with
{"us": {label: [microseconds of every call, repetition by repetition]}}. Microseconds are net of what calling any
torch operator from Python costs (measured with one that does nothing), since candidates are timed from C.
"""

# Standalone on purpose: the serving environment does not have the optimizer package.
from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

Call = Callable[..., object]
Shape = dict[str, int]


def load_operators() -> str:
    """Register vLLM's compiled operators (torch.ops._C) without importing vLLM; says which library."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("vllm is not installed in this environment")
    folder = Path(next(iter(spec.submodule_search_locations)))
    # As vLLM's CPU platform chooses among its builds.
    names = ["_C"]
    if not torch.cpu._is_avx512_supported():  # noqa: SLF001 - as vLLM asks
        names = ["_C_AVX2", "_C"]  # only "_C" exists for other architectures
    elif not torch.cpu._is_avx512_bf16_supported():  # noqa: SLF001
        names = ["_C_AVX512", "_C"]
    for name in names:
        path = folder / f"{name}.abi3.so"
        if path.exists():
            torch.ops.load_library(str(path))
            return path.name
    raise RuntimeError(f"no compiled operators in {folder}")


def linear_calls(shape: Shape, copies: int, batches: list[int]) -> dict[int, list[list[Call]]]:
    """[batch][copy] -> alternatives; one here: oneDNN behind a handler, as the linear layers call it."""
    n, k = shape["N"], shape["K"]
    handlers = []
    for _ in range(copies):
        weight = torch.randn(n, k, dtype=torch.float32).mul_(k**-0.5).to(torch.bfloat16)
        pointer = torch.ops._C.create_onednn_mm_handler(weight.t(), 32)
        handlers.append(torch.tensor(pointer, dtype=torch.int64))
    found: dict[int, list[list[Call]]] = {}
    for m in batches:
        x = torch.randn(m, k, dtype=torch.bfloat16)
        out = torch.empty(m, n, dtype=torch.bfloat16)
        op = torch.ops._C.onednn_mm.default
        found[m] = [[partial(op, out, x, None, handler)] for handler in handlers]
    return found


def eager_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    y = x.to(torch.float32)
    y = y * torch.rsqrt(y.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return y.to(weight.dtype) * weight


def eager_fused(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float) -> object:
    total = x.to(torch.float32) + residual.to(torch.float32)
    y = total * torch.rsqrt(total.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return y.to(weight.dtype) * weight, total.to(x.dtype)


def eager_silu(x: torch.Tensor) -> torch.Tensor:
    d = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :d]) * x[..., d:]


def rms_norm_calls(shape: Shape, copies: int, batches: list[int]) -> dict[int, list[list[Call]]]:
    weight = torch.ones(shape["H"], dtype=torch.bfloat16)
    found: dict[int, list[list[Call]]] = {}
    for m in batches:
        x = torch.randn(m, shape["H"], dtype=torch.bfloat16)
        compiled = partial(operator("rms_norm"), torch.empty_like(x), x, weight, 1e-5)
        found[m] = [[compiled, partial(eager_rms_norm, x, weight, 1e-5)]] * copies
    return found


def fused_calls(shape: Shape, copies: int, batches: list[int]) -> dict[int, list[list[Call]]]:
    weight = torch.ones(shape["H"], dtype=torch.bfloat16)
    found: dict[int, list[list[Call]]] = {}
    for m in batches:
        x = torch.randn(m, shape["H"], dtype=torch.bfloat16)
        # A zero keeps the residual from growing while it is added to in place.
        compiled = partial(operator("fused_add_rms_norm"), torch.zeros_like(x), x.clone(), weight, 1e-5)
        found[m] = [[compiled, partial(eager_fused, x, x.clone(), weight, 1e-5)]] * copies
    return found


def silu_calls(shape: Shape, copies: int, batches: list[int]) -> dict[int, list[list[Call]]]:
    found: dict[int, list[list[Call]]] = {}
    for m in batches:
        x = torch.randn(m, shape["D2"], dtype=torch.bfloat16)
        out = torch.empty(m, shape["D"], dtype=torch.bfloat16)
        found[m] = [[partial(operator("silu_and_mul"), out, x), partial(eager_silu, x)]] * copies
    return found


MAKERS = {
    "linear_bf16_cpu": linear_calls,
    "rms_norm_cpu": rms_norm_calls,
    "fused_add_rms_norm_cpu": fused_calls,
    "silu_and_mul_cpu": silu_calls,
}


def overhead_us() -> float:
    """What timing a call and going through torch's dispatcher costs by itself (median)."""
    scratch = torch.empty(0)
    op = torch.ops.aten.zero_.default
    samples = []
    for _ in range(2000):
        start = time.perf_counter_ns()
        op(scratch)
        samples.append(time.perf_counter_ns() - start)
    return sorted(samples)[1000] / 1e3


def operator(name: str) -> Call:
    """A compiled operator; one that this build lacks raises when it is called, so it is left out."""
    try:
        found: Call = getattr(torch.ops._C, name).default
    except AttributeError:
        return partial(_missing, name)
    return found


def _missing(name: str, *_: object) -> object:
    raise NotImplementedError(f"no compiled operator {name}")


def usable(calls: list[Call]) -> list[Call]:
    """The alternatives that run at all in this build (a CPU build lacks some compiled operators)."""
    good = []
    for call in calls:
        try:
            call()
        except (RuntimeError, NotImplementedError, AttributeError):
            continue
        good.append(call)
    return good


def measure(
    order: list[tuple[str, int]], calls: dict[str, list[list[Call]]], reps: int, cost_us: float
) -> dict[str, list[float]]:
    """Microseconds of every call by label; of the alternatives, those of the one with the lowest median."""
    best: dict[str, list[float]] = {}
    for which in range(max(len(c[0]) for c in calls.values())):
        samples: dict[str, list[float]] = {label: [] for label in calls}
        for _ in range(reps):
            for label, copy in order:
                alternatives = calls[label][copy]
                call = alternatives[which % len(alternatives)]
                start = time.perf_counter_ns()
                call()
                took = (time.perf_counter_ns() - start) / 1e3
                samples[label].append(max(took - cost_us, 0.01))
        for label, values in samples.items():
            if label not in best or median(values) < median(best[label]):
                best[label] = values
    return best


def main() -> int:
    plan: dict[str, Any] = json.loads(sys.stdin.readline())
    torch.set_num_threads(int(plan["threads"]))
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    library = load_operators()
    maker = MAKERS.get(plan["task"])
    if maker is None:
        print(json.dumps({"error": f"no stock operator known for task {plan['task']}"}), flush=True)
        return 2
    calls: dict[int, dict[str, list[list[Call]]]] = {m: {} for m in plan["batches"]}
    for label, shape in plan["shapes"].items():
        for m, made in maker(shape, plan["copies"][label], plan["batches"]).items():
            calls[m][label] = [usable(alternatives) for alternatives in made]
    cost_us = overhead_us()
    order = [(label, copy) for label, copy in plan["order"]]
    print(json.dumps({"ready": True, "library": library, "overhead_us": cost_us}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        print(json.dumps({"us": measure(order, calls[ask["batch"]], ask["reps"], cost_us)}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
