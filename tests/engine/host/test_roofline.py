from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.engine.host import Rates, Roofline, RooflineFailed, measure_roofline
from optimizer.engine.host import roofline as module
from rackforge_runtime.facts import Cache, HostFacts, LogicalCpu, collect_facts


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.01)
    monkeypatch.setattr(module, "STREAMS", (1, 8))
    monkeypatch.setattr(module, "MIN_BUFFER", 64 << 20)
    monkeypatch.setattr(module, "_buffer", lambda _facts, threads: (64 << 20) // threads)


def facts_of(cpus: int, level3: int, shared_by: int) -> HostFacts:
    return HostFacts(
        hostname="h", os="o", kernel="k", machine="x86_64", cpu_model="m", cpu_flags=frozenset(),
        cpus=tuple(LogicalCpu(i, i, 0, 0) for i in range(cpus)), cpu_quota=None, memory_bytes=1 << 40,
        caches=(Cache(3, "Unified", level3, shared_by),),
    )  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_this_host_is_measured_and_the_program_kept(tmp_path: Path) -> None:
    facts = collect_facts()
    told: list[float] = []
    found = measure_roofline(facts, cache=tmp_path, repeats=1, progress=lambda _what, share: told.append(share))
    assert found.one.cores == 1
    assert found.all.cores == facts.physical_cores
    for rates in (found.one, found.all):
        # A hundredth of what any machine does, and ten times what any could: wrong by a unit, and it is red.
        assert 0.1 < rates.read_gbs < 2000
        assert rates.peaks["fp32"] > 0.5
        assert rates.streams in (1, 8)
        assert rates.bf16_gflops == max(rates.peaks.values())
    assert set(found.one.peaks) <= {"fp32", "avx512_bf16", "amx_bf16", "neon_bf16"}
    assert ("avx512_bf16" in found.one.peaks) == ("avx512_bf16" in facts.isa)
    assert told == sorted(told)
    assert Roofline.from_dict(found.to_dict()) == found
    (program,) = tmp_path.iterdir()
    built = program.stat().st_mtime_ns
    measure_roofline(facts, cache=tmp_path, repeats=1)
    assert program.stat().st_mtime_ns == built


def test_the_ceiling_is_the_lower_of_memory_and_arithmetic() -> None:
    rates = Rates(cores=1, read_gbs=20.0, read_gbs_best=21.0, streams=8, peaks={"fp32": 100.0, "amx_bf16": 400.0})
    assert rates.bf16_gflops == 400.0
    assert rates.balance == 20.0
    assert rates.attainable_gflops(1.0) == 20.0
    assert rates.attainable_gflops(20.0) == 400.0
    assert rates.attainable_gflops(1000.0) == 400.0


def test_a_program_that_does_not_compile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "roofline.cpp"
    broken.write_text("int main() { return nonsense; }")
    monkeypatch.setattr(module, "SOURCE", broken)
    with pytest.raises(RooflineFailed, match="nonsense"):
        measure_roofline(collect_facts(), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_an_instruction_this_build_lacks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KINDS", {"neon_bf16": "generic", "avx512_bf16": "generic"})
    monkeypatch.setattr(module, "ISA_FLAGS", dict.fromkeys(module.ISA_FLAGS, ()))
    found = measure_roofline(collect_facts(), cache=tmp_path, repeats=1)
    assert set(found.one.peaks) == {"fp32"}


@pytest.mark.usefixtures("quick")
def test_a_cancel_ends_it(tmp_path: Path) -> None:
    facts = collect_facts()
    measure_roofline(facts, cache=tmp_path, repeats=1)  # built, so that the measuring is cancelled
    with pytest.raises(RooflineFailed, match="cancelled"):
        measure_roofline(facts, cache=tmp_path, cancelled=lambda: True)


class TestBuffer:
    """Buffers are four times what the caches can hold, shared out among the threads."""

    def test_sizes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "available_memory", lambda: 64 << 30)
        shared = facts_of(4, 256 << 20, shared_by=4)
        assert module._buffer(shared, 1) == 1 << 30
        assert module._buffer(shared, 4) == 256 << 20
        split = facts_of(4, 256 << 20, shared_by=2)  # two caches
        assert module._buffer(split, 4) == 512 << 20
        small = facts_of(2, 1 << 20, shared_by=2)
        assert module._buffer(small, 1) == 512 << 20

    def test_too_little_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "available_memory", lambda: 600 << 20)
        with pytest.raises(RooflineFailed, match="takes 512 MiB and only 600 MiB are free"):
            module._buffer(facts_of(1, 1 << 20, shared_by=1), 1)
