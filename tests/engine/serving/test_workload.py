from __future__ import annotations

import json
import math
from typing import Any

import pytest

from optimizer.engine.serving import BenchFailed, BenchResult, Latency, Workload, WorkloadError
from optimizer.engine.serving.metrics import Histogram, parse_metrics

WORKLOAD = Workload(input_len=8, output_len=16, concurrency=2, num_requests=4)


def report(**change: Any) -> bytes:
    base: dict[str, Any] = {
        "duration": 2.0, "completed": 4, "failed": 0, "total_output_tokens": 64, "request_throughput": 2.0,
        "output_throughput": 32.0, "total_token_throughput": 48.0, "errors": ["", "", "", ""],
        "mean_ttft_ms": 10.0, "median_ttft_ms": 11.0, "p90_ttft_ms": 12.0, "p99_ttft_ms": 13.0,
    }  # fmt: skip
    return json.dumps({**base, **change}).encode()


@pytest.mark.parametrize("field", ["input_len", "output_len", "concurrency", "num_requests"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_a_workload_of_nonsense_is_refused(field: str, value: object) -> None:
    fields: dict[str, Any] = {"input_len": 8, "output_len": 8, field: value}
    with pytest.raises(WorkloadError, match=field):
        Workload(**fields)


def test_a_workload_that_cannot_fit_says_by_how_much() -> None:
    workload = Workload(input_len=400, output_len=104)
    workload.check_fits(512)
    with pytest.raises(WorkloadError, match=r"400 input and 104 output .* make 512, the server's context holds 511"):
        workload.check_fits(511)


def test_a_report_is_read_and_kept() -> None:
    raw = report()
    result = BenchResult.parse(raw, WORKLOAD)
    assert result.raw_json is raw
    assert result.ttft == Latency(10.0, 11.0, 12.0, 13.0)
    assert math.isnan(result.tpot.mean)  # not in this report
    assert (result.output_tok_s, result.request_s, result.duration_s) == (32.0, 2.0, 2.0)
    figures = result.to_dict()
    assert figures["tpot"]["mean"] is None
    assert figures["ttft"]["p99"] == 13.0
    assert figures["raw_digest"] == result.digest
    json.dumps(figures, allow_nan=False)


def test_failed_requests_are_no_result() -> None:
    trace = 'Traceback (most recent call last):\n  File "x"\naiohttp.ClientError: connection lost\n'
    with pytest.raises(
        BenchFailed, match=r"2 of 4 requests failed; the first: aiohttp\.ClientError: connection lost"
    ):
        BenchResult.parse(report(completed=2, failed=2, errors=["", trace, "late", ""]), WORKLOAD)


def test_fewer_tokens_than_asked_are_no_result() -> None:
    with pytest.raises(BenchFailed, match="63 tokens where 64"):
        BenchResult.parse(report(total_output_tokens=63), WORKLOAD)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"duration": "x"}'])
def test_another_format_is_no_result(raw: bytes) -> None:
    with pytest.raises(BenchFailed, match="not as expected"):
        BenchResult.parse(raw, WORKLOAD)


METRICS = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="model"} 3.0
vllm:num_requests_running{engine="1",model_name="model"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="model"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="model"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="model"} 0.5
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="model"} 120.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4.0
vllm:time_to_first_token_seconds_count{engine="0"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0"} 2.0
"""


def test_metrics() -> None:
    found = parse_metrics(METRICS)
    assert (found.running, found.waiting, found.kv_usage) == (5, 4, 0.5)
    assert (found.generation_tokens, found.prompt_tokens) == (120, 0)
    assert found.ttft == Histogram(2.0, 4)
    assert found.ttft.mean_since(Histogram(1.0, 2)) == 0.5
    assert found.itl.mean_since(Histogram()) is None
    with pytest.raises(ValueError):
        parse_metrics("<html>{ not metrics")
