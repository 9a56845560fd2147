"""The host's measured roofline: read bandwidth and multiply-add peak of one core and of all.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009): a kernel with
arithmetic intensity I (FLOP per byte) reaches at most min(peak, I x bandwidth).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optimizer.engine.build import ISA_FLAGS, NoCompiler, compiler
from optimizer.engine.children import Limits, run
from rackforge_runtime.canonical import digest_file, digest_json
from rackforge_runtime.facts import HostFacts, available_memory
from rackforge_runtime.isa import runs_here

SOURCE = Path(__file__).with_name("roofline.cpp")
FLAGS = ("-std=c++17", "-O3", "-pthread", "-ffast-math")
# What each instruction set can run; fp32 fused multiply-add runs everywhere.
_KINDS: Mapping[str, str] = {"amx_bf16": "amx_bf16", "avx512_bf16": "avx512_bf16", "neon_bf16": "neon_bf16"}
_WIDE = ("avx512", "avx512_bf16", "amx_bf16")
STREAMS = (1, 4, 8, 16)
MIN_BUFFER = 512 << 20
_SECONDS = 0.15


class RooflineFailed(RuntimeError):
    """The measuring program could not be built or run; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a set of cores reaches. `peaks` are GFLOP/s by instruction (a multiply-add counts as two).

    `read_gbs` is the best over several numbers of parallel read streams, `streams` names it: memory is kept
    busy by different means on different parts, and the ceiling is what the best of them reaches.
    `read_gbs_best` is the fastest single sample; far above `read_gbs` it says that the host was not quiet.
    """

    cores: int
    read_gbs: float
    read_gbs_best: float
    streams: int
    peaks: Mapping[str, float]

    @property
    def bf16_gflops(self) -> float:
        """Peak of products of bf16 numbers summed in fp32, by the best instruction there is.

        fp32 counts too: widening bf16 is a shift, and on some hosts the fp32 units are faster than bf16's.
        """
        return max(self.peaks.values())

    @property
    def balance(self) -> float:
        """FLOP per byte where memory and arithmetic cost the same: the roofline's ridge."""
        return self.bf16_gflops / self.read_gbs

    def attainable_gflops(self, intensity: float) -> float:
        """Ceiling for a kernel of an arithmetic intensity in FLOP per byte."""
        return min(self.bf16_gflops, intensity * self.read_gbs)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "peaks": dict(self.peaks), "bf16_gflops": self.bf16_gflops}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Rates:
        """Back from `to_dict`; KeyError or TypeError for something else."""
        return cls(
            cores=int(value["cores"]),
            read_gbs=float(value["read_gbs"]),
            read_gbs_best=float(value["read_gbs_best"]),
            streams=int(value["streams"]),
            peaks=dict(value["peaks"]),
        )


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured rates of one core and of all that may be used."""

    one: Rates
    all: Rates

    def to_dict(self) -> dict[str, Any]:
        return {"one": self.one.to_dict(), "all": self.all.to_dict()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Roofline:
        return cls(Rates.from_dict(value["one"]), Rates.from_dict(value["all"]))


def measure_roofline(
    facts: HostFacts,
    *,
    cache: Path | None = None,
    repeats: int = 5,
    progress: Callable[[str, float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Roofline:
    """Measure this host; about 30 s. Each figure is the median over `repeats`, the kinds taken in turn.

    Buffers are many times the last-level cache. The measuring program is kept in `cache` (None: built and
    thrown away). `progress` gets what is measured and the share done. Raises RooflineFailed.
    """
    if cache is not None:
        return _measure(_build(facts, cache, cancelled), facts, repeats, progress, cancelled)
    with tempfile.TemporaryDirectory(prefix="rackforge-roofline-") as scratch:
        return _measure(_build(facts, Path(scratch), cancelled), facts, repeats, progress, cancelled)


def _build(facts: HostFacts, cache: Path, cancelled: Callable[[], bool] | None) -> Path:
    flags = [*FLAGS, *ISA_FLAGS[facts.isa[0]]]
    if facts.isa[0] in _WIDE:
        flags.append("-mprefer-vector-width=512")
    try:
        path, version = compiler()
    except NoCompiler as error:
        raise RooflineFailed(str(error)) from error
    key = digest_json({"source": digest_file(SOURCE), "flags": flags, "compiler": version}).removeprefix("sha256:")
    target = cache / f"roofline-{key[:32]}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as scratch:
        built = Path(scratch) / "roofline"
        done = run([path, *flags, "-o", str(built), str(SOURCE)], limits=Limits(wall_s=120), cancelled=cancelled)
        if not done.ok:
            raise RooflineFailed(f"the measuring program does not compile: {done.stderr.strip()[-1000:]}")
        built.replace(target)
    return target


def _measure(
    program: Path,
    facts: HostFacts,
    repeats: int,
    progress: Callable[[str, float], None] | None,
    cancelled: Callable[[], bool] | None,
) -> Roofline:
    cores = facts.core_cpus[: facts.physical_cores]
    sets = {1: cores[:1], len(cores): cores}
    kinds = ["fp32", *(kind for kind, isa in _KINDS.items() if runs_here(isa, facts.cpu_flags))]
    plan: list[tuple[int, str, int]] = [
        *((n, "bandwidth", streams) for n in sets for streams in STREAMS),
        *((n, kind, 0) for n in sets for kind in kinds),
    ]
    samples: dict[tuple[int, str, int], list[float]] = {}
    total = len(plan) * repeats
    done = 0
    for _ in range(repeats):
        for n, kind, streams in plan:
            if progress is not None:
                progress(f"{kind} on {n} core{'s' if n > 1 else ''}", done / total)
            extra = [str(_buffer(facts, n)), str(streams)] if kind == "bandwidth" else []
            rate = _sample(program, [kind, *extra, str(_SECONDS), *map(str, sets[n])], cancelled)
            if rate is not None:
                samples.setdefault((n, kind, streams), []).append(rate)
            done += 1
    medians = {key: statistics.median(values) for key, values in samples.items()}

    def rates(n: int) -> Rates:
        read, streams = max((medians[n, "bandwidth", s], s) for s in STREAMS)
        peaks = {kind: round(medians[n, kind, 0], 3) for kind in kinds if (n, kind, 0) in medians}
        best = max(max(samples[n, "bandwidth", s]) for s in STREAMS)
        return Rates(n, round(read, 3), round(best, 3), streams, peaks)

    return Roofline(rates(1), rates(len(cores)))


def _buffer(facts: HostFacts, threads: int) -> int:
    """Bytes each thread reads: together four times all last-level caches they can reach, and half a GiB."""
    level = max((c.level for c in facts.caches), default=0)
    shared = max((c.shared_by for c in facts.caches if c.level == level), default=1)
    instances = max(1, min(threads, len(facts.cpus) // max(shared, 1)))
    wanted = max(MIN_BUFFER, 4 * facts.last_level_cache_bytes * instances)
    free = available_memory()
    if wanted > free // 2:
        raise RooflineFailed(
            f"measuring the read bandwidth takes {wanted >> 20} MiB and only {free >> 20} MiB are free: "
            "free memory or measure on a quiet machine"
        )
    return max(wanted // threads, 64 << 20) >> 20 << 20


def _sample(program: Path, arguments: Sequence[str], cancelled: Callable[[], bool] | None) -> float | None:
    """One run; None where the processor turns out not to have an instruction it lists."""
    done = run([str(program), *arguments], limits=Limits(wall_s=60), cancelled=cancelled)
    if done.returncode == 3 or done.returncode == -4:  # asked and refused, or an illegal instruction
        return None
    if not done.ok:
        why = {4: "a core cannot be pinned", 5: "not enough memory"}.get(done.returncode, done.stderr.strip()[-300:])
        ended = "cancelled" if done.cancelled else "it hangs" if done.timed_out else why
        raise RooflineFailed(f"measuring {arguments[0]} failed (status {done.returncode}): {ended}")
    return float(done.stdout)
