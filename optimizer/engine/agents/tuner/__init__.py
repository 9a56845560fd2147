"""The tuner: an agent that searches parametrised C++ templates for the fastest kernel on a live workload."""

from optimizer.engine.agents.tuner.baseline import StockBaseline
from optimizer.engine.agents.tuner.search import tune
from optimizer.engine.agents.tuner.values import (
    Baseline,
    BaselineSession,
    LiveShape,
    Progress,
    Row,
    Timing,
    Trial,
    TuneBudget,
    TuneCancelled,
    TunerError,
    TuneResult,
)

__all__ = [
    "Baseline", "BaselineSession", "LiveShape", "Progress", "Row", "StockBaseline", "Timing", "Trial",
    "TuneBudget", "TuneCancelled", "TuneResult", "TunerError", "tune",
]  # fmt: skip
