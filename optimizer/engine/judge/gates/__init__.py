"""The gates in the order in which a candidate meets them: cheapest first."""

from __future__ import annotations

from optimizer.engine.judge.context import Gate
from optimizer.engine.judge.gates.g0_task import TaskVetting
from optimizer.engine.judge.gates.g1_intake import Intake
from optimizer.engine.judge.gates.g2_policy import Policy
from optimizer.engine.judge.gates.g3_compile import Compile
from optimizer.engine.judge.gates.g4_correctness import Correctness
from optimizer.engine.judge.gates.g5_adversarial import Adversarial
from optimizer.engine.judge.gates.g6_provenance import Provenance
from optimizer.engine.judge.gates.g7_timing import Timing

GATES: tuple[Gate, ...] = (
    TaskVetting(),
    Intake(),
    Policy(),
    Compile(),
    Correctness(),
    Adversarial(),
    Provenance(),
    Timing(),
)
