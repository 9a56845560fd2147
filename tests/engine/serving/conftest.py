"""A stand-in serving environment, and the real one where a test asks for it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.engine.serving import ServingEnvironment, reap

REPORT: dict[str, Any] = {
    "duration": 2.0,
    "completed": 4,
    "failed": 0,
    "total_input_tokens": 32,
    "total_output_tokens": 64,
    "request_throughput": 2.0,
    "output_throughput": 32.0,
    "total_token_throughput": 48.0,
    "errors": ["", "", "", ""],
    **{
        f"{stat}_{name}_ms": float(value)
        for name, base in (("ttft", 10), ("tpot", 20), ("itl", 30), ("e2el", 40))
        for value, stat in enumerate(("mean", "median", "p90", "p99"), start=base)
    },
}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[ServingEnvironment]:
    """An environment whose Python is fake_python.py; every server under tmp_path is gone afterwards."""
    folder = tmp_path / "fake" / "bin"
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("fake_python.py"), folder)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/fake_python.py" "$@"\n')
    python.chmod(0o755)
    (folder / "mode").write_text("ok")
    (folder / "report.json").write_text(json.dumps(REPORT))
    yield ServingEnvironment(python=python, cache_root=tmp_path / "cache")
    reap(tmp_path, keep=lambda _: False, grace_s=0)


@pytest.fixture(scope="session")
def serving_environment(tmp_path_factory: pytest.TempPathFactory) -> ServingEnvironment:
    """The real serving environment; a run without one skips."""
    root = Path(__file__).parents[3]
    python = Path(os.environ.get("RACKFORGE_SERVING_PYTHON", root / ".venv-serving" / "bin" / "python"))
    if not python.exists():
        pytest.skip("no serving environment: `make serving` creates it")
    return ServingEnvironment(python=python, cache_root=tmp_path_factory.mktemp("serving-cache"))
