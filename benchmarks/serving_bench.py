"""Stock throughput of the reference model for each launch configuration, at several concurrencies.

Rounds are interleaved over the configurations, so that a drift of the machine touches all alike; each
configuration's server runs while the others idle. Prints a table, or JSON with --json.

    .venv/bin/python benchmarks/serving_bench.py [--rounds 3] [--concurrency 1,8] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from optimizer.engine.serving import (  # noqa: E402
    PRESETS,
    BenchClient,
    BenchResult,
    LocalServer,
    ServerSpec,
    ServingEnvironment,
    Workload,
    launch_configurations,
    make_reference_model,
)
from rackforge_runtime.facts import collect_facts  # noqa: E402


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "var" / "bench", help="models, caches and logs")
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(os.environ.get("RACKFORGE_SERVING_PYTHON", ROOT / ".venv-serving" / "bin" / "python")),
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="reference")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--only", default="", help="comma separated names of configurations")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    environment = ServingEnvironment(python=options.python, cache_root=options.data / "cache")
    shape = PRESETS[options.preset]
    model = make_reference_model(options.data / f"model-{options.preset}", shape, environment=environment)
    facts = collect_facts(options.python)
    base = ServerSpec(model=str(model), max_model_len=min(2048, shape.max_position))
    wanted = set(filter(None, options.only.split(",")))
    configurations = [c for c in launch_configurations(facts) if not wanted or c.name in wanted]
    levels = [int(c) for c in options.concurrency.split(",")]
    results: dict[tuple[str, int], list[BenchResult]] = {}
    starts: dict[str, float] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rackforge-bench-")))
        client = stack.enter_context(BenchClient(environment, log=scratch / "client.log"))
        servers: dict[str, LocalServer] = {}
        for config in configurations:

            def seen(_stage: str, seconds: float, name: str = config.name) -> None:
                starts[name] = seconds

            note(f"starting {config.name}")
            servers[config.name] = stack.enter_context(
                LocalServer.start(
                    config.apply(base),
                    environment=environment,
                    state_dir=scratch / config.name.replace("/", "-"),
                    deadline_s=600,
                    progress=seen,
                )
            )
        order = random.Random(0)
        for round_ in range(options.rounds + 1):  # the first warms up and is thrown away
            for level in levels:
                requests = max(3, 2 * level)
                workload = Workload(
                    input_len=32, output_len=64, concurrency=level, num_requests=requests, seed=round_
                )
                for name in order.sample(sorted(servers), len(servers)):
                    result = client.run(servers[name].endpoint, workload)
                    if round_:
                        results.setdefault((name, level), []).append(result)
                    note(f"round {round_} {name} concurrency {level}: {result.output_tok_s:.1f} tok/s")
    rows = [
        {
            "configuration": name,
            "concurrency": level,
            "rounds": len(found),
            "output_tok_s": statistics.median(r.output_tok_s for r in found),
            "output_tok_s_min": min(r.output_tok_s for r in found),
            "output_tok_s_max": max(r.output_tok_s for r in found),
            "ttft_ms": statistics.median(r.ttft.median for r in found),
            "tpot_ms": statistics.median(r.tpot.median for r in found),
            "start_s": round(starts.get(name, 0.0), 1),
        }
        for (name, level), found in sorted(results.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    if options.json:
        print(json.dumps({"facts_digest": facts.facts_digest, "cpu": facts.cpu_model, "rows": rows}, indent=1))
        return
    print(
        f"{'configuration':20} {'conc':>4} {'tok/s':>8} {'min':>8} {'max':>8} "
        f"{'TTFT ms':>8} {'TPOT ms':>8} {'start s':>8}"
    )
    for row in rows:
        print(
            f"{row['configuration']:20} {row['concurrency']:>4} {row['output_tok_s']:>8.1f} "
            f"{row['output_tok_s_min']:>8.1f} {row['output_tok_s_max']:>8.1f} {row['ttft_ms']:>8.1f} "
            f"{row['tpot_ms']:>8.2f} {row['start_s']:>8.1f}"
        )


if __name__ == "__main__":
    main()
