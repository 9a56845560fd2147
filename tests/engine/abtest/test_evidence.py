"""A/A, guards, engagement, Amdahl, warm-up."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.engine.abtest.aa import AAResult, assess_aa, detectable_effect, spread_upper_limit
from optimizer.engine.abtest.amdahl import amdahl_gain, implausible
from optimizer.engine.abtest.blocks import Block, percent
from optimizer.engine.abtest.engagement import EngagementProof, NotEngaged, WorkerCalls, check_engagement, check_stock
from optimizer.engine.abtest.guards import GuardResult, error_guard, fidelity_guard, latency_guard, memory_guard
from optimizer.engine.abtest.sequential import SequentialDesign
from optimizer.engine.abtest.warmup import warm_up_length


def make(ratios: list[float], pairs: list[int] | None = None, name: str = "") -> list[Block]:
    out = []
    for i, r in enumerate(ratios):
        runs = (100.0, 100.0 * math.exp(r), 100.0 * math.exp(r), 100.0)
        out.append(Block(i, "ABBA", runs, pair=pairs[i] if pairs else 0, metrics={name: runs} if name else {}))
    return out


QUIET = [0.01, -0.01, 0.005, -0.005, 0.012, -0.012]


def test_aa_by_hand() -> None:
    aa = assess_aa(make(QUIET))
    sd = math.sqrt(2 * (1e-4 + 2.5e-5 + 1.44e-4) / 5)
    assert aa.sd == pytest.approx(sd)
    assert aa.mean == pytest.approx(0, abs=1e-12)
    assert aa.fit
    assert aa.offset == 0.0
    assert aa.low < 0 < aa.high
    # 2.015 = t(0.95, 5), not 1.645
    assert aa.noise_floor(20) == pytest.approx(2.01505 * sd / math.sqrt(20), rel=1e-5)
    assert aa.noise_floor() == aa.noise_floor(20)
    level = SequentialDesign().interval_levels[-1]
    limit = sd * math.sqrt(5 / 2.34253)  # chi2(0.2, 5)
    assert spread_upper_limit(sd, 6) == pytest.approx(limit, rel=1e-5)
    assert aa.mde == pytest.approx(detectable_effect(limit, 20, level=level, power=0.8), rel=1e-5)
    assert AAResult.from_dict(json.loads(json.dumps(aa.to_dict()))) == aa


def test_detectable_effect_by_hand() -> None:
    # (t(0.95, 9) + t(0.8, 9)) / sqrt(10) = (1.8331 + 0.8834) / 3.1623
    assert detectable_effect(1.0, 10, level=0.05, power=0.8) == pytest.approx(0.85904, abs=1e-4)


def test_aa_tells_a_large_offset_from_a_tolerated_one() -> None:
    large = assess_aa(make([x + 0.05 for x in QUIET]))
    assert not large.fit
    assert "unfit" in large.reason
    steady = [x / 10 + 0.005 for x in QUIET]
    small = assess_aa(make(steady))
    assert small.fit
    assert 0 < small.offset < 0.005  # held against the candidate
    assert not assess_aa(make(steady), tolerated_offset_pct=0.0).fit
    negative = assess_aa(make([-x for x in steady]))
    assert negative.offset == pytest.approx(small.offset, rel=0.02)


def test_aa_needs_enough_blocks() -> None:
    with pytest.raises(ValueError, match="at least 6 blocks"):
        assess_aa(make(QUIET[:5]))
    with pytest.raises(ValueError, match="numbered"):
        assess_aa(make(QUIET)[1:] + make(QUIET)[:1])


def test_aa_over_pairs_takes_the_spread_within_them() -> None:
    pairs = [0, 0, 0, 1, 1, 1]
    aa = assess_aa(make([0.1, 0.101, 0.099, -0.1, -0.101, -0.099], pairs))
    assert aa.n_pairs == 2
    assert aa.sd == pytest.approx(0.001)  # and not 0.1
    assert aa.fit
    assert "too few" in aa.reason


def test_amdahl() -> None:
    assert amdahl_gain(0.179) == pytest.approx(0.218, abs=1e-3)
    assert amdahl_gain(0.275) == pytest.approx(0.38, abs=1e-3)
    assert amdahl_gain(0.5, 2.0) == pytest.approx(1 / 3)
    assert amdahl_gain(0.0, 10.0) == 0.0
    assert amdahl_gain(0.5, 0.5) == pytest.approx(-1 / 3)
    assert implausible(22.0, 0.218)
    assert not implausible(21.0, 0.218)
    for bad in ((1.0, 2.0), (-0.1, 2.0), (0.5, 0.0), (math.nan, 2.0)):
        with pytest.raises(ValueError):
            amdahl_gain(*bad)


D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def report(*workers: tuple[int, dict[str, tuple[int, int]]]) -> dict[str, object]:
    return {
        "workers": [
            {
                "pid": pid,
                "kernels": [
                    {"digest": d, "op": "linear", "calls": c, "fallbacks": f} for d, (c, f) in kernels.items()
                ],
            }
            for pid, kernels in workers
        ]
    }


def test_engagement_counts_what_happened_in_between() -> None:
    proof = check_engagement(report((1, {D1: (10, 1)})), report((1, {D1: (110, 26)})), [D1])
    assert isinstance(proof, EngagementProof)
    assert proof.workers == (WorkerCalls(1, D1, 100, 25),)
    assert proof.fallback_share == pytest.approx(0.2)
    assert EngagementProof.from_dict(proof.to_dict()) == proof


def test_engagement_sums_one_digest_over_operators() -> None:
    kernel = {"digest": D1, "op": "a", "calls": 2, "fallbacks": 0}
    after = {"workers": [{"pid": 1, "kernels": [kernel, {**kernel, "op": "b", "calls": 3}]}]}
    proof = check_engagement(report((1, {})), after, [D1])
    assert isinstance(proof, EngagementProof)
    assert proof.calls == 5


@pytest.mark.parametrize(
    ("before", "after", "expected", "reason"),
    [
        (report((1, {D1: (10, 0)})), report((1, {D1: (10, 0)})), [D1], "never called"),
        (report((1, {D1: (10, 0)})), report((1, {D1: (10, 9)})), [D1], "all its 9 calls fell back"),
        (report((1, {D1: (10, 0)})), report((1, {D1: (9, 0)})), [D1], "backwards"),
        (report((1, {})), report((2, {D1: (9, 0)})), [D1], "worker processes changed"),
        (report((1, {}), (2, {})), report((1, {D1: (9, 0)}), (2, {})), [D1], "worker 2 never called"),
        (report((1, {})), report((1, {D1: (9, 0), D2: (1, 0)})), [D1], "also ran"),
        (report((1, {})), report((1, {D1: (9, 0)})), [], "no kernel digest"),
        (report((1, {})), report((1, {D1: (9, 91)})), [D1], "91 of 100 calls"),
        (report(), report(), [D1], "names no worker"),
        ({}, report((1, {})), [D1], "cannot be read"),
        ({"workers": "none"}, report((1, {})), [D1], "cannot be read"),
        (report((1, {})), report((1, {D1: (-1, 0)})), [D1], "negative"),
        (report((1, {}), (1, {})), report((1, {D1: (1, 0)})), [D1], "twice"),
    ],
)
def test_no_engagement(before: dict, after: dict, expected: list[str], reason: str) -> None:  # type: ignore[type-arg]
    found = check_engagement(before, after, expected, max_fallback_share=0.9)
    assert isinstance(found, NotEngaged)
    assert reason in found.reason
    assert found.infra == any(w in reason for w in ("names no", "cannot be read", "negative", "twice"))


def test_a_proof_needs_calls() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        EngagementProof(())
    with pytest.raises(ValueError, match="proves nothing"):
        WorkerCalls(1, D1, 0, 5)


def test_the_baseline_is_stock() -> None:
    assert check_stock({}, {}) is None
    assert check_stock(report((1, {D1: (3, 0)})), report((1, {D1: (3, 7)}))) is None
    assert "not stock" in (check_stock(report((1, {})), report((1, {D1: (3, 0)}))) or "")
    assert "cannot be read" in (check_stock({}, {"workers": [{"kernels": []}]}) or "")


def test_latency_guard_three_ways() -> None:
    name = "tpot_p99_ms"
    better = latency_guard(make([x - 0.1 for x in QUIET], name=name), name)
    assert better.status == "passed"
    assert better.estimate == pytest.approx(percent(-0.1))
    worse = latency_guard(make([x + 0.2 for x in QUIET], name=name), name)
    assert worse.status == "failed"
    unclear = latency_guard(make([0.1, -0.1, 0.15, -0.15, 0.2, -0.1], name=name), name)
    assert unclear.status == "unproven"
    assert latency_guard(make(QUIET), name).status == "unproven"  # not measured
    assert latency_guard(make(QUIET[:1], name=name), name).status == "unproven"
    with pytest.raises(ValueError, match="no margin"):
        latency_guard(make(QUIET, name="x"), "x")


def test_noise_of_the_aa_widens_the_margin_and_says_so() -> None:
    name = "ttft_p99_ms"
    noisy = make([0.1, -0.1, 0.15, -0.15, 0.2, -0.2], name=name)
    assert latency_guard(noisy, name).status == "unproven"
    with_aa = latency_guard(noisy, name, aa=noisy)
    assert with_aa.status == "passed"
    assert with_aa.margin is not None
    assert with_aa.margin > 10.0
    assert "A/A" in with_aa.detail
    quiet = latency_guard(make(QUIET, name=name), name, aa=make(QUIET, name=name))
    assert quiet.margin == pytest.approx(10.0)


def test_errors_have_no_margin() -> None:
    assert error_guard(failed_a=0, total_a=96, failed_b=0, total_b=96).status == "passed"
    assert error_guard(failed_a=0, total_a=96, failed_b=1, total_b=96).status == "failed"
    assert error_guard(failed_a=2, total_a=96, failed_b=2, total_b=96).status == "passed"
    assert error_guard(failed_a=0, total_a=96, failed_b=0, total_b=0).status == "unproven"
    assert "below 3.07 %" in error_guard(failed_a=0, total_a=96, failed_b=0, total_b=96).detail  # 1 - 0.05**(1/96)
    with pytest.raises(ValueError, match="not counts"):
        error_guard(failed_a=0, total_a=1, failed_b=2, total_b=1)


def test_memory_and_fidelity() -> None:
    assert memory_guard([100.0, 101.0], [104.0]).status == "passed"
    assert memory_guard([100.0, 110.0], [106.0]).status == "failed"
    assert memory_guard([], [1.0]).status == "unproven"
    assert fidelity_guard([0.01, 0.012, 0.011]).status == "passed"
    assert fidelity_guard([0.3, 0.31, 0.32]).status == "failed"
    assert fidelity_guard([0.3, 0.31, 0.32], [0.3, 0.3]).status == "passed"  # no further than two equal servers
    assert fidelity_guard([0.01, 0.2, 0.01]).status == "unproven"
    assert fidelity_guard([0.01]).status == "unproven"
    assert fidelity_guard([0.0, 0.0], flat=True).status == "unproven"
    assert fidelity_guard([0.01, math.nan]).status == "failed"


def test_a_guard_cannot_pass_without_a_measurement() -> None:
    with pytest.raises(ValueError, match="without a measurement"):
        GuardResult(name="x", status="passed", detail="y")
    with pytest.raises(ValueError, match="above the margin"):
        GuardResult(name="x", status="passed", detail="y", estimate=0.0, bound=2.0, margin=1.0)
    good = error_guard(failed_a=0, total_a=9, failed_b=0, total_b=9)
    assert GuardResult.from_dict(json.loads(json.dumps(good.to_dict()))) == good


def test_warm_up_of_a_real_ramp() -> None:
    steady = [138.0, 137.0, 139.0, 138.0, 138.5, 137.5, 138.2]
    assert warm_up_length([63.9, 133.9, 139.0, 137.3, 117.1, *steady]) == 5
    assert warm_up_length([63.9, *steady, *steady]) == 1
    with pytest.raises(ValueError, match="four positive"):
        warm_up_length([1.0, 2.0, 3.0])


@given(st.integers(0, 1000), st.floats(0.01, 1000))
def test_warm_up_does_not_depend_on_the_unit(seed: int, factor: float) -> None:
    x = np.exp(np.random.default_rng(seed).normal(0, 0.1, 12))
    assert warm_up_length(list(x * factor)) == warm_up_length(list(x)) <= 6
