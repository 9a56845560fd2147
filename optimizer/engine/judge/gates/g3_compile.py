"""G3: compile, and look at what the object asks of the system."""

from __future__ import annotations

import shutil

from optimizer.engine import build as builds
from optimizer.engine.children import Limits, run
from optimizer.engine.judge.context import JudgeContext, failed, passed
from optimizer.engine.judge.rules import banned_symbol
from optimizer.engine.judge.verdict import GateOutcome, GateResult
from rackforge_runtime.canonical import digest_bytes
from rackforge_runtime.runner.frames import pack_files


class Compile:
    """C++: one object by content; Python and Triton: the packed sources are the object.

    symbols: whether imported names are held against it; only the suite turns this off, to see what stops a
    candidate when the static rules do not.
    """

    name, version, title = "G3", 1, "compile"

    def __init__(self, *, symbols: bool = True) -> None:
        self._symbols = symbols

    def check(self, ctx: JudgeContext) -> GateResult:
        candidate = ctx.candidate
        if candidate.kind != "cpp":
            ctx.files = sorted(candidate.files.items())
            ctx.object_digest = digest_bytes(pack_files(ctx.files))
            return passed(self, object=ctx.object_digest, packed=len(ctx.files))
        if not builds.runs_here(candidate.isa, ctx.cpu_flags):
            reason = f"isa: this host cannot run {candidate.isa}"
            return GateResult(self.name, self.version, GateOutcome.INCONCLUSIVE, reason)
        try:
            built = builds.build(candidate, ctx.build_cache, cancelled=ctx.cancelled)
        except builds.NoCompiler as error:
            return GateResult(self.name, self.version, GateOutcome.INFRA_ERROR, f"compiler: {error}")
        ctx.check_cancelled()
        if built.object is None:
            return failed(self, "compile: the compiler refused it", diagnostics=built.diagnostics, key=built.key)
        data = built.object.read_bytes()
        ctx.object_digest = digest_bytes(data)
        ctx.files = [("kernel.so", data)]
        symbols = undefined_symbols(str(built.object))
        if symbols is None:
            return GateResult(self.name, self.version, GateOutcome.INFRA_ERROR, "nm: its symbols cannot be read")
        allowed = ctx.task.allow_library | ctx.policy.extra_allowed
        tiles = candidate.isa.startswith("amx")
        banned = {s: why for s in symbols if (why := banned_symbol(s, allowed, tiles=tiles))}
        evidence = {
            "object": ctx.object_digest, "key": built.key, "cached": built.cached, "bytes": len(data),
            "compiler": builds.compiler()[1], "flags": [*builds.COMMON_FLAGS, *builds.ISA_FLAGS[candidate.isa]],
            "symbols": symbols, "banned": banned, "warnings": built.diagnostics[-2000:],
        }  # fmt: skip
        if banned and self._symbols:
            symbol, why = next(iter(banned.items()))
            return failed(self, f"symbols: {symbol} ({why})", **evidence)
        return passed(self, **evidence)


def undefined_symbols(path: str) -> list[str] | None:
    """Names that a shared object imports, without their versions; None when they cannot be read."""
    nm = shutil.which("nm")
    if nm is None:
        return None
    done = run([nm, "-D", "--undefined-only", "--format=posix", path], limits=Limits(wall_s=20))
    if not done.ok:
        return None
    return sorted({line.split()[0].split("@")[0] for line in done.stdout.splitlines() if line.strip()})
