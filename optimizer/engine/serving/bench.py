"""vLLM's benchmark client, kept resident: importing it takes ten seconds and more, a run takes a few."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from optimizer.engine.children import kill_group
from optimizer.engine.serving.environment import SCRIPTS, ServingEnvironment
from optimizer.engine.serving.errors import BenchCancelled, BenchFailed
from optimizer.engine.serving.startlog import read_tail
from optimizer.engine.serving.workload import LATENCIES, PERCENTILES, BenchResult, Workload

IMPORT_DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server to benchmark, ours or somebody else's. `tokenizer` is a folder with the model's tokenizer."""

    base_url: str
    served_name: str
    tokenizer: str


class _Crashed(Exception):
    """The child ended without an answer."""


class BenchClient:
    """A child process that runs benchmarks one after another; a context manager that ends it.

    It starts to import at once, so that making one before starting a server hides the wait. `log` takes what
    the client prints. Not for use by several threads at a time.
    """

    def __init__(self, environment: ServingEnvironment, *, log: Path) -> None:
        self._environment = environment
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._jobs = self._answers = -1
        self._pending = b""
        self._ready = False
        self._next_id = 0
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def close(self) -> None:
        """End the child. Calling it twice is harmless; a later `run` starts a new one."""
        for fd in (self._jobs, self._answers):
            if fd >= 0:
                os.close(fd)
        self._jobs = self._answers = -1
        if self._child is not None:
            kill_group(self._child.pid)
            self._child.wait()
            self._child = None
        self._ready = False
        self._pending = b""

    def run(
        self,
        endpoint: Endpoint,
        workload: Workload,
        *,
        timeout_s: float = 600,
        cancelled: Callable[[], bool] | None = None,
    ) -> BenchResult:
        """Run a workload and give its figures.

        Raises BenchFailed for failed requests, an error status, a report that does not add up, no result
        within `timeout_s` (a hanging server), or a client that crashes twice in a row; BenchCancelled when
        `cancelled` says so. Check that the workload fits first (`Workload.check_fits`).
        """
        argv = _arguments(endpoint, workload)
        try:
            try:
                answer = self._ask(argv, timeout_s, cancelled)
            except _Crashed:
                self.close()
                answer = self._ask(argv, timeout_s, cancelled)
        except _Crashed:
            tail = [line for line in read_tail(self._log, 4096).splitlines() if line.strip()]
            self.close()
            raise BenchFailed(
                f"the benchmark client crashed twice: {tail[-1].strip() if tail else 'it wrote nothing'} "
                f"(log: {self._log})"
            ) from None
        except BaseException:
            # An unfinished job would answer into the next one's time.
            self.close()
            raise
        if "error" in answer:
            raise BenchFailed(f"the benchmark against {endpoint.base_url} failed: {answer['error']}")
        return BenchResult.parse(answer["result"].encode(), workload)

    def _start(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        job_read, self._jobs = os.pipe()
        self._answers, answer_write = os.pipe()
        try:
            with self._log.open("ab") as log:
                self._child = subprocess.Popen(
                    [
                        str(self._environment.python),
                        str(SCRIPTS / "bench_child.py"),
                        str(job_read),
                        str(answer_write),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment.base_environ() | {"VLLM_LOGGING_LEVEL": "WARNING"},
                    pass_fds=(job_read, answer_write),
                    start_new_session=True,
                )
        except OSError as error:
            self.close()
            raise BenchFailed(
                f"the benchmark client does not start: {self._environment.python}: {error.strerror}"
            ) from error
        finally:
            os.close(job_read)
            os.close(answer_write)

    def _ask(self, argv: list[str], timeout_s: float, cancelled: Callable[[], bool] | None) -> dict[str, Any]:
        if self._child is None:
            self._start()
        if not self._ready:
            self._read(IMPORT_DEADLINE_S, cancelled, "importing the benchmark client")
            self._ready = True
        self._next_id += 1
        job = json.dumps({"id": self._next_id, "argv": argv}) + "\n"
        try:
            os.write(self._jobs, job.encode())
        except BrokenPipeError:
            raise _Crashed from None
        answer = self._read(timeout_s, cancelled, "the benchmark (does the server hang?)")
        if answer.get("id") != self._next_id:
            raise _Crashed
        return answer

    def _read(self, timeout_s: float, cancelled: Callable[[], bool] | None, what: str) -> dict[str, Any]:
        """One line from the child."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if cancelled is not None and cancelled():
                    raise BenchCancelled("cancelled during the benchmark")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BenchFailed(f"no result from {what} within {timeout_s:.0f} s")
                if selector.select(min(left, 0.2)):
                    data = os.read(self._answers, 1 << 16)
                    if not data:
                        raise _Crashed
                    self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        with contextlib.suppress(ValueError):
            value: dict[str, Any] = json.loads(line)
            return value
        raise _Crashed


def _arguments(endpoint: Endpoint, workload: Workload) -> list[str]:
    """Arguments of `vllm bench serve`; the served name is the model, so that its /tokenize is found."""
    return [
        *("--backend", "vllm"),
        *("--base-url", endpoint.base_url),
        *("--model", endpoint.served_name),
        *("--served-model-name", endpoint.served_name),
        *("--tokenizer", endpoint.tokenizer),
        *("--dataset-name", "random"),
        *("--random-input-len", str(workload.input_len)),
        *("--random-output-len", str(workload.output_len)),
        *("--random-range-ratio", "0"),
        *("--num-prompts", str(workload.num_requests)),
        *("--num-warmups", str(workload.warmup_requests)),
        *("--max-concurrency", str(workload.concurrency)),
        *("--seed", str(workload.seed)),
        *("--temperature", "0"),
        "--ignore-eos",
        "--disable-tqdm",
        "--save-detailed",  # keeps each request's times and error text in the report
        *("--percentile-metrics", ",".join(LATENCIES)),
        *("--metric-percentiles", ",".join(map(str, PERCENTILES))),
    ]
