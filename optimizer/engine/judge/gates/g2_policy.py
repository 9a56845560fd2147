"""G2: the sources, read. What no honest kernel contains fails here; the rest is evidence for the reader."""

from __future__ import annotations

from dataclasses import asdict

from optimizer.engine.judge.context import JudgeContext, failed, passed
from optimizer.engine.judge.rules import Finding, scan_cpp
from optimizer.engine.judge.verdict import GateResult

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
                findings += scan_cpp(name, text)
            else:
                from optimizer.engine.judge.rules_python import scan_python

                allowed = ctx.task.allow_library | ctx.policy.extra_allowed
                findings += scan_python(name, text, triton=ctx.candidate.kind == "triton", allowed=allowed)
        shown = [asdict(f) for f in findings[:MAX_FINDINGS]]
        hard = next((f for f in findings if f.hard), None)
        if hard is not None:
            return failed(self, f"{hard.rule}: {hard.file}:{hard.line}: {hard.text}", rules=1, findings=shown)
        return passed(self, rules=1, findings=shown)
