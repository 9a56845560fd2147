"""The judge: how a candidate kernel earns a place. `judge()` is all that other packages need."""

from optimizer.engine.judge.engine import judge
from optimizer.engine.judge.envelope import covers, measured_envelope
from optimizer.engine.judge.policy import JudgePolicy, Roofline
from optimizer.engine.judge.pool import SandboxPool
from optimizer.engine.judge.sandbox import Cancelled
from optimizer.engine.judge.verdict import GateOutcome, GateResult, ImpossibleVerdict, Outcome, Verdict
from optimizer.engine.judge.wall import WallReport, probe_wall

__all__ = [
    "Cancelled", "GateOutcome", "GateResult", "ImpossibleVerdict", "JudgePolicy", "Outcome", "Roofline",
    "SandboxPool", "Verdict", "WallReport", "covers", "judge", "measured_envelope", "probe_wall",
]  # fmt: skip
