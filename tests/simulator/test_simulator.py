import numpy as np
import pytest

from optimizer.engine.abtest import Block, ConfirmationDesign, SequentialDesign, assess_aa
from optimizer.engine.abtest.aa import aa_statistics
from simulator.campaigns import clopper_pearson, simulate_aa, simulate_campaigns
from simulator.noise import NOISE, WARM_UP_RAMP, NoiseModel
from simulator.predict import predict_cost, predict_mde
from simulator.rules import Gate, block_log_ratios

ALPHA = 0.05


@pytest.mark.parametrize("noise", list(NOISE))
def test_the_gate_holds_its_alpha(noise: str) -> None:
    result = simulate_campaigns("gate", noise, 0.0, 600, seed=3)
    assert result.accept_rate <= ALPHA
    assert sum(result.outcomes.values()) == 600


def test_without_luck_the_first_stage_holds_alpha_too() -> None:
    for noise in ("lognormal-1%", "ar1", "drift", "bimodal-host"):
        result = simulate_campaigns("gate", noise, 0.0, 1500, seed=4)
        assert clopper_pearson(round(result.discovery_rate * 1500), 1500)[0] <= ALPHA


def test_rules_of_others_do_not() -> None:
    # if these passed, the simulation would be too tame to show anything
    assert simulate_campaigns("stored-baseline-1%", "lognormal-1%", 0.0, 2000, seed=1).low > 2 * ALPHA
    assert simulate_campaigns("five-and-five", "ar1", 0.0, 2000, seed=1).low > 2 * ALPHA
    assert simulate_campaigns("ten-blocks", "server-luck", 0.0, 2000, seed=1).low > 4 * ALPHA
    # and it is the confirmation that makes the difference
    assert simulate_campaigns("gate", "server-luck", 0.0, 1000, seed=1).discovery_rate > 2 * ALPHA


def test_power_and_honest_intervals() -> None:
    assert simulate_campaigns("gate", "lognormal-1%", 5.0, 400, seed=1).accept_rate > 0.98
    two = simulate_campaigns("gate", "lognormal-1%", 2.0, 400, seed=1)
    assert two.accept_rate > 0.95
    assert two.published_gain_pct == pytest.approx(2.0, abs=0.1)
    assert two.coverage is not None
    assert two.coverage > 0.86  # nominal 0.90
    literal = simulate_campaigns("gate-literal-floor", "lognormal-1%", 1.0, 400, seed=1)
    assert literal.accept_rate < simulate_campaigns("gate", "lognormal-1%", 1.0, 400, seed=1).accept_rate / 2


def test_equal_servers_are_rarely_unfit() -> None:
    for noise in ("lognormal-2%", "heavy-tails", "ar1", "bimodal-host"):
        assert simulate_aa(noise, 1500, seed=2).low <= 0.05
    assert simulate_aa("server-luck", 500, seed=2).unfit_rate > 0.2


def test_deterministic_and_chunked() -> None:
    seen: list[tuple[int, int]] = []
    a = simulate_campaigns("ten-blocks", "ar1", 1.0, 4500, seed=9, progress=lambda d, n: seen.append((d, n)))
    assert a == simulate_campaigns("ten-blocks", "ar1", 1.0, 4500, seed=9)
    assert a != simulate_campaigns("ten-blocks", "ar1", 1.0, 4500, seed=10)
    assert seen == [(2000, 4500), (4000, 4500), (4500, 4500)]
    with pytest.raises(ValueError, match="at least one"):
        simulate_campaigns("gate", "ar1", 0.0, 0, seed=1)


def test_clopper_pearson_by_hand() -> None:
    assert clopper_pearson(0, 100) == pytest.approx((0.0, 1 - 0.025 ** (1 / 100)))
    assert clopper_pearson(5, 100) == pytest.approx((0.01643, 0.11283), abs=1e-4)


def test_the_simulator_uses_the_engines_ratio_and_aa() -> None:
    rng = np.random.default_rng(0)
    slots = rng.normal(0, 0.01, 24)
    orders = np.array([1, -1, 1, 1, -1, -1])
    blocks = [
        Block(i, "ABBA" if orders[i] > 0 else "BAAB", tuple(np.exp(slots[4 * i : 4 * i + 4])))  # type: ignore[arg-type]
        for i in range(6)
    ]
    ratios = block_log_ratios(slots, orders)
    assert ratios == pytest.approx([b.log_ratio for b in blocks])
    aa, arrays = assess_aa(blocks), aa_statistics(ratios)
    assert (aa.low, aa.high, aa.p_value) == pytest.approx(
        (float(arrays.low), float(arrays.high), float(arrays.p_value))
    )
    assert aa.fit == bool(arrays.fit)
    assert aa.offset == pytest.approx(float(arrays.offset))


def test_noise_models_are_what_they_say() -> None:
    rng = np.random.default_rng(0)
    white = NOISE["lognormal-2%"].slots(rng, 2000, 20)
    assert white.std() == pytest.approx(0.02, rel=0.02)
    ar = NoiseModel(name="x", ar=0.9, ar_sd=0.02).slots(rng, 4000, 30)
    assert ar.std() == pytest.approx(0.02, rel=0.05)
    assert np.corrcoef(ar[:, 10], ar[:, 11])[0, 1] == pytest.approx(0.9, abs=0.02)
    heavy = NOISE["heavy-tails"].slots(rng, 4000, 20)
    assert np.quantile(heavy, 0.75) == pytest.approx(0.006745, rel=0.05)
    assert np.abs(heavy).max() > 0.1
    ramp = NoiseModel(name="x", ramp=True).slots(rng, 1, 7)[0]
    assert np.exp(ramp[:5]) * WARM_UP_RAMP[2] == pytest.approx(WARM_UP_RAMP)
    assert ramp[5:] == pytest.approx([0.0, 0.0])
    slow = NoiseModel(name="x", slow=0.06).slots(rng, 500, 40)
    assert set(np.unique(slow)) == {-0.06, 0.0}
    assert slow.mean() == pytest.approx(-0.03, abs=0.003)
    luck = NOISE["bimodal-luck"].server_luck(rng, (4000,))
    assert (luck < -0.02).mean() == pytest.approx(0.5, abs=0.04)
    for bad in ({"ar": 1.0}, {"switch": 0.0}, {"white": -1.0}):
        with pytest.raises(ValueError):
            NoiseModel(name="x", **bad)


def test_predicted_gain_is_found_as_often_as_promised() -> None:
    found = predict_mde(sd_pct=1.0, power=0.8)
    assert found.overall_pct == max(found.discovery_pct, found.confirmation_pct)
    assert found.first_look_pct > found.discovery_pct
    result = simulate_campaigns(Gate(), "lognormal-1%", found.overall_pct, 600, seed=1)
    assert result.accept_rate == pytest.approx(0.8, abs=0.1)
    assert predict_mde(sd_pct=1.0, server_sd_pct=1.0).confirmation_pct > 2 * found.confirmation_pct
    with pytest.raises(ValueError, match="either"):
        predict_mde()
    aa = assess_aa([Block(i, "ABBA", (100.0, 100.0 + (-1) ** i, 100.0, 100.0)) for i in range(6)])
    assert 0 < predict_mde(aa).overall_pct < 2
    # 20 pairs all above 0 with 80 % takes z(0.8**(1/20)) = 2.2873 spreads of a pair mean
    big = predict_mde(sd_pct=1.0, confirmation=ConfirmationDesign(pairs=20, blocks_per_pair=1, interval_level=0.4))
    assert big.confirmation_pct == pytest.approx(100 * np.expm1(np.log(1.01) * 2.2873), rel=1e-3)


def test_predicted_cost_by_hand() -> None:
    cost = predict_cost(run_s=3.0, start_s=30.0, warm_up_s=10.0)
    assert cost.aa_s == 80 + 6 * 12
    assert cost.discovery_least_s == 40 + 6 * 12
    assert cost.discovery_most_s == 40 + 20 * 12
    assert cost.confirmation_s == 5 * 80 + 15 * 12
    assert cost.least_total_s == 152 + 112 + 580
    assert cost.server_starts == 13
    assert predict_cost(run_s=3.0, start_s=30.0, parallel_starts=True).aa_s == 30 + 72
    assert predict_cost(run_s=1.0, start_s=0.0, design=SequentialDesign(looks=(8,))).discovery_most_s == 32
    with pytest.raises(ValueError, match="negative"):
        predict_cost(run_s=-1.0, start_s=0.0)
