"""The engine's own operator, timed in the serving environment by the same protocol as the candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optimizer.engine.agents.tuner.plan import StepPlan
from optimizer.engine.agents.tuner.resident import ChildFailed, Resident
from optimizer.engine.agents.tuner.values import Samples, TunerError

SCRIPT = Path(__file__).parent / "harness" / "stock.py"


def child_env(env: Mapping[str, str], threads: int) -> dict[str, str]:
    """Environment of a timing child: the caller's (with the server's preloads) and the number of threads.

    The OpenMP settings are those vLLM gives its workers (vllm/utils/ompmultiprocessing.py).
    """
    return {**env, "OMP_NUM_THREADS": str(threads), "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}


@dataclass(frozen=True, slots=True)
class StockBaseline:
    """vLLM's operator. `python` is the serving environment's; `env` the server's (LD_PRELOAD above all).

    batches: all the batch sizes that will be asked for.
    """

    python: Path
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 120.0
    answer_s: float = 60.0

    def open(self, plan: StepPlan, *, threads: int, batches: Sequence[int]) -> StockSession:
        """Start the child and set up its weights. TunerError when that fails, with the child's words."""
        child = Resident([str(self.python), str(SCRIPT)], env=child_env(self.env, threads))
        ask = {
            "task": plan.task,
            "threads": threads,
            "batches": list(batches),
            "shapes": {s.label: dict(s.shape) for s in plan.live},
            "copies": dict(plan.copies),
            "order": [list(item) for item in plan.order],
        }
        try:
            child.ask(json.dumps(ask), deadline_s=self.start_s)
        except ChildFailed as error:
            child.close()
            raise TunerError(f"the stock operator cannot be timed with {self.python}: {error}") from error
        return StockSession(child, self.answer_s)


class StockSession:
    """A warm child of a StockBaseline."""

    def __init__(self, child: Resident, answer_s: float) -> None:
        self._child, self._answer_s = child, answer_s

    def measure(self, batch: int, reps: int) -> Samples:
        try:
            answer = self._child.ask(json.dumps({"batch": batch, "reps": reps}), deadline_s=self._answer_s)
        except ChildFailed as error:
            raise TunerError(f"the stock operator failed at batch {batch}: {error}") from error
        return {str(k): [float(v) for v in values] for k, values in answer["us"].items()}

    def close(self) -> None:
        self._child.close()
