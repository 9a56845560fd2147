import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from optimizer.engine.abtest import (
    REQUIRED_GUARDS,
    AAResult,
    Block,
    ConfirmationDesign,
    Decision,
    EngagementProof,
    GuardResult,
    ImpossibleDecision,
    NotEngaged,
    Outcome,
    SequentialDesign,
    assess_aa,
    decide,
    decide_confirmation,
    decide_regimes,
    join_proofs,
    pairs_needed,
    plan_blocks,
    select_for_confirmation,
)
from optimizer.engine.abtest.confirmation import attempt_alpha, can_still_confirm, pair_interval
from optimizer.engine.abtest.engagement import WorkerCalls

DIGEST = "sha256:" + "a" * 64
PROOF = EngagementProof((WorkerCalls(1, DIGEST, 100, 0),))
GUARDS = tuple(
    GuardResult(name=n, status="passed", detail="fine", estimate=0.0, bound=0.0, margin=1.0) for n in REQUIRED_GUARDS
)
DESIGN = SequentialDesign()


def measure(n: int, gain: float, sd: float = 0.01, seed: int = 0, per_pair: int = 0) -> list[Block]:
    rng = np.random.default_rng(seed)
    out = []
    for p in plan_blocks(n, seed):
        a, b, c, d = (float(100 * np.exp(rng.normal(0, sd) + (gain if s == "B" else 0.0))) for s in p.sides)
        out.append(Block(p.index, p.order, (a, b, c, d), pair=p.index // per_pair if per_pair else 0))
    return out


AA: AAResult = assess_aa(measure(6, 0.0, seed=5))


def look(blocks: list[Block], **changes: Any) -> Decision:
    index = DESIGN.look_of(len(blocks))
    kwargs: dict[str, Any] = {"engagement": PROOF, "guards": GUARDS} | changes
    return decide(DESIGN, index, blocks, kwargs.pop("aa", AA), kwargs.pop("bound", 1.0), **kwargs)


def test_a_clear_gain_is_accepted_at_the_first_look() -> None:
    d = look(measure(6, 0.14))
    assert d.outcome is Outcome.ACCEPT
    assert d.p_value == 1 / 64
    assert d.alpha_spent == pytest.approx(0.020787, abs=1e-6)
    assert (d.gain_pct or 0) == pytest.approx(15.0, abs=1.5)
    assert not d.publishable  # that takes a confirmation
    assert Decision.from_dict(json.loads(json.dumps(d.to_dict()))) == d


def test_the_order_of_the_rules() -> None:
    blocks = measure(6, 0.14)
    unfit = assess_aa(measure(6, 0.2))
    assert look(blocks, aa=unfit).outcome is Outcome.INFRA_ERROR
    assert look(blocks, engagement=NotEngaged("never called")).outcome is Outcome.REJECT
    assert look(blocks, engagement=NotEngaged("no report", infra=True)).outcome is Outcome.INFRA_ERROR
    too_good = look(blocks, bound=0.05)
    assert too_good.outcome is Outcome.QUARANTINE
    assert "Amdahl" in too_good.reasons[0]
    assert look(blocks, bound=0.145).outcome is Outcome.ACCEPT  # above the bound by less than the noise
    failed = (*GUARDS[1:], GuardResult(name=GUARDS[0].name, status="failed", detail="twice as slow"))
    assert look(blocks, guards=failed).outcome is Outcome.REJECT
    # missing evidence is never a pass
    missing = look(blocks, guards=GUARDS[1:])
    assert missing.outcome is Outcome.CONTINUE
    assert "not measured" in missing.reasons[-1]
    assert look(measure(20, 0.14), guards=GUARDS[1:]).outcome is Outcome.INCONCLUSIVE


def test_no_gain() -> None:
    assert look(measure(20, -0.05)).outcome is Outcome.REJECT
    assert look(measure(6, -0.05)).outcome is Outcome.REJECT  # stopped early
    tiny = look(measure(20, 0.0, sd=0.002))
    assert tiny.outcome is Outcome.REJECT
    assert "worth having" in tiny.reasons[-1]
    unclear = look(measure(20, 0.015, sd=0.08, seed=1))
    assert unclear.outcome is Outcome.INCONCLUSIVE
    assert "detectable" in unclear.reasons[-1]


def test_a_gain_within_a_proven_offset_is_not_accepted() -> None:
    offset = assess_aa(measure(6, 0.008, sd=0.0005))
    assert offset.fit
    assert offset.offset > 0.006
    d = look(measure(20, 0.006, sd=0.0005), aa=offset)
    assert d.p_value is not None
    assert d.p_value < d.alpha_spent  # significant against zero, and still the offset
    assert d.outcome is not Outcome.ACCEPT
    assert look(measure(20, 0.006, sd=0.0005)).outcome is not Outcome.INFRA_ERROR


def test_a_gain_inside_the_noise_floor_is_not_accepted() -> None:
    noisy = assess_aa(measure(6, 0.0, sd=0.2, seed=2))
    d = look(measure(20, 0.03, sd=0.005), aa=noisy)
    assert d.outcome is Outcome.INCONCLUSIVE
    assert "noise floor" in d.reasons[-1]


def test_no_peeking() -> None:
    with pytest.raises(ValueError, match="no peeking"):
        decide(DESIGN, 0, measure(7, 0.1), AA, 1.0, engagement=PROOF, guards=GUARDS)
    with pytest.raises(ValueError, match="look 1 is planned at 10"):
        decide(DESIGN, 1, measure(6, 0.1), AA, 1.0, engagement=PROOF, guards=GUARDS)
    with pytest.raises(ValueError, match="looks 0"):
        decide(DESIGN, 4, measure(6, 0.1), AA, 1.0, engagement=PROOF, guards=GUARDS)
    with pytest.raises(ValueError, match="one pair"):
        decide(DESIGN, 0, measure(6, 0.1, per_pair=3), AA, 1.0, engagement=PROOF, guards=GUARDS)
    with pytest.raises(ValueError, match="Amdahl bound"):
        decide(DESIGN, 0, measure(6, 0.1), AA, math.nan, engagement=PROOF, guards=GUARDS)


@pytest.mark.parametrize(
    "edit",
    [
        {"gain_pct": None, "ci_low_pct": None, "ci_high_pct": None},
        {"ci_low_pct": None},
        {"ci_low_pct": math.nan},
        {"ci_low_pct": -1.0},
        {"ci_low_pct": 20.0},  # above ci_high_pct
        {"confidence": None},
        {"p_value": None},
        {"p_value": 0.03},  # above what was spent
        {"p_value": 0.0},
        {"alpha_spent": 0.5},
        {"n_blocks": 0, "n_units": 0},
        {"n_units": 7},
        {"engagement": None},
        {"guards": ()},
        {"guards": (GuardResult(name="errors", status="unproven", detail="x"),)},
        {"guards": (*GUARDS, GuardResult(name="x", status="failed", detail="x"))},
        {"amdahl_bound_pct": None},
        {"amdahl_bound_pct": 5.0},
        {"floor_pct": 14.9},
        {"noise_floor_pct": 90.0},
        {"reasons": ()},
        {"reasons": ("",)},
        {"stage": "publication"},
        {"outcome": Outcome.QUARANTINE, "gain_pct": None, "ci_low_pct": None, "ci_high_pct": None},
        {
            "outcome": Outcome.REJECT,
            "n_blocks": 0,
            "n_units": 0,
            "gain_pct": None,
            "ci_low_pct": None,
            "ci_high_pct": None,
        },
    ],
)
def test_impossible_decisions(edit: dict[str, Any]) -> None:
    good = look(measure(6, 0.14))
    with pytest.raises(ImpossibleDecision):
        dataclasses.replace(good, **edit)


def test_a_stored_decision_is_checked_when_it_is_read() -> None:
    data = look(measure(6, 0.0)).to_dict()
    with pytest.raises(ImpossibleDecision):
        Decision.from_dict({**data, "outcome": "accept"})


# -- confirmation


def test_pairs_and_attempts() -> None:
    assert [attempt_alpha(0.05, i) for i in (1, 2, 3)] == [1 / 32, 1 / 64, 1 / 512]
    assert sum(attempt_alpha(0.05, i) for i in range(1, 12)) <= 0.05
    assert [pairs_needed(attempt=i) for i in (1, 2, 3)] == [5, 6, 9]
    assert [pairs_needed(attempt=i, candidates=1) for i in (1, 2, 3)] == [4, 5, 8]
    assert pairs_needed(alpha=0.025) == 6
    with pytest.raises(ValueError, match="needs 5"):
        ConfirmationDesign(pairs=4)
    assert ConfirmationDesign(pairs=4, candidates=1).credit == 0.5
    design = ConfirmationDesign(pairs=6, attempt=2)
    assert ConfirmationDesign.from_dict(design.to_dict()) == design


def confirm(blocks: list[Block], design: ConfirmationDesign | None = None, **changes: Any) -> Decision:
    kwargs: dict[str, Any] = {"engagement": PROOF, "guards": GUARDS} | changes
    return decide_confirmation(design or ConfirmationDesign(), blocks, kwargs.pop("bound", 1.0), **kwargs)


def test_confirmation() -> None:
    d = confirm(measure(15, 0.14, per_pair=3))
    assert d.outcome is Outcome.ACCEPT
    assert d.publishable
    assert d.p_value == 1 / 32
    assert (d.n_blocks, d.n_units) == (15, 5)
    assert d.confidence == pytest.approx(0.9)
    assert Decision.from_dict(json.loads(json.dumps(d.to_dict()))) == d
    four = ConfirmationDesign(pairs=4, candidates=1)
    assert confirm(measure(12, 0.14, per_pair=3), four).p_value == 1 / 32  # 1/16, and the discovery's pair


def test_an_unfinished_confirmation_goes_on() -> None:
    blocks = measure(15, 0.14, per_pair=3)
    for n in range(15):
        assert confirm(blocks[:n]).outcome is Outcome.CONTINUE
    assert confirm([], engagement=NotEngaged("x")).outcome is Outcome.INFRA_ERROR


def test_one_pair_without_gain_ends_it() -> None:
    blocks = measure(15, 0.14, per_pair=3)
    lucky = [b if b.pair != 1 else b.swapped() for b in blocks]
    assert confirm(lucky[:3]).outcome is Outcome.CONTINUE
    d = confirm(lucky[:6])
    assert d.outcome is Outcome.REJECT
    assert "not confirmed" in d.reasons[-1]
    assert can_still_confirm(ConfirmationDesign(pairs=6), [0.1, -0.1])
    assert not can_still_confirm(ConfirmationDesign(pairs=5), [0.1, 0.0])


def test_server_luck_is_not_confirmed() -> None:
    # 40 blocks of one lucky pair prove nothing: pairs are the unit
    blocks = [dataclasses.replace(b, pair=0) for b in measure(15, 0.05)]
    with pytest.raises(ValueError, match="pair after pair"):
        confirm(blocks)
    for bad in (measure(18, 0.1, per_pair=3), measure(15, 0.1, per_pair=5)):
        with pytest.raises(ValueError, match="pair after pair"):
            confirm(bad)


def test_confirmation_guards_and_plausibility() -> None:
    blocks = measure(15, 0.14, per_pair=3)
    assert confirm(blocks, engagement=NotEngaged("x")).outcome is Outcome.REJECT
    assert confirm(blocks, bound=0.05).outcome is Outcome.QUARANTINE
    assert confirm(blocks, guards=GUARDS[1:]).outcome is Outcome.INCONCLUSIVE
    bad = GuardResult(name="errors", status="failed", detail="x")
    assert confirm(blocks, guards=(*GUARDS, bad)).outcome is Outcome.REJECT
    wide = ConfirmationDesign(min_gain_pct=30.0)
    assert confirm(blocks, wide).outcome is Outcome.REJECT


def test_pair_interval_is_at_least_students() -> None:
    x = np.array([0.01, 0.02, 0.03, 0.04, 0.05])
    low, high = pair_interval(x, level=0.05)
    half = 2.13185 * x.std(ddof=1) / math.sqrt(5)
    assert float(low) <= 0.03 - half + 1e-6
    assert float(high) >= 0.03 + half - 1e-6


# -- campaigns


def test_holm_over_candidates_counts_the_losers_too() -> None:
    winner, loser = look(measure(6, 0.14)), look(measure(20, -0.05))
    assert select_for_confirmation({"a": winner}, 0.05).ranked == ("a",)
    two = select_for_confirmation({"a": winner, "b": loser}, 0.05)
    assert two.ranked == ("a",)
    assert two.adjusted["a"] == 2 / 64
    four = select_for_confirmation({"a": winner, **{f"b{i}": loser for i in range(3)}}, 0.05)
    assert four.ranked == ()  # 4/64 > 0.05
    assert "Holm" in four.dropped["a"]
    better = look(measure(6, 0.2))
    assert select_for_confirmation({"a": winner, "b": better}, 0.05).ranked == ("b", "a")
    running = look(measure(6, 0.14), guards=())
    with pytest.raises(ValueError, match="have ended"):
        select_for_confirmation({"a": running}, 0.05)


def test_regimes_stand_for_themselves() -> None:
    design = ConfirmationDesign(pairs=6, alpha=0.025)
    good = confirm(measure(18, 0.14, per_pair=3), design)
    bad = confirm(measure(18, -0.1, per_pair=3), design)
    verdict = decide_regimes({"concurrency=1": good, "concurrency=8": bad}, 0.05)
    assert verdict.envelope == ("concurrency=1",)
    assert "not confirmed" in verdict.refused["concurrency=8"]
    assert verdict.outcome is Outcome.ACCEPT
    assert decide_regimes({"x": bad}, 0.05).outcome is Outcome.REJECT
    weak = confirm(measure(15, 0.14, per_pair=3))
    assert "Holm" in decide_regimes({"a": weak, "b": bad}, 0.05).refused["a"]  # 2/32
    with pytest.raises(ValueError, match="only a confirmation"):
        decide_regimes({"a": look(measure(6, 0.14))}, 0.05)


def test_proofs_of_all_servers_are_joined() -> None:
    assert join_proofs([PROOF, PROOF]).calls == 200
    with pytest.raises(ValueError, match="at least one"):
        join_proofs([])
