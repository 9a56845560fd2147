"""G2: the sources, read. What no honest kernel contains fails here; the rest is evidence for the reader."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from optimizer.engine.children import Limits, run
from optimizer.engine.judge import rules_python
from optimizer.engine.judge.context import JudgeContext, failed, passed
from optimizer.engine.judge.rules import Finding, scan_cpp
from optimizer.engine.judge.verdict import GateResult
from optimizer.engine.judge.wall import base_python

MAX_FINDINGS = 50


class Policy:
    """Static rules. A scanner alone catches few exploits: this gate is cheap, not sufficient."""

    name, version, title = "G2", 1, "policy"

    def check(self, ctx: JudgeContext) -> GateResult:
        findings: list[Finding] = []
        for name, data in sorted(ctx.candidate.files.items()):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                return failed(self, f"text: {name} is not UTF-8", rules=1)
            if "\0" in text:
                return failed(self, f"text: {name} holds NUL characters", rules=1)
            if ctx.candidate.kind == "cpp":
                findings += scan_cpp(name, text, tiles=ctx.candidate.isa.startswith("amx"))
                continue
            scanned = scan_python(name, data, ctx)
            if scanned is None:
                return failed(self, f"text: {name} cannot be parsed in bounded time and memory", rules=1)
            findings += scanned
        shown = [asdict(f) for f in findings[:MAX_FINDINGS]]
        hard = next((f for f in findings if f.hard), None)
        if hard is not None:
            return failed(self, f"{hard.rule}: {hard.file}:{hard.line}: {hard.text}", rules=1, findings=shown)
        return passed(self, rules=1, findings=shown)


def scan_python(name: str, data: bytes, ctx: JudgeContext) -> list[Finding] | None:
    """What the rules find in one Python file, read in a child; None when the child did not survive it."""
    allowed = ",".join(sorted(ctx.task.allow_library | ctx.policy.extra_allowed))
    own = ",".join(sorted({n.split("/")[0].removesuffix(".py") for n in ctx.candidate.files} - {"kernel"}))
    script = str(Path(rules_python.__file__))
    done = run(
        [str(base_python()), "-I", "-S", script, name, ctx.candidate.kind, allowed, own],
        limits=Limits(wall_s=20, cpu_s=20, address_space=2 << 30),
        stdin=data,
        cancelled=ctx.cancelled,
    )
    ctx.check_cancelled()
    if not done.ok:
        return None
    return [Finding(**f) for f in json.loads(done.stdout)]
