from __future__ import annotations

import errno
import shutil
import socket
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from optimizer.engine import build
from optimizer.engine.host import Check, preflight
from optimizer.engine.host.checks import (
    check_compiler,
    check_disk,
    check_memory,
    check_port,
    check_preloads,
    check_python,
    check_serving,
)

Usage = namedtuple("Usage", "total used free")


def fake_python(folder: Path, script: str) -> Path:
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_all_checks_are_named_and_say_what_to_do(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "exit 1")
    found = preflight(root=tmp_path / "var", serving_python=python, port=0)
    assert [c.name for c in found] == [
        "operating system",
        "Python 3.11",
        "C++ compiler",
        "free disk",
        "free memory",
        "serving environment",
        "recommended libraries",
        "port 0",
    ]
    assert all(c.remedy for c in found if not c.ok)
    assert not any(c.remedy for c in found if c.ok)


def test_without_a_serving_environment_more_disk_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1 << 40, 0, 5 << 30))
    disk = {c.name: c for c in preflight(root=tmp_path)}["free disk"]
    assert disk.stops
    assert disk.why == f"5.0 GiB free at {tmp_path}, 8.0 GiB needed"
    python = fake_python(tmp_path, "exit 1")
    assert {c.name: c for c in preflight(root=tmp_path, serving_python=python)}["free disk"].ok


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = check_compiler()
    assert found.stops
    assert "apt-get install g++" in found.remedy
    monkeypatch.undo()
    build.compiler.cache_clear()
    assert check_compiler().ok


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_disk(tmp_path / "not" / "yet" / "there", 1).ok

    def unreadable(_path: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(shutil, "disk_usage", unreadable)
    assert check_disk(tmp_path, 1).why == f"{tmp_path}: Permission denied"


def test_memory() -> None:
    assert check_memory(1).ok
    found = check_memory(1 << 60)
    assert not found.ok
    assert "GiB available" in found.why


def test_serving(tmp_path: Path) -> None:
    assert check_serving(tmp_path / "bin" / "python").remedy == "run `make run`, which creates it"
    good = check_serving(fake_python(tmp_path / "a", "echo 2.13.0+cpu 0.32.0"))
    assert good == Check("serving environment", ok=True, why="vLLM 0.32.0, torch 2.13.0+cpu")
    bad = check_serving(fake_python(tmp_path / "b", "echo 'Traceback'>&2; echo 'ImportError: no torch' >&2; exit 1"))
    assert bad.why == "ImportError: no torch"
    assert bad.stops


def test_missing_recommended_libraries_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from optimizer.engine.serving import environment

    monkeypatch.setattr(environment, "_LIBRARY_FOLDERS", (str(tmp_path / "lib"),))
    python = fake_python(tmp_path, "")
    found = check_preloads(python)
    assert not found.ok
    assert not found.stops
    assert "libtcmalloc-minimal4" in found.remedy
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtcmalloc_minimal.so.4").touch()
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert check_preloads(python).ok


def test_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = check_port(port)
        assert found.stops
        assert "already in use" in found.why
    assert check_port(port).ok


def test_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_python().ok or sys.version_info[:2] != (3, 11)
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Python 3.11" in check_python().remedy
