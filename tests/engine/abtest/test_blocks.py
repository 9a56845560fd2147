import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.engine.abtest.blocks import (
    Block,
    check_complete,
    from_percent,
    pair_means,
    percent,
    plan_blocks,
    plan_pairs,
)

speeds = st.floats(min_value=1e-3, max_value=1e6)
blocks = st.builds(
    Block,
    index=st.integers(0, 50),
    order=st.sampled_from(["ABBA", "BAAB"]),
    runs=st.tuples(speeds, speeds, speeds, speeds),
    pair=st.integers(0, 9),
    metrics=st.dictionaries(st.sampled_from(["ttft_p99_ms", "rss"]), st.tuples(speeds, speeds, speeds, speeds)),
)


def test_orders_are_pinned_forever() -> None:
    # a campaign stored with a seed must be replayed alike by later versions
    assert [b.order for b in plan_blocks(8, 7)] == ["BAAB", "BAAB", "ABBA", "ABBA", "BAAB", "ABBA", "ABBA", "ABBA"]
    assert ["".join(p) for p in plan_pairs(6, 7)] == ["AB", "AB", "AB", "BA", "BA", "AB"]


@given(seed=st.integers(0, 2**63), n=st.integers(0, 30), cut=st.integers(0, 30))
def test_order_of_a_block_does_not_depend_on_the_plan(seed: int, n: int, cut: int) -> None:
    cut = min(cut, n)
    assert plan_blocks(n, seed) == plan_blocks(cut, seed) + plan_blocks(n - cut, seed, start=cut)
    assert plan_pairs(n, seed) == plan_pairs(cut, seed) + plan_pairs(n - cut, seed, start=cut)


def test_coin_is_fair_and_independent_of_its_neighbour() -> None:
    orders = [b.order == "ABBA" for b in plan_blocks(4000, 0)]
    assert abs(sum(orders) - 2000) < 130  # four standard deviations
    agree = sum(a == b for a, b in itertools.pairwise(orders))
    assert abs(agree - 2000) < 130
    assert sum(p[0] == "B" for p in plan_pairs(4000, 0)) == pytest.approx(2000, abs=130)


def test_log_ratio_by_hand() -> None:
    abba = Block(0, "ABBA", (100.0, 110.0, 121.0, 100.0))
    assert abba.log_ratio == pytest.approx(math.log(1.1) * 1.5)
    assert abba.side("A") == (100.0, 100.0)
    assert abba.side("B") == (110.0, 121.0)
    assert Block(0, "BAAB", abba.runs).log_ratio == pytest.approx(-math.log(1.1) * 1.5)
    assert plan_blocks(1, 0)[0].sides in (("A", "B", "B", "A"), ("B", "A", "A", "B"))


@given(blocks)
def test_swapping_the_sides_negates(block: Block) -> None:
    assert block.swapped().log_ratio == -block.log_ratio
    assert block.swapped().swapped() == block
    assert block.swapped().side("A") == block.side("B")
    for name in block.metrics:
        assert block.swapped().metric_log_ratio(name) == -block.metric_log_ratio(name)


@given(blocks, st.floats(min_value=1e-3, max_value=1e3))
def test_the_unit_of_throughput_does_not_matter(block: Block, factor: float) -> None:
    a, b, c, d = (r * factor for r in block.runs)
    assert Block(0, block.order, (a, b, c, d)).log_ratio == pytest.approx(block.log_ratio, abs=1e-9)


@given(st.floats(-0.01, 0.01))
def test_a_linear_drift_of_the_logarithm_cancels(slope: float) -> None:
    runs = tuple(100 * math.exp(slope * t) for t in range(4))
    for order in ("ABBA", "BAAB"):
        assert Block(0, order, runs).log_ratio == pytest.approx(0, abs=1e-12)  # type: ignore[arg-type]


@given(blocks)
def test_json_round_trip(block: Block) -> None:
    assert Block.from_dict(json.loads(json.dumps(block.to_dict()))) == block


@pytest.mark.parametrize("runs", [(1, 2, 3), (1, 2, 3, 0), (1, 2, 3, -1), (1, 2, 3, math.nan), (1, 2, 3, math.inf)])
def test_a_failed_run_is_not_a_slow_one(runs: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="four finite positive"):
        Block(0, "ABBA", runs)  # type: ignore[arg-type]


def test_bad_blocks() -> None:
    with pytest.raises(ValueError, match="order"):
        Block(0, "AABB", (1, 1, 1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="digest"):
        Block(0, "ABBA", (1, 1, 1, 1), digests=("sha256:1",))
    with pytest.raises(ValueError, match="ttft"):
        Block(0, "ABBA", (1, 1, 1, 1), metrics={"ttft": (1, 1, 1, math.nan)})
    with pytest.raises(ValueError, match="cannot plan"):
        plan_blocks(-1, 0)


def test_no_block_is_dropped_or_repeated() -> None:
    b = [Block(i, "ABBA", (1, 1, 1, 1)) for i in range(4)]
    check_complete(b)
    for bad in (b[1:], [b[0], b[2]], [b[0], b[0]], [b[1], b[0]]):
        with pytest.raises(ValueError, match="numbered 0"):
            check_complete(bad)


def test_pairs_are_averaged_and_not_pooled() -> None:
    def block(i: int, gain: float, pair: int) -> Block:
        return Block(i, "ABBA", (1.0, math.exp(gain), math.exp(gain), 1.0), pair=pair)

    assert pair_means([block(0, 0.1, 0), block(1, 0.3, 0), block(2, -0.4, 1)]) == pytest.approx([0.2, -0.4])


def test_percent() -> None:
    assert percent(from_percent(21.8)) == pytest.approx(21.8)
    with pytest.raises(ValueError, match="logarithm"):
        from_percent(-100.0)
