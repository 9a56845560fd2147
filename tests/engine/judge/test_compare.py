"""The comparison: budgets element by element and as a whole, classes of non-finite values, every dtype and shape."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from optimizer.engine.judge.compare import compare, dtype_of, ulp
from optimizer.engine.tasks.base import Budget

FLOATS = ("bfloat16", "float16", "float32", "float64")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
BUDGET = Budget(k=2.0, floor_ulps=1.0)


def values(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float64, shape, elements=st.floats(-1e4, 1e4))


@given(st.data(), st.sampled_from(FLOATS), SHAPES)
@settings(max_examples=150, deadline=None)
def test_the_working_result_always_passes(data: st.DataObject, dtype: str, shape: tuple[int, ...]) -> None:
    truth = data.draw(values(shape))
    working = np.asarray(truth.astype(dtype_of(dtype)))
    found = compare(working, truth, working, budget=BUDGET, dtype=dtype)
    assert found.ok, found.why
    assert found.elements == truth.size


@given(st.data(), st.sampled_from(FLOATS), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_one_wrong_element_is_found_where_it_is(data: st.DataObject, dtype: str, size: int) -> None:
    truth = data.draw(hnp.arrays(np.float64, (size,), elements=st.floats(1.0, 2.0)))
    working = truth.astype(dtype_of(dtype))
    where = data.draw(st.integers(0, size - 1))
    candidate = working.copy()
    step = 4 * float(ulp(truth[where : where + 1], dtype_of(dtype))[0])
    candidate[where] = np.asarray(truth[where] + step).astype(dtype_of(dtype))
    found = compare(candidate, truth, working, budget=BUDGET, dtype=dtype)
    assert not found.ok
    assert found.mismatched == 1
    assert found.first == (where,)


@given(st.sampled_from(FLOATS), st.sampled_from([math.nan, math.inf, -math.inf, 1.0]),
       st.sampled_from([math.nan, math.inf, -math.inf, 1.0]))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_non_finite_values_match_by_class(dtype: str, expected: float, got: float) -> None:
    kind = dtype_of(dtype)
    truth = np.array([0.5, expected])
    found = compare(np.array([0.5, got]).astype(kind), truth, truth.astype(kind), budget=BUDGET, dtype=dtype)
    assert found.ok == (expected == got or (math.isnan(expected) and math.isnan(got)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_zero_dimensional_and_empty(dtype: str) -> None:
    kind = dtype_of(dtype)
    one = np.asarray(1.5).astype(kind)
    assert compare(one, np.asarray(1.5), one, budget=BUDGET, dtype=dtype).elements == 1
    wrong = compare(np.asarray(2.5).astype(kind), np.asarray(1.5), one, budget=BUDGET, dtype=dtype)
    assert (wrong.ok, wrong.first) == (False, ())
    empty = compare(np.empty((0, 3), kind), np.empty((0, 3)), np.empty((0, 3), kind), budget=BUDGET, dtype=dtype)
    assert (empty.ok, empty.elements) == (True, 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_denormals_count_in_their_own_unit(dtype: str) -> None:
    kind = dtype_of(dtype)
    smallest = float(ml_dtypes.finfo(kind).smallest_subnormal)
    assert ulp(np.array([0.0, smallest]), kind).tolist() == [smallest, smallest]
    truth = np.array([8 * smallest, 0.0])
    working = truth.astype(kind)
    near = np.array([9 * smallest, 0.0]).astype(kind)
    flushed = np.array([0.0, 0.0]).astype(kind)
    assert compare(near, truth, working, budget=BUDGET, dtype=dtype).ok
    assert not compare(flushed, truth, working, budget=BUDGET, dtype=dtype).ok


def test_ulp_is_the_spacing_of_the_dtype() -> None:
    assert ulp(np.array([1.0, 1.5, 2.0, -3.0]), dtype_of("bfloat16")).tolist() == [2**-7, 2**-7, 2**-6, 2**-6]
    assert ulp(np.array([1.0]), dtype_of("float32")).tolist() == [2**-23]
    assert float(ulp(np.array([7.25]), np.dtype(np.float64))[0]) == np.spacing(7.25)
    assert ulp(np.array([7.0]), np.dtype(np.int32)).tolist() == [1.0]


def test_any_layout_compares_the_same() -> None:
    rng = np.random.default_rng(3)
    truth = rng.standard_normal((6, 8))
    working = truth.astype(np.float32)
    padded = np.zeros((6, 11), np.float32)
    padded[:, :8] = working
    for same in (np.asfortranarray(working), padded[:, :8], working[::-1][::-1]):
        assert compare(same, truth, working, budget=BUDGET, dtype="float32").ok


def test_a_whole_that_is_less_precise_fails_though_no_element_does() -> None:
    rng = np.random.default_rng(5)
    truth = rng.uniform(1, 2, 4096)
    working = truth.astype(ml_dtypes.bfloat16)
    toward_zero = (np.floor(truth * 128) / 128).astype(ml_dtypes.bfloat16)
    found = compare(toward_zero, truth, working, budget=BUDGET, dtype="bfloat16")
    assert (found.ok, found.mismatched) == (False, 0)
    assert found.rms_share > 1.0
    assert compare(working, truth, working, budget=BUDGET, dtype="bfloat16").ok


def test_overflow_of_the_output_dtype_is_an_infinity() -> None:
    truth = np.array([1e39, -1e39, 1.0])
    with np.errstate(over="ignore"):
        working = truth.astype(np.float32)
    clipped = np.array([3.4028235e38, -3.4028235e38, 1.0], np.float32)
    assert compare(working, truth, working, budget=BUDGET, dtype="float32").ok
    assert not compare(clipped, truth, working, budget=BUDGET, dtype="float32").ok


def test_an_overflow_on_the_way_excuses_only_its_own_kind() -> None:
    truth = np.array([1.0, 1.0])
    working = np.array([np.inf, 1.0], np.float32)
    for got, fine in ((np.inf, True), (1.0, True), (-np.inf, False), (np.nan, False), (7.0, False)):
        candidate = np.array([got, 1.0], np.float32)
        assert compare(candidate, truth, working, budget=BUDGET, dtype="float32").ok is fine, got


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_integers_are_equal_or_wrong(dtype: str) -> None:
    kind = np.dtype(dtype)
    truth = np.array([0.0, 1.0, 1.0])
    working = truth.astype(kind)
    assert compare(working, truth, working, budget=BUDGET, dtype=dtype).ok
    found = compare(np.array([0, 1, 0]).astype(kind), truth, working, budget=BUDGET, dtype=dtype)
    assert (found.ok, found.mismatched, found.first) == (False, 1, (2,))


def test_what_cannot_be_compared_is_an_error() -> None:
    a = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="shapes"):
        compare(a[:2], np.zeros(3), a, budget=BUDGET, dtype="float32")
    with pytest.raises(ValueError, match="dtype"):
        compare(a.astype(np.float64), np.zeros(3), a, budget=BUDGET, dtype="float32")
