"""What the judge catches, whom it wrongs, and what it costs.

Runs the whole suite of hacks and honest twins (tests/engine/judge/suite) and prints, per gate, how many of the hacks
that reached it it stopped and how many twins it turned away; candidates judged per minute; what a fresh candidate
process and one call through the sandbox cost.

    python benchmarks/judge_suite.py [--json] [--kind cpp] [--repeat-twins 5]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JUDGE_TESTS = ROOT / "tests" / "engine" / "judge"
for place in (ROOT, ROOT / "runtime", JUDGE_TESTS):
    sys.path.insert(0, str(place))

from suite.cases import Case, all_cases  # noqa: E402

from optimizer.engine.judge import GateOutcome, JudgePolicy, Outcome, SandboxPool, Verdict, judge, probe_wall  # noqa: E402
from optimizer.engine.judge.exercise import Exerciser  # noqa: E402
from optimizer.engine.judge.gates import GATES  # noqa: E402
from optimizer.engine.tasks import load_task  # noqa: E402

STOPS = (GateOutcome.FAIL, GateOutcome.QUARANTINE)


def stopped_by(verdict: Verdict) -> str:
    """The first gate that did not let it through, "" when none did not."""
    return next((g.name for g in verdict.gates if g.outcome in STOPS), "")


def run_suite(pool: SandboxPool, cache: Path, cases: list[Case], policy: JudgePolicy) -> list[tuple[Case, Verdict]]:
    """Judge every case, one after the other."""
    tasks = {name: load_task(str(JUDGE_TESTS / "tasks" / name)) for name in ("softmax", "affine")}
    done = []
    for i, case in enumerate(cases):
        verdict = judge(case.candidate(), tasks[case.task], build_cache=cache, policy=policy, pool=pool)
        done.append((case, verdict))
        if sys.stderr.isatty():
            print(f"\r{i + 1}/{len(cases)} {case.name:<60}", end="", file=sys.stderr)
    return done


def per_gate(done: list[tuple[Case, Verdict]]) -> dict[str, dict[str, Any]]:
    """For each gate: hacks that reached it and were stopped there, twins that it turned away, its median time."""
    table: dict[str, dict[str, Any]] = {}
    for gate in GATES:
        seen = [(c, v.gate(gate.name)) for c, v in done if v.gate(gate.name) is not None]
        hacks = [r for c, r in seen if not c.honest and r is not None]
        twins = [r for c, r in seen if c.honest and r is not None]
        times = [r.wall_s for _, r in seen if r is not None]
        caught = sum(r.outcome in STOPS for r in hacks)
        wronged = sum(
            r.outcome is not GateOutcome.PASS and r.outcome is not GateOutcome.NOT_APPLICABLE for r in twins
        )
        table[gate.name] = {
            "title": gate.title,
            "hacks_reached": len(hacks),
            "hacks_caught": caught,
            "catch_rate": caught / len(hacks) if hacks else None,
            "twins_reached": len(twins),
            "twins_rejected": wronged,
            "false_reject_rate": wronged / len(twins) if twins else None,
            "median_s": statistics.median(times) if times else None,
        }
    return table


def overhead(pool: SandboxPool, kind: str, calls: int) -> dict[str, float]:
    """Microseconds: a fresh candidate process; one empty call, plain and frozen-then-released; medians."""
    task = load_task(str(JUDGE_TESTS / "tasks" / "softmax"))
    import numpy as np

    spawns, frozen, plain = [], [], []
    with pool.sandbox(kind) as sandbox:
        for _ in range(10):
            start = time.perf_counter_ns()
            with sandbox.spawn(files=[], input_bytes=1 << 20, output_bytes=1 << 20):
                spawns.append(time.perf_counter_ns() - start)
        with sandbox.spawn(files=[], input_bytes=1 << 20, output_bytes=1 << 20) as session:
            exerciser = Exerciser(session, task, JudgePolicy(), np.random.default_rng(0))
            frozen = exerciser.null_ns(calls)
            plain = exerciser.null_ns(calls, frozen=False)
    return {
        "spawn_us": statistics.median(spawns) / 1e3,
        "call_us": statistics.median(plain) / 1e3,
        "call_frozen_us": statistics.median(frozen) / 1e3,
        "call_frozen_p95_us": sorted(frozen)[int(0.95 * len(frozen))] / 1e3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kind", choices=("cpp", "python", "triton"), action="append", help="only these kinds")
    parser.add_argument("--repeat-twins", type=int, default=1, help="judge every twin this often")
    parser.add_argument("--calls", type=int, default=500, help="empty calls for the overhead")
    parser.add_argument("--serving-python", type=Path, default=ROOT / ".venv-serving" / "bin" / "python")
    args = parser.parse_args()
    report = probe_wall()
    if not report.certifies:
        print(f"no wall on this host, nothing to measure: {report.problem}", file=sys.stderr)
        return 1
    kinds = tuple(args.kind or ("cpp", "python", "triton"))
    if not args.serving_python.exists():
        kinds = tuple(k for k in kinds if k == "cpp")
    cases = [c for c in all_cases() if c.kind in kinds]
    cases += [c for c in cases if c.honest] * (args.repeat_twins - 1)
    policy = JudgePolicy(call_timeout_s=3.0, load_timeout_s=20.0)
    with tempfile.TemporaryDirectory() as cache, SandboxPool(serving_python=args.serving_python) as pool:
        costs = {kind: overhead(pool, kind, args.calls) for kind in kinds}
        start = time.monotonic()
        done = run_suite(pool, Path(cache), cases, policy)
        took = time.monotonic() - start
    hacks = [(c, v) for c, v in done if not c.honest]
    twins = [(c, v) for c, v in done if c.honest]
    missed = [c.name for c, v in hacks if v.outcome not in (Outcome.REJECT, Outcome.QUARANTINE)]
    wronged = [f"{c.name}: {v.reason}" for c, v in twins if v.outcome is not Outcome.ACCEPT]
    result = {
        "hacks": len(hacks),
        "hacks_by_kind": dict(Counter(c.kind for c, _ in hacks)),
        "caught": len(hacks) - len(missed),
        "missed": missed,
        "twins": len(twins),
        "false_rejects": wronged,
        "gates": per_gate(done),
        "stopped_by": dict(Counter(stopped_by(v) for _, v in hacks)),
        "seconds": took,
        "candidates_per_minute": 60 * len(done) / took,
        "overhead": costs,
        "host": {"cpus": os.cpu_count(), "machine": platform.machine(), "wall": report.document()},
    }
    print(json.dumps(result, indent=2) if args.json else table_of(result))
    return 0 if not missed and not wronged else 1


def table_of(result: dict[str, Any]) -> str:
    """The result for people."""
    missed, wronged = ", ".join(result["missed"]) or "none", result["false_rejects"]
    lines = [
        f"hacks caught     {result['caught']} of {result['hacks']}   missed: {missed}",
        f"twins rejected   {len(wronged)} of {result['twins']}   {'; '.join(wronged)}",
        f"judged           {result['candidates_per_minute']:.0f} candidates a minute ({result['seconds']:.0f} s)",
        "",
        f"{'gate':<6}{'':<18}{'hacks stopped':>15}{'twins stopped':>15}{'median s':>10}",
    ]
    for name, row in result["gates"].items():
        caught = f"{row['hacks_caught']} of {row['hacks_reached']}"
        wronged = f"{row['twins_rejected']} of {row['twins_reached']}"
        seconds = f"{row['median_s']:.3f}" if row["median_s"] is not None else ""
        lines.append(f"{name:<6}{row['title']:<18}{caught:>15}{wronged:>15}{seconds:>10}")
    lines += ["", f"{'overhead':<10}{'new process':>14}{'call':>12}{'frozen call':>14}{'p95':>10}   (us)"]
    for kind, row in result["overhead"].items():
        lines.append(
            f"{kind:<10}{row['spawn_us']:>14.0f}{row['call_us']:>12.1f}{row['call_frozen_us']:>14.1f}"
            f"{row['call_frozen_p95_us']:>10.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
