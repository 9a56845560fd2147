"""Timing and checking kernel objects of our own in the runner (harness/runner.cpp), one child at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from optimizer.engine.agents.tuner.baseline import child_env
from optimizer.engine.agents.tuner.plan import StepData
from optimizer.engine.agents.tuner.resident import ChildFailed, Resident
from optimizer.engine.agents.tuner.values import Samples, TunerError
from optimizer.engine.build import HEADER, compiler
from optimizer.engine.children import Limits, run
from rackforge_runtime.canonical import digest_bytes

SOURCE = Path(__file__).parent / "harness" / "runner.cpp"
FLAGS = ("-std=c++17", "-O3", "-fopenmp")


def build_runner(cache: Path) -> Path:
    """The runner, compiled once for its source and compiler. TunerError with the compiler's words."""
    path, version = compiler()
    key = digest_bytes(SOURCE.read_bytes() + HEADER.read_bytes() + version.encode() + " ".join(FLAGS).encode())
    place = cache / f"runner-{key.removeprefix('sha256:')[:24]}"
    if place.exists():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="runner-", dir=cache) as scratch:
        shutil.copy(SOURCE, scratch)
        shutil.copy(HEADER, scratch)
        done = run(
            [path, *FLAGS, "-I.", SOURCE.name, "-o", "runner", "-ldl"],
            cwd=Path(scratch),
            limits=Limits(wall_s=120),
        )
        if not done.ok:
            raise TunerError(f"the timing harness does not compile: {done.stderr[-2000:]}")
        (Path(scratch) / "runner").replace(place)
    return place


@dataclass(frozen=True, slots=True)
class Wrong(Exception):
    """The kernel's output is not the operator's."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class KernelSession:
    """One kernel object in a runner of its own, with the constants of a whole step prepared.

    labels: the shapes it can run; the others are left out of its steps.
    """

    def __init__(
        self,
        runner: Path,
        kernel: Path,
        data: StepData,
        *,
        labels: Sequence[str],
        batches: Mapping[str, Sequence[int]],
        threads: int,
        env: Mapping[str, str],
        huge_pages: bool = True,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self._data, self._cancelled = data, cancelled
        self._child = Resident([str(runner)], env=child_env(env, threads))
        self._labels = list(labels)
        task = data.task
        lines = [f"data {data.path}", f"load {kernel}", f"threads {threads}", f"huge {int(huge_pages)}"]
        number: dict[str, int] = {}
        if task.constants:
            for label in labels:
                number[label] = len(number)
                constants = " ".join(data.tensor(label, 0, t) for t in task.constants)
                lines.append(f"state {data.plan.copies[label]} {len(task.constants)} {constants}")
        for batch in sorted({m for label in labels for m in batches[label]}):
            for label, copy in data.plan.order:
                if label not in labels or batch not in batches[label]:
                    continue
                inputs = " ".join(data.tensor(label, batch, t) for t in task.calls)
                outputs = " ".join(data.tensor(label, batch, t, output=True) for t in task.outputs)
                lines.append(
                    f"call {batch} {label} {number.get(label, -1)} {copy} "
                    f"{len(task.calls)} {inputs} {len(task.outputs)} {outputs}"
                )
        self._child.tell("\n".join(lines) + "\n")

    def verify(self, label: str, batch: int, *, deadline_s: float = 20.0) -> None:
        """Run one call on poisoned outputs and compare with the truth. Raises Wrong or ChildFailed."""
        fd, name = tempfile.mkstemp(prefix="output-", dir=self._data.path.parent)
        os.close(fd)
        path = Path(name)
        try:
            self._child.ask(f"output {batch} {label} {path}", deadline_s=deadline_s, cancelled=self._cancelled)
            why = self._data.verify(label, batch, path.read_bytes())
        finally:
            path.unlink(missing_ok=True)
        if why:
            raise Wrong(f"{label} batch {batch}: {why}")

    def measure(
        self, batch: int, reps: int, *, give_up_us: float = 0.0, deadline_s: float = 30.0
    ) -> tuple[Samples, bool]:
        """Microseconds of every call by label, and whether it gave up on a slow kernel (half-way)."""
        answer = self._child.ask(
            f"time {batch} {reps} {give_up_us:.1f}", deadline_s=deadline_s, cancelled=self._cancelled
        )
        us = {str(k): [float(v) for v in values] for k, values in answer["us"].items()}
        return us, bool(answer["gave_up"])

    def close(self) -> None:
        self._child.close()

    def __enter__(self) -> KernelSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_bandwidth(runner: Path, *, threads: int, env: Mapping[str, str]) -> float:
    """Best read bandwidth of so many threads in GB/s, over 256 MiB, with 1, 4 and 8 streams a thread."""
    with Resident([str(runner)], env=child_env(env, threads)) as child:
        try:
            child.tell(f"threads {threads}\n")
            return float(child.ask("bandwidth 268435456", deadline_s=60)["gbytes_per_s"])
        except ChildFailed as error:
            raise TunerError(f"the read bandwidth cannot be measured: {error}") from error
