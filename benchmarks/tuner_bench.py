"""Search for kernels of the reference model's linear layers and print stock against best.

Run from the repository root: python benchmarks/tuner_bench.py [--json] [--wall 240] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from optimizer.engine.agents.tuner import (  # noqa: E402
    LiveShape,
    Progress,
    StockBaseline,
    Trial,
    TuneBudget,
    TuneResult,
    tune,
)
from optimizer.engine.tasks import load_task  # noqa: E402

# The reference Llama: hidden 1024, 8 layers, intermediate 2816, 16 heads and 4 kv heads of 64, 10,240 tokens.
LINEAR = ((1536, 1024, 8), (1024, 1024, 8), (5632, 1024, 8), (1024, 2816, 8), (10240, 1024, 1))
ROWWISE = {
    "rms_norm_cpu": [({"H": 1024}, 1)],
    "fused_add_rms_norm_cpu": [({"H": 1024}, 16)],
    "silu_and_mul_cpu": [({"D2": 5632, "D": 2816}, 8)],
}


def live_shapes(task: str, batches: list[int]) -> list[LiveShape]:
    weights = dict.fromkeys(batches, 1.0)
    if task == "linear_bf16_cpu":
        return [LiveShape({"N": n, "K": k}, calls, weights) for n, k, calls in LINEAR]
    return [LiveShape(shape, calls, weights) for shape, calls in ROWWISE[task]]


def cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def preloads(serving: Path) -> str:
    """What vLLM recommends to preload on a CPU, where it is there."""
    found = [*sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))[:1], serving / "lib" / "libiomp5.so"]
    return ":".join(str(p) for p in found if p.exists())


def show(progress: Progress) -> None:
    best = "  ".join(f"M={m} {gain:.2f}x" for m, gain in progress.best.items())
    print(
        f"\r{progress.stage:8} {progress.tried:4} tried, {progress.failed} failed   {best}   "
        f"{progress.left_s:4.0f} s left ",
        end="",
        file=sys.stderr,
        flush=True,
    )


def report(result: TuneResult, batches: list[int]) -> dict[str, Any]:
    tried = len(result.trials)
    return {
        "threads": result.threads,
        "read_gbytes_per_s": round(result.read_gbytes_per_s, 2),
        "wall_s": round(result.wall_s, 1),
        "trials": tried,
        "trials_per_minute": round(tried / result.wall_s * 60, 1),
        "outcomes": dict(result.outcomes),
        "candidate": result.candidate.digest if result.candidate else None,
        "isa": result.candidate.isa if result.candidate else None,
        "envelope": dict(result.candidate.envelope) if result.candidate else None,
        "choices": result.candidate.params["choices"] if result.candidate else None,
        "reason": result.reason,
        "rows": [
            {
                "shape": dict(r.shape), "batch": r.batch, "calls": r.calls_per_step,
                "stock_us": round(r.stock_us, 1), "ours_us": round(r.ours_us, 1),
                "gbytes_per_s": round(r.gbytes_per_s, 2), "bandwidth_fraction": round(r.bandwidth_fraction, 3),
                "speedup": round(r.speedup, 3), "in_envelope": r.in_envelope,
            }
            for r in result.rows
        ],
        "steps": {
            str(m): dict(zip(("stock_us", "ours_us"), map(round, result.step_us(m)), strict=True))
            for m in batches
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    parser.add_argument("--task", default="linear_bf16_cpu")
    parser.add_argument("--wall", type=float, default=240.0, help="seconds for the whole search")
    parser.add_argument("--max-trials", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1),
                        help="as vLLM's engine uses them; by default one core is left to its front end")  # fmt: skip
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serving", type=Path, default=ROOT / ".venv-serving")
    parser.add_argument("--save", type=Path, help="write the winning candidate to this folder")
    parser.add_argument("--trials", type=Path, help="write every trial to this file, one JSON line each")
    args = parser.parse_args()
    batches = [int(m) for m in args.batches.split(",")]
    env = {**os.environ, "LD_PRELOAD": preloads(args.serving)}
    kept: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="tuner-bench-") as folder:
        start = time.monotonic()
        result = tune(
            load_task(args.task),
            live_shapes(args.task, batches),
            cpu_flags=cpu_flags(),
            threads=args.threads,
            baseline=StockBaseline(args.serving / "bin" / "python", env),
            budget=TuneBudget(args.wall, args.max_trials),
            workdir=Path(folder),
            seed=args.seed,
            on_trial=kept.append,
            on_progress=show,
            env=env,
        )
        print(f"\nsearched for {time.monotonic() - start:.0f} s", file=sys.stderr)
    if args.trials:
        with args.trials.open("w") as f:
            for t in kept:
                f.write(json.dumps({"batch": t.batch, "params": dict(t.params), "outcome": t.outcome,
                                    "reason": t.reason, "score": t.score, "wall_s": t.wall_s,
                                    "us": {x.label: x.us for x in t.timings}}) + "\n")  # fmt: skip
    if args.save and result.candidate:
        result.candidate.save(args.save)
    found = report(result, batches)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"{args.task}, {result.threads} thread(s); memory reads at {result.read_gbytes_per_s:.1f} GB/s")
    print(f"{'shape':<18}{'M':>4}{'stock us':>10}{'best us':>10}{'GB/s':>7}{'of read':>9}{'ratio':>7}")
    for r in result.rows:
        if r.batch in batches:
            kept_by = "" if r.in_envelope else "  stock kept"
            print(
                f"{r.label:<18}{r.batch:>4}{r.stock_us:>10.1f}{r.ours_us:>10.1f}{r.gbytes_per_s:>7.1f}"
                f"{r.bandwidth_fraction:>9.0%}{r.speedup:>7.2f}{kept_by}"
            )
    for m in batches:
        stock, ours = result.step_us(m)
        if ours > 0:
            print(f"one step at M={m}: stock {stock:.0f} us, tuned {ours:.0f} us, {stock / ours:.2f} times")
    counts = ", ".join(f"{n} {name}" for name, n in sorted(result.outcomes.items()))
    rate = len(result.trials) / result.wall_s * 60
    print(f"{len(result.trials)} candidates ({counts}), {rate:.0f} a minute, {result.wall_s:.0f} s")
    if result.candidate is None:
        print(f"nothing to use: {result.reason}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
