"""What really runs: counters every worker process writes while serving, and the report made of them.

A worker maps a small file of 64-bit counters into memory and adds to them on every call; whoever reads the
file sees the counts of this very moment, and they outlive a crash of the worker. Beside it lies a JSON file
that says what each counter counts. One writer per file, so no locks.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackforge_runtime.cache import read_json, write_atomic

ENV_STATE = "RACKFORGE_STATE_DIR"
MAX_ROWS = 1024
ROW = 8  # 64-bit numbers a row: calls, unsupported, errors, outside, first call (ns since 1970), 3 spare
CALLS, UNSUPPORTED, ERRORS, OUTSIDE, FIRST = range(5)


@dataclass(frozen=True, slots=True)
class KernelLabel:
    """Which kernel a counter belongs to."""

    op: str
    kind: str
    name: str
    version: str
    variant: str
    digest: str  # of the manifest
    object_digest: str

    def to_json(self) -> dict[str, str]:
        return {
            "op": self.op,
            "kind": self.kind,
            "name": self.name,
            "version": self.version,
            "variant": self.variant,
            "digest": self.digest,
            "object_digest": self.object_digest,
        }


class Recorder:
    """The counters of this process. Without a state folder they live in plain memory and nobody reads them."""

    def __init__(self, state: Path | None, *, lock_digest: str) -> None:
        self._state = state
        self._lock_digest = lock_digest
        self._rows: list[dict[str, Any]] = []
        self._index: dict[tuple[str, ...], int] = {}
        self._skipped: dict[tuple[str, str], None] = {}
        self._notes: dict[str, Any] = {}
        self._started = time.time()
        self.pid = os.getpid()
        size = MAX_ROWS * ROW * 8
        if state is None:
            self._map = mmap.mmap(-1, size)
        else:
            folder = state / "workers"
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(folder / f"{self.pid}.counts", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, size)
                self._map = mmap.mmap(fd, size)
            finally:
                os.close(fd)
        self.counts = memoryview(self._map).cast("q")
        self.write()

    def row(self, label: KernelLabel, shape: Mapping[str, int]) -> int:
        """Offset in `counts` of the counters of one kernel at one shape, the same when asked again."""
        key = (label.digest, label.variant, label.object_digest, label.op, json.dumps(shape, sort_keys=True))
        if key not in self._index:
            if len(self._rows) >= MAX_ROWS:
                return (MAX_ROWS - 1) * ROW  # counted together rather than not at all
            self._index[key] = len(self._rows) * ROW
            self._rows.append({**label.to_json(), "shape": dict(shape)})
            self.write()
        return self._index[key]

    def skip(self, op: str, reason: str) -> None:
        """Say why something of the lock does not run in this process."""
        if (op, reason) not in self._skipped:
            self._skipped[op, reason] = None
            self.write()

    def note(self, key: str, value: Any) -> None:
        """Facts of this process for the report, e.g. bytes of prepared weights."""
        self._notes[key] = value
        self.write()

    def write(self) -> None:
        if self._state is None:
            return
        body = {
            "pid": self.pid,
            "started": self._started,
            "lock_digest": self._lock_digest,
            "rows": self._rows,
            "skipped": [{"op": op, "reason": reason} for op, reason in self._skipped],
            "notes": self._notes,
        }
        write_atomic(self._state / "workers" / f"{self.pid}.json", json.dumps(body).encode())


def report(state: Path) -> dict[str, Any]:
    """The activity of a server: its lock, what the launcher decided, and every worker's counts now."""
    launch = read_json(state / "launch.json") or {}
    workers = [w for w in (_worker(p) for p in sorted((state / "workers").glob("*.json"))) if w]
    called = {(k["digest"], k["variant"]) for w in workers for k in w["kernels"] if k["calls"]}
    active = launch.get("active", [])
    return {
        "lock_digest": launch.get("lock_digest") or next((w["lock_digest"] for w in workers), None),
        "source": launch.get("source", "none"),
        "rung": launch.get("rung", "unknown"),
        "generation": launch.get("generation"),
        "active": active,
        "never_called": [a for a in active if (a["digest"], a["variant"]) not in called],
        "skipped": launch.get("skipped", []),
        "problems": launch.get("problems", []),
        "workers": workers,
    }


def metrics(body: Mapping[str, Any]) -> str:
    """The report in Prometheus' text format."""
    out = [
        "# HELP rackforge_kernel_calls_total Calls a Rackforge kernel answered.",
        "# TYPE rackforge_kernel_calls_total counter",
        "# HELP rackforge_kernel_fallbacks_total Calls a kernel was asked for and the engine's operator answered.",
        "# TYPE rackforge_kernel_fallbacks_total counter",
        "# HELP rackforge_kernel_first_call_seconds Unix time of a kernel's first call.",
        "# TYPE rackforge_kernel_first_call_seconds gauge",
    ]
    for worker in body["workers"]:
        for k in worker["kernels"]:
            labels = ",".join(
                f'{name}="{_escape(str(value))}"'
                for name, value in (
                    ("pid", worker["pid"]),
                    ("op", k["op"]),
                    ("kernel", f"{k['name']}@{k['version']}"),
                    ("variant", k["variant"]),
                    ("digest", k["digest"]),
                )
            )
            out.append(f"rackforge_kernel_calls_total{{{labels}}} {k['calls']}")
            out.append(f"rackforge_kernel_fallbacks_total{{{labels}}} {k['fallbacks']}")
            if k["first_call"] is not None:
                out.append(f"rackforge_kernel_first_call_seconds{{{labels}}} {k['first_call']:.3f}")
    skipped = len(body["skipped"]) + sum(len(w["skipped"]) for w in body["workers"])
    out += [
        "# HELP rackforge_kernels_active Kernels of the lock this server was started with.",
        "# TYPE rackforge_kernels_active gauge",
        f"rackforge_kernels_active {len(body['active'])}",
        "# HELP rackforge_kernels_never_called Active kernels without a call so far.",
        "# TYPE rackforge_kernels_never_called gauge",
        f"rackforge_kernels_never_called {len(body['never_called'])}",
        "# HELP rackforge_kernels_skipped Kernels left out, with reasons in the activity report.",
        "# TYPE rackforge_kernels_skipped gauge",
        f"rackforge_kernels_skipped {skipped}",
    ]
    return "\n".join(out) + "\n"


def _worker(path: Path) -> dict[str, Any] | None:
    body = read_json(path)
    if not isinstance(body, dict):
        return None
    try:
        data = memoryview(path.with_suffix(".counts").read_bytes()).cast("q")
    except (OSError, TypeError):
        return None
    kernels: dict[tuple[str, ...], dict[str, Any]] = {}
    for i, row in enumerate(body["rows"]):
        c = data[i * ROW : (i + 1) * ROW]
        label = {k: v for k, v in row.items() if k != "shape"}
        k = kernels.setdefault(
            tuple(label.values()),
            {**label, "calls": 0, "fallbacks": 0, "errors": 0, "outside": 0, "first_call": None, "shapes": []},
        )
        k["calls"] += c[CALLS]
        k["fallbacks"] += c[UNSUPPORTED] + c[ERRORS]
        k["errors"] += c[ERRORS]
        k["outside"] += c[OUTSIDE]
        if c[FIRST]:
            first = c[FIRST] / 1e9
            k["first_call"] = first if k["first_call"] is None else min(first, k["first_call"])
        k["shapes"].append(
            {**row["shape"], "calls": c[CALLS], "fallbacks": c[UNSUPPORTED] + c[ERRORS], "outside": c[OUTSIDE]}
        )
    return {
        "pid": body["pid"],
        "alive": Path(f"/proc/{body['pid']}").exists(),
        "started": body["started"],
        "lock_digest": body["lock_digest"],
        "kernels": list(kernels.values()),
        "skipped": body["skipped"],
        "notes": body["notes"],
    }


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
