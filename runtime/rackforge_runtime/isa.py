"""Instruction sets kernels are built for, and what a host must have to run them: the one table of them."""

from __future__ import annotations

from collections.abc import Mapping

# CPU flags, by their names in /proc/cpuinfo, that a host needs to run objects of an instruction set.
# "neon_bf16" is the scalar-free BF16 extension of Armv8.6-A (BFDOT, BFMMLA).
ISA_REQUIRES: Mapping[str, tuple[str, ...]] = {
    "generic": (),
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "avx512_bf16": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"),
    "amx_bf16": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "amx_tile", "amx_bf16"),
    "neon": ("asimd",),
    "neon_bf16": ("asimd", "bf16"),
}

# What is tried first where several run. AMX comes first although its tiles pay only for larger batches:
# the order says what a host can do, the measurements say what it should.
_BEST_FIRST = ("amx_bf16", "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon", "generic")


def runs_here(isa: str, cpu_flags: frozenset[str]) -> bool:
    """Whether a host with these CPU flags can execute objects of an instruction set."""
    return isa in ISA_REQUIRES and all(flag in cpu_flags for flag in ISA_REQUIRES[isa])


def usable(cpu_flags: frozenset[str]) -> tuple[str, ...]:
    """The instruction sets a host with these CPU flags can run, best first; "generic" is always last."""
    return tuple(isa for isa in _BEST_FIRST if runs_here(isa, cpu_flags))
