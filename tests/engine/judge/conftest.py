"""The judge's tests share one pool of warm sandboxes, one build cache, and the suite of cases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.engine.candidate import Candidate
from optimizer.engine.judge import JudgePolicy, SandboxPool, Verdict, judge, probe_wall
from optimizer.engine.judge.gates import GATES
from optimizer.engine.judge.gates.g3_compile import Compile
from optimizer.engine.tasks import load_task
from optimizer.engine.tasks.base import KernelTask

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # `suite` is imported by the tests here and by the benchmark
ROOT = HERE.parents[2]
POLICY = JudgePolicy(call_timeout_s=3.0, load_timeout_s=20.0, timed_calls=5, memory_bytes=2 << 30)
JudgeOne = Callable[..., Verdict]


@pytest.fixture(scope="session")
def pool() -> Iterator[SandboxPool]:
    if not probe_wall().certifies:
        pytest.skip(f"no wall on this host: {probe_wall().problem}")
    with SandboxPool(serving_python=ROOT / ".venv-serving" / "bin" / "python") as found:
        yield found


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.fixture(scope="session")
def tasks() -> dict[str, KernelTask]:
    return {name: load_task(str(HERE / "tasks" / name)) for name in ("softmax", "affine")}


@pytest.fixture(scope="session")
def judge_one(pool: SandboxPool, build_cache: Path, tasks: dict[str, KernelTask]) -> JudgeOne:
    """Judge a candidate of one of the test tasks; `without` leaves gates out."""

    def run(candidate: Candidate, *, policy: JudgePolicy = POLICY, without: tuple[str, ...] = ()) -> Verdict:
        gates = [g for g in GATES if g.name not in without]
        if "G3 symbols" in without:
            gates = [Compile(symbols=False) if g.name == "G3" else g for g in gates]
        task = tasks[candidate.task.removeprefix("test_")]
        return judge(candidate, task, build_cache=build_cache, policy=policy, pool=pool, gates=gates)

    return run
