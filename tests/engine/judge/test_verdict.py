"""Impossible verdicts cannot be built; possible ones are canonical JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from optimizer.engine.judge import GateOutcome, GateResult, ImpossibleVerdict, JudgePolicy, Outcome, Verdict
from optimizer.engine.judge.verdict import conclude, jsonable
from rackforge_runtime.canonical import digest_bytes

DIGEST = "sha256:" + "a" * 64
EVIDENCE = {
    "G0": {"checks": 3},
    "G1": {"files": 1},
    "G2": {"rules": 1},
    "G4": {"comparisons": 10},
    "G5": {"comparisons": 7},
}


def gate(name: str, outcome: GateOutcome = GateOutcome.PASS, reason: str = "", **evidence: Any) -> GateResult:
    return GateResult(name, 1, outcome, reason, evidence or EVIDENCE.get(name, {}))


def gates(**changed: GateResult) -> tuple[GateResult, ...]:
    return tuple(changed.get(n, gate(n)) for n in ("G0", "G1", "G2", "G3", "G4", "G5", "G6", "G7"))


def verdict(**changed: Any) -> Verdict:
    values: dict[str, Any] = {
        "outcome": Outcome.ACCEPT, "reason": "", "certified": True, "candidate_digest": DIGEST,
        "object_digest": DIGEST, "task": "t", "kind": "cpp", "gates": gates(), "seed": "00", "environment": {},
        "policy": {}, "started_at": "2026-01-01T00:00:00+00:00", "wall_s": 1.0, "shapes": ({"M": 1},),
    }  # fmt: skip
    return Verdict(**(values | changed))


def test_an_acceptance_is_canonical_json_with_a_digest() -> None:
    one = verdict(speedups={"M=1": 1.5})
    assert json.loads(one.canonical()) == one.document()
    assert one.digest == digest_bytes(one.canonical())
    assert one.sign(lambda data: {"signed": digest_bytes(data)}) == {"signed": one.digest}


@pytest.mark.parametrize("missing", ["G0", "G1", "G2", "G4", "G5"])
def test_no_acceptance_without_a_required_gate(missing: str) -> None:
    rest = tuple(g for g in gates() if g.name != missing)
    assert conclude(rest)[0] is Outcome.INCONCLUSIVE
    with pytest.raises(ImpossibleVerdict):
        verdict(gates=rest)


@pytest.mark.parametrize("outcome", list(GateOutcome))
def test_no_acceptance_over_a_gate_that_did_not_pass(outcome: GateOutcome) -> None:
    if outcome is GateOutcome.PASS:
        return
    with pytest.raises(ImpossibleVerdict):
        verdict(gates=gates(G4=gate("G4", outcome, "why")))


@pytest.mark.parametrize("name", ["G4", "G5"])
def test_zero_comparisons_are_no_pass(name: str) -> None:
    with pytest.raises(ImpossibleVerdict):
        verdict(gates=gates(**{name: gate(name, comparisons=0)}))
    with pytest.raises(ImpossibleVerdict):
        verdict(
            outcome=Outcome.INFRA_ERROR, reason="x", certified=False, gates=gates(**{name: gate(name, comparisons=0)})
        )


def test_no_speed_up_without_correctness() -> None:
    failed = gates(G5=gate("G5", GateOutcome.FAIL, "wrong"))
    assert verdict(outcome=Outcome.REJECT, reason="G5: wrong", gates=failed).speedups == {}
    with pytest.raises(ImpossibleVerdict, match="correctness"):
        verdict(outcome=Outcome.REJECT, reason="G5: wrong", gates=failed, speedups={"M=1": 2.0})


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_no_speed_up_that_is_no_number(ratio: float) -> None:
    with pytest.raises(ImpossibleVerdict):
        verdict(speedups={"M=1": ratio})


def test_no_acceptance_without_an_object() -> None:
    with pytest.raises(ImpossibleVerdict):
        verdict(object_digest="")
    with pytest.raises(ValueError, match="digest"):
        verdict(object_digest="md5:0")


def test_only_findings_are_certified() -> None:
    infra = gates(G4=gate("G4", GateOutcome.INFRA_ERROR, "sandbox"))
    assert not verdict(outcome=Outcome.INFRA_ERROR, reason="x", certified=False, gates=infra).certified
    with pytest.raises(ImpossibleVerdict):
        verdict(outcome=Outcome.INFRA_ERROR, reason="x", certified=True, gates=infra)


def test_every_other_outcome_has_a_reason() -> None:
    with pytest.raises(ImpossibleVerdict):
        verdict(outcome=Outcome.REJECT, gates=gates(G4=gate("G4", GateOutcome.FAIL, "wrong")))
    with pytest.raises(ImpossibleVerdict):
        gate("G4", GateOutcome.FAIL)


def test_a_proven_fault_outweighs_a_doubt() -> None:
    both = gates(G7=gate("G7", GateOutcome.QUARANTINE, "too fast"), G5=gate("G5", GateOutcome.FAIL, "wrong"))
    assert conclude(both) == (Outcome.REJECT, "G5: wrong")
    assert conclude(gates(G7=gate("G7", GateOutcome.QUARANTINE, "too fast")))[0] is Outcome.QUARANTINE


def test_exit_codes() -> None:
    assert [o.exit_code for o in Outcome] == [0, 1, 2, 3, 4]
    assert [o.value for o in Outcome] == ["accept", "reject", "quarantine", "inconclusive", "infra_error"]


def test_evidence_becomes_json() -> None:
    assert jsonable({"a": float("nan"), 2: (1, 2**60), "s": frozenset({"b", "a"}), "o": Outcome.ACCEPT}) == {
        "a": "nan", "2": [1, str(2**60)], "s": ["a", "b"], "o": "accept",
    }  # fmt: skip


@pytest.mark.parametrize(
    "weaker", [{"rounds": 9}, {"quarantine_speedup": 11.0}, {"threads": (1,)}, {"settle_s": 0.0}]
)
def test_a_weaker_policy_does_not_certify(weaker: dict[str, Any]) -> None:
    assert JudgePolicy().certifies
    assert not JudgePolicy(**weaker).certifies
