"""G1: what was handed in, by name, size and hash, and which judge looks at it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from optimizer.engine.candidate import CandidateError, check_files
from optimizer.engine.judge.context import JudgeContext, failed, passed
from optimizer.engine.judge.verdict import GateResult
from optimizer.engine.judge.wall import RUNNER
from rackforge_runtime.canonical import digest_bytes, digest_file, digest_json

MAX_TOTAL_BYTES = 4 << 20


@lru_cache(maxsize=1)
def harness_digest() -> str:
    """Digest of every source file of the judge and of the runner."""
    judge = Path(__file__).parents[1]
    files = sorted((*judge.rglob("*.py"), *RUNNER.rglob("*.py")))
    return digest_json({f"{p.parent.name}/{p.name}": digest_file(p) for p in files})


class Intake:
    """Only the allow-listed files, sizes, and hashes."""

    name, version, title = "G1", 1, "intake"

    def check(self, ctx: JudgeContext) -> GateResult:
        candidate = ctx.candidate
        try:
            check_files(candidate)
        except CandidateError as error:
            return failed(self, f"files: {error}")
        total = sum(len(data) for data in candidate.files.values())
        if total > MAX_TOTAL_BYTES:
            return failed(self, f"files: {total} bytes in all, more than {MAX_TOTAL_BYTES}")
        if candidate.task != ctx.task.name:
            return failed(self, f"task: made for {candidate.task!r}, judged for {ctx.task.name!r}")
        hashes = {name: digest_bytes(data) for name, data in sorted(candidate.files.items())}
        return passed(self, files=len(hashes), hashes=hashes, bytes=total, harness=harness_digest())
