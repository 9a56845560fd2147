"""A candidate kernel: a folder of sources with a `candidate.json`, the same from tuner to registry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from rackforge_runtime.canonical import digest_bytes, digest_json

Kind = Literal["cpp", "python", "triton"]
KINDS: tuple[Kind, ...] = ("cpp", "python", "triton")
META = "candidate.json"
SOURCE_SUFFIXES: Mapping[Kind, tuple[str, ...]] = {
    "cpp": (".cpp", ".h"),
    "python": (".py",),
    "triton": (".py",),
}
MAX_FILE_BYTES = 1 << 20
MAX_FILES = 32


class CandidateError(ValueError):
    """A candidate folder that cannot be one; the text says which file and what to do."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Sources and their declaration, by value.

    `files` maps relative POSIX paths to bytes. `envelope` is what the author says the kernel is for, e.g.
    `{"isa": "avx512_bf16", "shapes": [{"N": 5632, "K": 1024, "m_min": 1, "m_max": 8}]}`; outside of it the
    runtime falls back to the engine's own operator. `params` are the tuner's parameters, for the record.
    """

    task: str
    kind: Kind
    files: Mapping[str, bytes]
    isa: str = "generic"
    envelope: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    parent: str = ""

    @property
    def entry(self) -> str:
        """The file that is compiled or imported first."""
        return "kernel.cpp" if self.kind == "cpp" else "kernel.py"

    def meta(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "task": self.task,
            "kind": self.kind,
            "isa": self.isa,
            "envelope": dict(self.envelope),
            "params": dict(self.params),
            "agent": self.agent,
            "parent": self.parent,
        }

    @property
    def digest(self) -> str:
        """Identity of what will run: task, kind, instruction set, envelope and every source byte.

        Who made it, its parent and its parameters are left out: the same code is the same kernel.
        """
        return digest_json(
            {
                "task": self.task,
                "kind": self.kind,
                "isa": self.isa,
                "envelope": dict(self.envelope),
                "files": {name: digest_bytes(data) for name, data in sorted(self.files.items())},
            }
        )

    def save(self, folder: Path) -> None:
        """Write the folder anew (an existing one is replaced)."""
        if folder.exists():
            shutil.rmtree(folder)
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (folder / META).write_text(json.dumps(self.meta(), indent=2, sort_keys=True) + "\n")


def load_candidate(path: Path, *, task: str | None = None) -> Candidate:
    """Read a candidate from its folder, or from one source file (then `task` must be given).

    Raises CandidateError for what is not a plain small source tree: links, foreign file types, sizes, names
    outside the folder, an unreadable declaration.
    """
    if path.is_file() and not path.is_symlink():
        if task is None:
            raise CandidateError(f"{path.name}: a single file does not say its task; name one")
        kind: Kind = "cpp" if path.suffix == ".cpp" else "python"
        data = _read(path)
        if kind == "python" and b"@triton.jit" in data:
            kind = "triton"
        return Candidate(task, kind, {"kernel.cpp" if kind == "cpp" else "kernel.py": data})
    if not path.is_dir():
        raise CandidateError(f"{path}: no such candidate folder or file")
    meta_path = path / META
    try:
        meta = json.loads(_read(meta_path)) if meta_path.exists() else {}
    except (ValueError, UnicodeDecodeError) as error:
        raise CandidateError(f"{META}: not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise CandidateError(f"{META}: must hold an object")
    files: dict[str, bytes] = {}
    for item in sorted(path.rglob("*")):
        name = item.relative_to(path).as_posix()
        if name == META or (item.is_dir() and not item.is_symlink()):
            continue
        if item.is_symlink() or not item.is_file():
            raise CandidateError(f"{name}: only plain files are taken")
        if len(files) >= MAX_FILES:
            raise CandidateError(f"more than {MAX_FILES} files")
        files[name] = _read(item)
    kind_text = meta.get("kind") or ("cpp" if "kernel.cpp" in files else "python")
    if kind_text not in KINDS:
        raise CandidateError(f"{META}: kind {kind_text!r} is not one of {', '.join(KINDS)}")
    named = meta.get("task") or task
    if not named:
        raise CandidateError(f"{META}: no task; write one or name it")
    if task is not None and named != task:
        raise CandidateError(f"{META}: made for task {named!r}, not {task!r}")
    try:
        candidate = Candidate(
            task=str(named),
            kind=kind_text,
            files=files,
            isa=str(meta.get("isa", "generic")),
            envelope=dict(meta.get("envelope", {})),
            params=dict(meta.get("params", {})),
            agent=str(meta.get("agent", "")),
            parent=str(meta.get("parent", "")),
        )
    except (TypeError, ValueError) as error:
        raise CandidateError(f"{META}: {error}") from error
    check_files(candidate)
    return candidate


def check_files(candidate: Candidate) -> None:
    """Raise CandidateError unless every file may be there and the entry exists."""
    allowed = SOURCE_SUFFIXES[candidate.kind]
    for name, data in candidate.files.items():
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not name:
            raise CandidateError(f"{name!r}: a path outside the candidate")
        if pure.suffix not in allowed:
            raise CandidateError(f"{name}: {candidate.kind} candidates hold only {', '.join(allowed)} files")
        if len(data) > MAX_FILE_BYTES:
            raise CandidateError(f"{name}: {len(data)} bytes, more than {MAX_FILE_BYTES}")
    if candidate.entry not in candidate.files:
        raise CandidateError(f"{candidate.entry} is missing")


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise CandidateError(f"{path.name}: {size} bytes, more than {MAX_FILE_BYTES}")
    return path.read_bytes()
