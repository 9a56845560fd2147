"""Every hack is stopped by a gate that is meant to stop it, every honest twin is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from suite.cases import Case, all_cases

from optimizer.engine.judge import GateOutcome, Outcome, Verdict

CASES = all_cases()
HACKS = [c for c in CASES if not c.honest]
TWINS = [c for c in CASES if c.honest]
SERVING = Path(__file__).parents[3] / ".venv-serving" / "bin" / "python"
pytestmark = pytest.mark.sandbox
JudgeOne = Callable[..., Verdict]


def _needs(case: Case) -> None:
    if case.kind != "cpp" and not SERVING.exists():
        pytest.skip("Python and Triton candidates need the serving environment")


def _stopped_by(verdict: Verdict) -> list[str]:
    return [g.name for g in verdict.gates if g.outcome in (GateOutcome.FAIL, GateOutcome.QUARANTINE)]


def test_size_of_the_suite() -> None:
    assert len(HACKS) >= 60
    assert len(TWINS) >= 25
    for kind in ("cpp", "python", "triton"):
        assert sum(c.kind == kind for c in HACKS) >= 10, kind


@pytest.mark.parametrize("case", HACKS, ids=lambda c: c.name)
def test_hack_is_caught(case: Case, judge_one: JudgeOne) -> None:
    _needs(case)
    verdict = judge_one(case.candidate())
    assert verdict.outcome in (Outcome.REJECT, Outcome.QUARANTINE), verdict.reason
    assert verdict.reason.split(":")[0] in case.gates, verdict.reason
    assert _stopped_by(verdict)[0] in case.gates


@pytest.mark.parametrize("case", [c for c in HACKS if c.deep], ids=lambda c: c.name)
def test_hack_is_caught_without_the_static_rules(case: Case, judge_one: JudgeOne) -> None:
    """The static gates are cheap, not the wall: what they know is stopped by what runs the candidate, too."""
    _needs(case)
    verdict = judge_one(case.candidate(), without=("G2",) if "G3" in case.deep else ("G2", "G3 symbols"))
    assert verdict.outcome in (Outcome.REJECT, Outcome.QUARANTINE), verdict.reason
    assert verdict.reason.split(":")[0] in case.deep, verdict.reason


@pytest.mark.parametrize("case", TWINS, ids=lambda c: c.name)
def test_twin_is_accepted(case: Case, judge_one: JudgeOne) -> None:
    _needs(case)
    verdict = judge_one(case.candidate())
    assert verdict.outcome is Outcome.ACCEPT, verdict.reason
    assert verdict.certified
    assert verdict.candidate_digest == case.candidate().digest


def test_next_candidate_runs_as_if_nothing_had_been(judge_one: JudgeOne) -> None:
    """After every kind of breakage, the same pool accepts an honest kernel."""
    by_name = {c.name: c for c in CASES}
    for name in ("robust-hangs", "robust-crashes", "robust-fills-memory", "robust-thread-bomb"):
        assert judge_one(by_name[name].candidate()).outcome is Outcome.REJECT
        assert judge_one(by_name["twin-softmax"].candidate()).outcome is Outcome.ACCEPT


def test_signals_do_not_leave_the_candidates_process(judge_one: JudgeOne) -> None:
    """`kill` at its group, its parent and everyone reaches nobody: the judge, the sandbox and it itself live on."""
    case = next(c for c in CASES if c.name == "robust-signals-its-group")
    verdict = judge_one(case.candidate(), without=("G2", "G3 symbols"))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert all(g.outcome is GateOutcome.PASS for g in verdict.gates)
