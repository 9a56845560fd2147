"""The server's own counters, from its Prometheus page."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Histogram:
    """Sum (seconds) and count of a latency histogram; differences of two readings give a mean."""

    sum_s: float = 0.0
    count: int = 0

    def mean_since(self, before: Histogram) -> float | None:
        """Mean seconds of what was observed between two readings, None where nothing was."""
        n = self.count - before.count
        return (self.sum_s - before.sum_s) / n if n > 0 else None


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """One reading. Sums over all engines of the server; `kv_usage` is the fullest engine's, 0 to 1."""

    running: int
    waiting: int
    kv_usage: float
    prompt_tokens: int
    generation_tokens: int
    ttft: Histogram
    itl: Histogram
    e2e: Histogram


def parse_metrics(text: str) -> LiveMetrics:
    """Read vLLM's /metrics. A metric that is absent counts as zero; ValueError where it is no such text."""
    samples: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.value)

    def total(name: str) -> float:
        return sum(samples.get(name, ()))

    def histogram(name: str) -> Histogram:
        return Histogram(total(f"{name}_sum"), int(total(f"{name}_count")))

    return LiveMetrics(
        running=int(total("vllm:num_requests_running")),
        waiting=int(total("vllm:num_requests_waiting")),
        kv_usage=max(samples.get("vllm:kv_cache_usage_perc", [0.0])),
        prompt_tokens=int(total("vllm:prompt_tokens_total")),
        generation_tokens=int(total("vllm:generation_tokens_total")),
        ttft=histogram("vllm:time_to_first_token_seconds"),
        itl=histogram("vllm:inter_token_latency_seconds"),
        e2e=histogram("vllm:e2e_request_latency_seconds"),
    )
