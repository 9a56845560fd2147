"""A benchmark's workload and its result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from optimizer.engine.serving.errors import BenchFailed, WorkloadError
from rackforge_runtime.canonical import digest_bytes

# A random prompt, made of tokens and sent as text, comes back from the tokenizer a few tokens off at times.
PROMPT_SLACK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of a fixed shape: random prompts of `input_len` tokens, exactly `output_len` generated.

    `concurrency` requests are in flight at any time. `warmup_requests` run before and are not counted; vLLM's
    client sends its first prompt for them. The same seed gives the same prompts.
    """

    input_len: int
    output_len: int
    concurrency: int = 1
    num_requests: int = 8
    warmup_requests: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("input_len", 1),
            ("output_len", 1),
            ("concurrency", 1),
            ("num_requests", 1),
            ("warmup_requests", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise WorkloadError(f"workload: {name} is {value!r}, must be a whole number of at least {least}")

    @property
    def output_tokens(self) -> int:
        """Tokens a complete run generates."""
        return self.num_requests * self.output_len

    def check_fits(self, max_model_len: int) -> None:
        """WorkloadError unless a request fits a context of so many tokens."""
        needed = self.input_len + self.output_len + PROMPT_SLACK
        if needed > max_model_len:
            raise WorkloadError(
                f"workload: {self.input_len} input and {self.output_len} output tokens ({PROMPT_SLACK} more to "
                f"spare) make {needed}, the server's context holds {max_model_len}: shorten the workload or raise "
                "max_model_len"
            )

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds over the requests (over the tokens for ITL); NaN where nothing was measured."""

    mean: float
    median: float
    p90: float
    p99: float


LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (90, 99)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run measured. `raw_json` is what vLLM's client reported, byte for byte: the evidence."""

    duration_s: float
    completed: int
    failed: int
    output_tok_s: float
    request_s: float
    total_tok_s: float
    ttft: Latency
    tpot: Latency
    itl: Latency
    e2el: Latency
    raw_json: bytes = field(repr=False)

    @property
    def raw(self) -> Mapping[str, Any]:
        value: Mapping[str, Any] = json.loads(self.raw_json)
        return value

    @property
    def digest(self) -> str:
        """Digest of the evidence."""
        return digest_bytes(self.raw_json)

    def to_dict(self) -> dict[str, Any]:
        """The figures as a JSON value; what was not measured is null."""
        figures = asdict(self)
        del figures["raw_json"]
        for name in LATENCIES:
            figures[name] = {k: None if math.isnan(v) else v for k, v in figures[name].items()}
        return {**figures, "raw_digest": self.digest}

    @classmethod
    def parse(cls, raw_json: bytes, workload: Workload) -> BenchResult:
        """Read vLLM's report and hold it against what was asked; BenchFailed where it falls short."""
        try:
            raw = json.loads(raw_json)
            latencies = {
                name: Latency(
                    *(float(raw.get(f"{stat}_{name}_ms", math.nan)) for stat in ("mean", "median", "p90", "p99"))
                )
                for name in LATENCIES
            }
            result = cls(
                duration_s=float(raw["duration"]),
                completed=int(raw["completed"]),
                failed=int(raw["failed"]),
                output_tok_s=float(raw["output_throughput"]),
                request_s=float(raw["request_throughput"]),
                total_tok_s=float(raw["total_token_throughput"]),
                raw_json=raw_json,
                **latencies,
            )
            tokens = int(raw["total_output_tokens"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BenchFailed(
                f"the benchmark's report is not as expected ({type(error).__name__}: {error}): "
                "is this the vLLM version the lock file names?"
            ) from error
        if result.failed or result.completed != workload.num_requests:
            raise BenchFailed(
                f"{workload.num_requests - result.completed} of {workload.num_requests} requests failed; the first: "
                f"{_first_error(raw)}"
            )
        if tokens != workload.output_tokens:
            raise BenchFailed(
                f"the server generated {tokens} tokens where {workload.output_tokens} were asked for: "
                "the throughput would not be comparable"
            )
        return result


def _first_error(raw: Mapping[str, Any]) -> str:
    """The first error text; of a traceback its last line."""
    for text in raw.get("errors") or ():
        lines = [line.strip() for line in str(text).splitlines() if line.strip()]
        if lines:
            return lines[-1][:300]
    return "no error text"
