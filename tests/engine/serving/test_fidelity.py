from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from optimizer.engine.serving import Fidelity, Probe, Readings, ServingError, compare_readings
from optimizer.engine.serving.fidelity import Distance, Scored, _decoded, _forced

PROBE = Probe(vocab=100, prompts=2, prompt_len=3, steps=3, concurrency=2)


def scored(tokens: list[int], logprobs: list[float], best: list[int] | None = None) -> Scored:
    return Scored(tuple(tokens), tuple(logprobs), tuple(best or tokens))


def readings(forced: list[Scored], decoded: list[Scored]) -> Readings:
    return Readings(PROBE, tuple(forced), tuple(decoded))


def test_the_same_readings_are_at_no_distance() -> None:
    a = readings([scored([1, 2], [-1.0, -3.0])], [scored([5, 6, 7], [-0.5, -0.5, -0.5])])
    assert compare_readings(a, a) == Fidelity(
        forced=Distance(2, 0.0, 0.0),
        decoded=Distance(3, 0.0, 0.0),
        top1_rate=1.0,
        greedy_rate=1.0,
        spread=1.0,
    )
    assert not compare_readings(a, a).flat


def test_distances_and_rates() -> None:
    a = readings([scored([1, 2], [-1.0, -3.0], [1, 9])], [scored([5, 6, 7, 8], [-1.0, -1.0, -1.0, -1.0])])
    b = readings([scored([1, 2], [-1.5, -3.1], [1, 2])], [scored([5, 6, 9, 8], [-1.0, -1.2, -7.0, -9.0])])
    found = compare_readings(a, b)
    assert found.forced.tokens == 2
    assert found.forced.mean_abs == pytest.approx(0.3)
    assert found.forced.max_abs == pytest.approx(0.5)
    assert found.top1_rate == 0.5
    # After the first difference the contexts differ: nothing there is compared or counts as equal.
    assert found.decoded.tokens == 2
    assert found.decoded.max_abs == pytest.approx(0.2)
    assert found.greedy_rate == 0.5


def test_garbage_is_not_hidden() -> None:
    a = readings([scored([1, 2], [-1.0, -3.0])], [])
    b = readings([scored([1, 2], [math.nan, -3.0])], [])
    found = compare_readings(a, b)
    assert math.isnan(found.forced.max_abs)
    assert found.to_dict()["forced"]["max_abs"] is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_model_that_knows_nothing_is_called_flat() -> None:
    a = readings([scored([1, 2, 3], [-6.93147, -6.93146, -6.93148])], [])
    assert compare_readings(a, a).flat


def test_only_readings_of_one_probe_compare() -> None:
    other = Readings(Probe(vocab=100, seed=1), (), ())
    with pytest.raises(ValueError, match="one probe"):
        compare_readings(readings([], []), other)


def test_sequences_are_fixed_by_the_seed(tmp_path: Path) -> None:
    assert PROBE.sequences() == PROBE.sequences()
    assert PROBE.sequences() != Probe(vocab=100, prompts=2, prompt_len=3, seed=1).sequences()
    assert {len(s) for s in PROBE.sequences()} == {3}
    assert all(4 <= token < 100 for s in PROBE.sequences() for token in s)
    (tmp_path / "config.json").write_text('{"vocab_size": 100}')
    assert Probe.for_model(str(tmp_path), prompts=2, prompt_len=3, steps=3, concurrency=2) == PROBE
    with pytest.raises(ServingError, match="no vocabulary size"):
        Probe.for_model(str(tmp_path / "nowhere"))


def test_answers_of_the_server_are_read() -> None:
    # The form of vLLM 0.32's /v1/completions with prompt_logprobs=1, logprobs=1, return_token_ids=true
    choice: dict[str, Any] = {
        "prompt_logprobs": [
            None,
            {"6": {"logprob": -2.5, "rank": 3, "decoded_token": "a"}, "8": {"logprob": -0.5, "rank": 1}},
            {"7": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}},
        ],
        "token_ids": [9, 10],
        "logprobs": {"token_logprobs": [-1.0, -2.0]},
    }
    assert _forced([5, 6, 7], choice) == Scored((6, 7), (-2.5, -0.25), (8, 7))
    assert _decoded(choice) == Scored((9, 10), (-1.0, -2.0), (9, 10))
    with pytest.raises(ValueError, match="2 log-probabilities for 3 tokens"):
        _forced([5, 6, 7, 8], choice)
