"""Facts of machines that are not this one, from trees of /proc and /sys made here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rackforge_runtime import isa
from rackforge_runtime.facts import Cache, Gpu, HostFacts, LogicalCpu, available_memory, collect_facts, parse_cpu_list

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cpuinfo(*flags: str) -> str:
    return "".join(f"processor\t: {i}\nmodel name\t: Fast CPU\nflags\t\t: {f}\n\n" for i, f in enumerate(flags))


def topology(cores: Sequence[tuple[int, int]]) -> dict[str, str]:
    """(package, core) of each logical processor."""
    files = {}
    for cpu, (package, core) in enumerate(cores):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files[f"{folder}/core_id"] = f"{core}\n"
        files[f"{folder}/physical_package_id"] = f"{package}\n"
    return files


def collect(root: Path, tools: dict[str, str] | None = None) -> HostFacts:
    def run(argv: Sequence[str]) -> str | None:
        return (tools or {}).get(argv[0])

    return collect_facts(root=root, run=run)


def test_two_packages_with_two_threads_a_core(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": cpuinfo(*["fma avx2 avx512f avx512bw avx512vl avx512dq avx512_bf16"] * 8),
            "proc/meminfo": "MemTotal:       67108864 kB\nMemAvailable:   33554432 kB\n",
            "etc/os-release": 'NAME="x"\nPRETTY_NAME="Some Linux 12"\n',
            **topology([(0, 0), (0, 1), (1, 0), (1, 1)] * 2),
            "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
            "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
        },
    )
    facts = collect(root)
    assert facts.cpu_model == "Fast CPU"
    assert facts.os == "Some Linux 12"
    assert facts.memory_bytes == 64 * GIB
    assert available_memory(root) == 32 * GIB
    assert len(facts.cpus) == 8
    assert facts.cpus[6] == LogicalCpu(6, 0, 1, 1)
    assert facts.core_cpus == (0, 1, 2, 3)
    assert facts.physical_cores == 4
    assert facts.numa_nodes == 2
    assert facts.isa == ("avx512_bf16", "avx512", "avx2", "generic")


def test_flags_are_those_every_processor_has(tmp_path: Path) -> None:
    facts = collect(write(tmp_path, {"proc/cpuinfo": cpuinfo("avx2 fma sse", "avx2 sse")}))
    assert facts.cpu_flags == {"avx2", "sse"}
    assert facts.isa == ("generic",)


def test_arm(tmp_path: Path) -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    facts = collect(write(tmp_path, {"proc/cpuinfo": text}))
    assert facts.cpu_model == "implementer 0x41, part 0xd4f"
    assert facts.isa == ("neon_bf16", "neon", "generic")


def test_limits_of_cgroup_v2_hold_all_the_way_up(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 60000000 kB\n",
            **topology([(0, i) for i in range(8)]),
            "sys/fs/cgroup/pod/box/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/pod/box/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/pod/box/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/pod/box/memory.stat": f"anon 5\ninactive_file {1 * GIB}\n",
            "sys/fs/cgroup/pod/memory.max": "max\n",
        },
    )
    facts = collect(root)
    assert facts.cpu_quota == 2.5
    assert facts.physical_cores == 2
    assert facts.memory_bytes == 8 * GIB
    assert available_memory(root) == 6 * GIB


def test_limits_of_cgroup_v1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n",
            "proc/meminfo": "MemTotal: 67108864 kB\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{4 * GIB}\n",
        },
    )
    facts = collect(root)
    assert facts.cpu_quota == 4.0
    assert facts.memory_bytes == 4 * GIB


def test_caches(tmp_path: Path) -> None:
    base = "sys/devices/system/cpu/cpu0/cache"
    files: dict[str, str] = {}
    for index, (level, kind, size, shared) in enumerate(
        [(1, "Data", "48K", "0"), (2, "Unified", "2048K", "0"), (3, "Unified", "105M", "0-3")]
    ):
        files |= {
            f"{base}/index{index}/level": str(level),
            f"{base}/index{index}/type": kind,
            f"{base}/index{index}/size": size,
            f"{base}/index{index}/shared_cpu_list": shared,
        }
    facts = collect(write(tmp_path, files))
    assert facts.caches == (
        Cache(1, "Data", 48 << 10, 1),
        Cache(2, "Unified", 2 << 20, 1),
        Cache(3, "Unified", 105 << 20, 4),
    )
    assert facts.last_level_cache_bytes == 105 << 20


AMD_ROW = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI355X", "target_graphics_version": "gfx950", "num_compute_units": 256},
    "vram": {"type": "HBM3E", "size": {"value": 294896, "unit": "MB"}},
}


@pytest.mark.parametrize("answer", [[AMD_ROW], {"gpu_data": [AMD_ROW]}])
def test_amd_gpus(tmp_path: Path, answer: object) -> None:
    facts = collect(tmp_path, {"amd-smi": json.dumps(answer)})
    assert facts.gpus == (Gpu("amd", "AMD Instinct MI355X", "gfx950", 294896 << 20, 256),)


@pytest.mark.parametrize("answer", ["", "not json", '[{"asic": "N/A", "vram": "N/A"}]', "{}"])
def test_an_amd_tool_that_does_not_answer(tmp_path: Path, answer: str) -> None:
    assert collect(tmp_path, {"amd-smi": answer}).gpus == ()


def test_nvidia_gpus(tmp_path: Path) -> None:
    facts = collect(tmp_path, {"nvidia-smi": "NVIDIA H200, 9.0, 143771\nNVIDIA H200, 9.0, 143771\n"})
    assert facts.gpus == (Gpu("nvidia", "NVIDIA H200", "sm_90", 143771 << 20),) * 2


def test_nothing_known_is_no_error(tmp_path: Path) -> None:
    facts = collect(tmp_path)
    assert (facts.cpus, facts.caches, facts.gpus, facts.memory_bytes) == ((), (), (), 0)
    assert facts.physical_cores == 1
    assert facts.isa == ("generic",)
    json.dumps(facts.to_dict(), allow_nan=False)


def test_versions_come_from_the_interpreter_asked(tmp_path: Path) -> None:
    facts = collect_facts(tmp_path / "no-python", root=tmp_path, run=lambda _argv: None)
    assert (facts.python, facts.versions) == ("", {})
    assert collect(tmp_path).python.startswith("3.")


def test_the_digest_is_of_the_kind_of_host(tmp_path: Path) -> None:
    facts = collect(write(tmp_path, {"proc/cpuinfo": cpuinfo("avx2 fma")}))
    facts = replace(facts, memory_bytes=64 * GIB)
    same = replace(facts, hostname="another", kernel="7.0", memory_bytes=64 * GIB - (100 << 20))
    assert same.facts_digest == facts.facts_digest
    for change in (
        replace(facts, cpu_flags=facts.cpu_flags | {"avx512f"}),
        replace(facts, memory_bytes=32 * GIB),
        replace(facts, versions={"vllm": "0.33.0"}),
        replace(facts, gpus=(Gpu("amd", "x", "gfx950", 1),)),
    ):
        assert change.facts_digest != facts.facts_digest
    assert facts.to_dict()["facts_digest"] == facts.facts_digest


def test_this_host_is_seen() -> None:
    facts = collect_facts()
    assert facts.memory_bytes > GIB
    assert 1 <= facts.physical_cores <= len(facts.cpus)
    assert facts.isa[-1] == "generic"
    assert set(facts.isa) <= set(isa.ISA_REQUIRES)
    assert 0 < available_memory() <= facts.memory_bytes


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,5\n") == [0, 1, 2, 5]
    assert parse_cpu_list("") == []


def test_the_order_of_instruction_sets_holds_them_all() -> None:
    everything = frozenset(flag for flags in isa.ISA_REQUIRES.values() for flag in flags)
    assert set(isa.usable(everything)) == set(isa.ISA_REQUIRES)
    assert not isa.runs_here("unknown", everything)
