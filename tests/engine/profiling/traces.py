"""Small traces made by hand for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "traces"


def op(name: str, ts: float, dur: float, *, tid: int = 1, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def tensors(*dims: list[int], dtype: str = "c10::BFloat16") -> dict[str, Any]:
    return {"Input Dims": list(dims), "Input type": [dtype if d else "Scalar" for d in dims]}


def write(path: Path, events: list[dict[str, Any]], **top: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events, "traceName": "x.json"}, indent=1))
    return path
