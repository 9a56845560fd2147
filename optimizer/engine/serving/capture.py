"""A torch profile of a server at work, by vLLM's own profiler."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.engine.serving.bench import BenchClient
from optimizer.engine.serving.errors import BenchCancelled, BenchFailed
from optimizer.engine.serving.server import LocalServer
from optimizer.engine.serving.workload import BenchResult, Workload

_PATTERN = "*.pt.trace.json*"


@dataclass(frozen=True, slots=True)
class Capture:
    """One trace file, completely written, and what the benchmark measured while it was taken.

    The figures include the profiler's own cost: they say what the trace covers, not how fast the server is.
    """

    trace: Path
    result: BenchResult


def capture_profile(
    server: LocalServer,
    client: BenchClient,
    workload: Workload,
    *,
    timeout_s: float = 600,
    cancelled: Callable[[], bool] | None = None,
) -> Capture:
    """Run a workload with the profiler on, after a warm-up with it off, and give the worker's trace.

    The server must have been started with `ServerSpec.profiler_dir`. With more than one rank the trace of
    rank 0 comes back, the others lie beside it. Raises ServerAnswered where the server has no profiler,
    BenchFailed where no complete trace appears within `timeout_s`.
    """
    if server.spec.profiler_dir is None:
        raise BenchFailed("the server was started without a profiler: set profiler_dir in its spec")
    folder = Path(server.spec.profiler_dir)
    # As many requests as run side by side, so that the batch is full and the caches are warm.
    warm = replace(
        workload,
        num_requests=max(workload.warmup_requests, workload.concurrency),
        warmup_requests=0,
        seed=workload.seed + 1,
    )
    client.run(server.endpoint, warm, timeout_s=timeout_s, cancelled=cancelled)
    before = {p: _stamp(p) for p in folder.glob(_PATTERN)}
    server.request("POST", "/start_profile", timeout_s=120)
    try:
        result = client.run(
            server.endpoint, replace(workload, warmup_requests=0), timeout_s=timeout_s, cancelled=cancelled
        )
    finally:
        # Answers once the trace is written, which takes longer than the run did.
        server.request("POST", "/stop_profile", timeout_s=timeout_s)
    return Capture(_await_trace(folder, before, timeout_s, cancelled), result)


def _await_trace(
    folder: Path,
    before: dict[Path, tuple[int, int]],
    timeout_s: float,
    cancelled: Callable[[], bool] | None,
) -> Path:
    deadline = time.monotonic() + timeout_s
    while True:
        new = [p for p in sorted(folder.glob(_PATTERN)) if before.get(p) != _stamp(p)]
        new = [p for p in new if "rank0" in p.name] or new
        for path in new:
            if is_complete(path):
                return path
        if cancelled is not None and cancelled():
            raise BenchCancelled("cancelled while the trace was written")
        if time.monotonic() > deadline:
            what = f"{new[0].name} is not complete" if new else "no trace appeared"
            raise BenchFailed(f"profile: {what} in {folder} within {timeout_s:.0f} s: is the disk full?")
        time.sleep(0.2)


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def is_complete(path: Path) -> bool:
    """Whether a trace has been written to its end: its (unpacked) text closes the outermost brace.

    The file is read once in pieces; a gzip stream cut short fails on its missing trailer.
    """
    last = b""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as f:
            while piece := f.read(1 << 20):
                last = (last + piece)[-64:]
    except (OSError, EOFError, zlib.error):
        return False
    return last.rstrip().endswith(b"}")
