"""Is everything here that the product needs? Named checks, each with what to do where it is not."""

from __future__ import annotations

import os
import platform as platform_module
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from optimizer.engine.build import NoCompiler, compiler
from optimizer.engine.children import Limits, run
from rackforge_runtime.facts import available_memory

# Measured: 3.4 GB serving environment, 0.5 GB platform, 0.3 GB model, the rest compile caches and traces.
MIN_DISK = 8 << 30
MIN_DISK_INSTALLED = 3 << 30
# Measured: 3 GB a server, two side by side, and what compiling and the platform take.
MIN_MEMORY = 9 << 30
_IMPORT_LIMIT_S = 120.0
_PROBE = "import torch, vllm, vllm._C; print(torch.__version__, vllm.__version__)"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `why` tells what was found, `remedy` is empty where all is well.

    What is not `required` stops nothing; it costs speed or a feature.
    """

    name: str
    ok: bool
    why: str
    remedy: str = ""
    required: bool = True

    @property
    def stops(self) -> bool:
        """Whether the product cannot go on."""
        return self.required and not self.ok


def preflight(
    *,
    root: Path,
    serving_python: Path | None = None,
    port: int | None = None,
    min_disk: int | None = None,
    min_memory: int = MIN_MEMORY,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Check, ...]:
    """Look at this host before anything long is started.

    `root` is where data will lie. `serving_python` None leaves the serving environment out (it is about to
    be made). Never raises: what cannot be found out is a failed check.
    """
    installed = serving_python is not None
    needed = min_disk if min_disk is not None else (MIN_DISK_INSTALLED if installed else MIN_DISK)
    return tuple(_checks(root, serving_python, port, needed, min_memory, cancelled))


def _checks(
    root: Path,
    serving_python: Path | None,
    port: int | None,
    min_disk: int,
    min_memory: int,
    cancelled: Callable[[], bool] | None,
) -> Iterator[Check]:
    yield check_system()
    yield check_python()
    yield check_compiler()
    yield check_disk(root, min_disk)
    yield check_memory(min_memory)
    if serving_python is not None:
        yield check_serving(serving_python, cancelled=cancelled)
        yield check_preloads(serving_python)
    if port is not None:
        yield check_port(port)


def check_system() -> Check:
    name = "operating system"
    found = f"{platform_module.system()} on {platform_module.machine()}"
    if sys.platform != "linux":
        return Check(name, ok=False, why=found, remedy="run on Linux (x86-64 or Arm64)")
    return Check(name, ok=True, why=found)


def check_python() -> Check:
    """Python 3.11: the one vLLM's CPU wheels are locked for."""
    name = "Python 3.11"
    if sys.version_info[:2] == (3, 11):
        return Check(name, ok=True, why=f"{platform_module.python_version()} runs this")
    path = shutil.which("python3.11")
    if path:
        return Check(name, ok=True, why=f"found at {path}")
    return Check(
        name,
        ok=False,
        why=f"only {platform_module.python_version()} was found",
        remedy="install Python 3.11 (Debian 12: apt-get install python3.11-venv; or `uv python install 3.11`)",
    )


def check_compiler() -> Check:
    name = "C++ compiler"
    try:
        compiler.cache_clear()  # one may have been installed since
        return Check(name, ok=True, why=compiler()[1])
    except NoCompiler as error:
        return Check(name, ok=False, why="none on PATH", remedy=str(error))


def check_disk(root: Path, needed: int) -> Check:
    name = "free disk"
    place = root.absolute()
    while not place.exists():
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Check(name, ok=False, why=f"{place}: {error.strerror}", remedy="choose a folder that can be read")
    if not os.access(place, os.W_OK):
        return Check(name, ok=False, why=f"{place} cannot be written to", remedy="choose another folder or its owner")
    why = f"{_gib(free)} free at {place}, {_gib(needed)} needed"
    return Check(name, free >= needed, why, "" if free >= needed else "free some, or put the data folder elsewhere")


def check_memory(needed: int) -> Check:
    free = available_memory()
    why = f"{_gib(free)} available, {_gib(needed)} needed"
    remedy = "" if free >= needed else "end other programs, or raise the container's memory limit"
    return Check("free memory", free >= needed, why, remedy)


def check_serving(python: Path, *, cancelled: Callable[[], bool] | None = None) -> Check:
    """Whether torch and vLLM import in the serving environment, its compiled operators included."""
    name = "serving environment"
    remedy = "create it anew: delete its folder and run `make run`"
    if not python.exists():
        return Check(name, ok=False, why=f"no Python at {python}", remedy="run `make run`, which creates it")
    try:
        done = run([str(python), "-c", _PROBE], limits=Limits(wall_s=_IMPORT_LIMIT_S), cancelled=cancelled)
    except OSError as error:
        return Check(name, ok=False, why=f"{python}: {error.strerror}", remedy=remedy)
    if done.ok:
        torch, vllm = done.stdout.split()[-2:]
        return Check(name, ok=True, why=f"vLLM {vllm}, torch {torch}")
    if done.timed_out:
        return Check(name, ok=False, why=f"importing vLLM took over {_IMPORT_LIMIT_S:.0f} s", remedy=remedy)
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return Check(name, ok=False, why=last[:300], remedy=remedy)


def check_preloads(python: Path) -> Check:
    """tcmalloc and libiomp5, which vLLM recommends on x86: a server without them is a slower baseline."""
    from optimizer.engine.serving.environment import ServingEnvironment

    name = "recommended libraries"
    found = " ".join(Path(p).name for p in ServingEnvironment(python=python).preloads())
    wanted = ["tcmalloc"] + (["iomp5"] if platform_module.machine() == "x86_64" else [])
    missing = [w for w in wanted if w not in found]
    if not missing:
        return Check(name, ok=True, why=found, required=False)
    hints = {"tcmalloc": "Debian: apt-get install libtcmalloc-minimal4", "iomp5": "PyPI: intel-openmp"}
    return Check(
        name,
        ok=False,
        why=f"not found: {', '.join(missing)}",
        remedy="; ".join(hints[m] for m in missing),
        required=False,
    )


def check_port(port: int, host: str = "127.0.0.1") -> Check:
    name = f"port {port}"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as error:
            return Check(
                name,
                ok=False,
                why=f"{host}: {error.strerror}",
                remedy="stop what listens there or choose another port",
            )
    return Check(name, ok=True, why=f"free on {host}")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
