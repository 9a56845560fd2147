"""Compiling C++ candidates: one compiler call in a killable child, cached by content."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from optimizer.engine.candidate import Candidate
from optimizer.engine.children import Limits, run
from rackforge_runtime.canonical import digest_bytes, digest_file, digest_json
from rackforge_runtime.isa import ISA_REQUIRES, runs_here

HEADER = Path(__file__).parent / "abi" / "rackforge_kernel.h"

# Compiler flags of the instruction sets a kernel may be built for. What a host needs to run them, and which
# of them it can, is said by rackforge_runtime.isa.
ISA_FLAGS: Mapping[str, tuple[str, ...]] = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
    "avx512_bf16": (
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16",
    ),
    "amx_bf16": (
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16",
        "-mamx-tile", "-mamx-bf16",
    ),
    "neon": ("-march=armv8.2-a",),
    "neon_bf16": ("-march=armv8.6-a+bf16",),
}  # fmt: skip
COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fno-math-errno",
    "-fvisibility=default",
)
LIMITS = Limits(wall_s=60, cpu_s=60, address_space=4 << 30, file_size=64 << 20)


__all__ = ["ISA_FLAGS", "ISA_REQUIRES", "Built", "NoCompiler", "build", "build_key", "compiler", "runs_here"]


class NoCompiler(RuntimeError):
    """No C++ compiler on this host."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a build gave. `object` is None when it failed, and `diagnostics` then says why."""

    object: Path | None
    digest: str
    key: str
    diagnostics: str
    wall_s: float
    cached: bool
    cancelled: bool = False

    @property
    def ok(self) -> bool:
        return self.object is not None


@lru_cache(maxsize=1)
def compiler() -> tuple[str, str]:
    """Path and version line of the C++ compiler (environment CXX, else g++, else clang++)."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        path = shutil.which(name)
        if path:
            version = run([path, "--version"], limits=Limits(wall_s=20)).stdout.splitlines()
            return path, version[0] if version else name
    raise NoCompiler("no C++ compiler: install g++ (Debian: apt-get install g++) or set CXX")


def build_key(candidate: Candidate) -> str:
    """What decides the object: sources, flags, interface header and compiler."""
    _, version = compiler()
    return digest_json(
        {
            "files": {name: digest_bytes(data) for name, data in sorted(candidate.files.items())},
            "flags": [*COMMON_FLAGS, *ISA_FLAGS[candidate.isa]],
            "header": digest_file(HEADER),
            "compiler": version,
        }
    )


def build(candidate: Candidate, cache: Path, *, cancelled: Callable[[], bool] | None = None) -> Built:
    """Compile a C++ candidate to a shared object under `cache`, or find it there.

    Failures of the candidate (errors, a compile-time bomb) come back in the result and are not cached;
    NoCompiler is raised, since that is the host's fault. Safe under many processes: the object is renamed
    into place whole.
    """
    if candidate.isa not in ISA_FLAGS:
        return Built(None, "", "", f"unknown instruction set {candidate.isa!r}", 0.0, cached=False)
    key = build_key(candidate)
    place = cache / key.removeprefix("sha256:")[:2] / key.removeprefix("sha256:") / "kernel.so"
    if place.exists():
        return Built(place, digest_file(place), key, "", 0.0, cached=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as scratch:
        source = Path(scratch) / "src"
        for name, data in candidate.files.items():
            path = source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        shutil.copy(HEADER, source / HEADER.name)
        target = Path(scratch) / "kernel.so"
        # A fixed relative name and no absolute path in the command: the object's bytes do not depend on
        # where it was built.
        done = run(
            [
                compiler()[0], *COMMON_FLAGS, *ISA_FLAGS[candidate.isa], "-I.", candidate.entry,
                "-o", str(target), "-Wl,--build-id=none",
            ],
            cwd=source,
            limits=LIMITS,
            cancelled=cancelled,
        )  # fmt: skip
        if not done.ok or not target.exists():
            why = f"compiler ran past {LIMITS.wall_s:.0f} s" if done.timed_out else done.stderr.strip()
            return Built(None, "", key, why[-8000:], done.wall_s, cached=False, cancelled=done.cancelled)
        target.chmod(0o555)
        target.replace(place)
    return Built(place, digest_file(place), key, done.stderr.strip()[-8000:], done.wall_s, cached=False)
