import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from optimizer.engine.abtest.resampling import bca_interval, expanded_level, holm, sign_flip_pvalue
from optimizer.engine.abtest.sequential import SequentialDesign, normal_boundaries, sequential_pvalues, spending

numbers = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=8)


def test_sign_flip_by_hand() -> None:
    assert sign_flip_pvalue([0.1, 0.2, 0.3]) == 1 / 8
    # sums of at least 1-2+3+4 = 6 out of signs of (1, 2, 3, 4): flipped to minus are {}, {1} or {2}
    assert sign_flip_pvalue([1, -2, 3, 4]) == 3 / 16
    assert sign_flip_pvalue([1.0] * 6) == 1 / 64
    assert sign_flip_pvalue([-1.0] * 6) == 1.0
    assert sign_flip_pvalue([0.0, 0.0]) == 1.0  # ties count against
    with pytest.raises(ValueError, match="at least one"):
        sign_flip_pvalue([])
    with pytest.raises(ValueError, match="finite"):
        sign_flip_pvalue([1.0, math.nan])


def test_sign_flip_monte_carlo_is_seeded_and_near_the_exact_value() -> None:
    x = np.random.default_rng(3).normal(0.2, 1.0, 14)
    sampled = sign_flip_pvalue(x, exact_limit=4, seed=1)
    assert sampled == sign_flip_pvalue(x, exact_limit=4, seed=1)
    assert sampled == pytest.approx(sign_flip_pvalue(x), abs=0.01)


@settings(max_examples=40, deadline=None)
@given(numbers)
def test_one_look_is_the_plain_test(x: list[float]) -> None:
    single = sequential_pvalues(x, looks=(len(x),), spent=(0.05,))
    assert float(single) == pytest.approx(sign_flip_pvalue(x), abs=1e-12)


def test_two_looks_by_hand() -> None:
    # look 1: sums 2, 0, 0, -2, one of four may cross: ++. At look 2 all of ++** are in, ++++ among them.
    assert float(sequential_pvalues([1, 1, 1, 1], looks=(2, 4), spent=(0.25, 0.3))) == 4 / 16
    # not crossed at look 1; sums of at least 2: 5 of 16, of which 3 had crossed: 4 + 5 - 3
    assert float(sequential_pvalues([-1, 1, 1, 1], looks=(2, 4), spent=(0.25, 0.3))) == 6 / 16
    # nothing to spend at look 1: the plain test
    assert float(sequential_pvalues([-1, 1, 1, 1], looks=(2, 4), spent=(0.2, 0.3))) == 5 / 16


def test_all_looks_together_spend_exactly_what_was_planned() -> None:
    sizes = np.random.default_rng(5).lognormal(size=8)
    looks, spent = (4, 8), (0.1, 0.2)
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=8)))
    x = signs * sizes
    first = sequential_pvalues(x[:, :4], looks=looks[:1], spent=spent[:1]) <= spent[0]
    second = sequential_pvalues(x, looks=looks, spent=spent) <= spent[1]
    assert first.sum() == 16  # floor(0.1 * 16) sign vectors of four, each with 16 continuations
    assert (first | second).sum() == 51  # floor(0.2 * 256)
    # looking twice at the full level instead is more than was declared
    greedy = (sequential_pvalues(x[:, :4], looks=(4,), spent=(0.2,)) <= 0.2) | (
        sequential_pvalues(x, looks=(8,), spent=(0.2,)) <= 0.2
    )
    assert greedy.sum() > 51


def test_random_signs_agree_with_all_signs() -> None:
    x = np.random.default_rng(6).normal(0.3, 1.0, (5, 12))
    exact = sequential_pvalues(x, looks=(6, 12), spent=(0.02, 0.05))
    drawn = sequential_pvalues(x, looks=(6, 12), spent=(0.02, 0.05), exact_blocks=2, draws=2**16)
    assert drawn == pytest.approx(exact, abs=0.006)
    assert (sequential_pvalues(-x, looks=(6, 12), spent=(0.02, 0.05)) <= 1.0).all()


def test_looks_must_fit_the_blocks() -> None:
    with pytest.raises(ValueError, match="disagree"):
        sequential_pvalues([1, 2, 3], looks=(2, 4), spent=(0.1, 0.2))
    with pytest.raises(ValueError, match="finite"):
        sequential_pvalues([1, math.inf], looks=(2,), spent=(0.1,))


@pytest.mark.parametrize(
    ("name", "bounds"),
    # Lan-DeMets boundaries for four equal looks, one-sided 0.025: Jennison & Turnbull, tables of ch. 7; Proschan, Lan
    # & Wittes, Statistical Monitoring of Clinical Trials, ch. 5
    [("pocock", (2.368, 2.368, 2.358, 2.350)), ("obrien-fleming", (4.333, 2.963, 2.359, 2.014))],
)
def test_boundaries_against_published_tables(name: str, bounds: tuple[float, ...]) -> None:
    times = (0.25, 0.5, 0.75, 1.0)
    spent = tuple(spending(name, 0.025, t) for t in times)  # type: ignore[arg-type]
    assert spent[-1] == pytest.approx(0.025)
    assert normal_boundaries(times, spent) == pytest.approx(bounds, abs=6e-4)


def test_default_design() -> None:
    d = SequentialDesign()
    assert d.spent == pytest.approx((0.020787, 0.031006, 0.039486, 0.05), abs=1e-6)
    assert d.spent[0] >= 1 / 64  # six blocks can accept at once
    assert d.first_reachable_look == 0
    assert SequentialDesign.from_dict(d.to_dict()) == d
    assert d.look_of(10) == 1
    with pytest.raises(ValueError, match="no peeking"):
        d.look_of(9)
    assert SequentialDesign(spending="obrien-fleming").first_reachable_look == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"looks": ()},
        {"looks": (6, 6)},
        {"looks": (10, 6)},
        {"looks": (1, 6)},
        {"looks": (4, 5, 6, 7, 8)},
        {"looks": (2, 4)},  # 2**-4 > 0.05: could never accept
        {"alpha": 0.0},
        {"alpha": 0.7},
        {"power": 1.0},
        {"spending": "haybittle"},
        {"min_gain_pct": 2.0},
    ],
)
def test_impossible_designs(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        SequentialDesign(**bad)  # type: ignore[arg-type]


def test_bca_against_scipy() -> None:
    for seed, n in ((1, 8), (2, 12), (3, 30)):
        x = np.random.default_rng(seed).exponential(size=n)
        ours = bca_interval(x, level=0.05, expand=False, resamples=99_999)
        theirs = stats.bootstrap((x,), np.mean, confidence_level=0.9, n_resamples=99_999, rng=1).confidence_interval
        width = theirs.high - theirs.low
        assert float(ours[0]) == pytest.approx(theirs.low, abs=0.02 * width)
        assert float(ours[1]) == pytest.approx(theirs.high, abs=0.02 * width)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.floats(0.001, 100))
def test_bca_turns_with_its_values(x: list[float], factor: float) -> None:
    low, high = bca_interval(x, level=0.05, resamples=999)
    assert low <= high
    mirrored_low, mirrored_high = bca_interval(-np.array(x), level=0.05, resamples=999)
    assert float(mirrored_low) == pytest.approx(-float(high), abs=1e-3)
    assert float(mirrored_high) == pytest.approx(-float(low), abs=1e-3)
    scaled = bca_interval(np.array(x) * factor, level=0.05, resamples=999)
    assert float(scaled[0]) == pytest.approx(float(low) * factor, rel=1e-6, abs=1e-6)


def test_bca_edges() -> None:
    low, high = bca_interval([0.3, 0.3, 0.3], level=0.05)
    assert (float(low), float(high)) == (0.3, 0.3)
    with pytest.raises(ValueError, match="two units"):
        bca_interval([1.0], level=0.05)
    assert expanded_level(0.025, 6) == pytest.approx(0.00243, abs=2e-5)  # Phi(-sqrt(6/5) * 2.5706)
    assert expanded_level(0.05, 10_000) == pytest.approx(0.05, abs=1e-3)


def test_small_sample_coverage() -> None:
    # Six blocks: the textbook interval misses far more often than it says, the expanded one hardly does.
    x = np.random.default_rng(11).normal(0.0, 1.0, (4000, 6))
    low, high = bca_interval(x, level=0.05, resamples=1999)
    covered = ((low <= 0) & (high >= 0)).mean()
    low, high = bca_interval(x, level=0.05, resamples=1999, expand=False)
    plain = ((low <= 0) & (high >= 0)).mean()
    assert covered > 0.87
    assert plain < 0.86


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([1.2])
