"""Everything that must hold before a change is good: `make test`. Runs in the platform's environment.

    .venv/bin/python scripts/check.py [--fast] [-- pytest arguments]

Linters and checks first, then the tests in two goes: those that may share the machine two at a time, then
those that start a real vLLM server, one after another, since they want it to themselves. Nothing stops at the
first failure; the last lines name what failed and add the tests up.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NO_TESTS = 5  # pytest's exit status when a selection is empty
OPENAPI = Path("docs/openapi.json")


@dataclass
class Tally:
    """Tests of all goes together, and the names of what failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def add_report(self, report: Path) -> None:
        """Count the tests of a JUnit report."""
        for suite in ET.parse(report).getroot().iter("testsuite"):  # noqa: S314 - our own file
            count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
            failed = count["failures"] + count["errors"]
            self.failed += failed
            self.skipped += count["skipped"]
            self.passed += count["tests"] - failed - count["skipped"]

    def line(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def step(
    tally: Tally, title: str, command: list[str], environment: dict[str, str], *, fine: tuple[int, ...] = (0,)
) -> int:
    """Run one check, showing its output; a status other than `fine` is a failure."""
    print(f"\n== {title}", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)  # pytest takes its servers and databases down
        process.wait()
        raise
    if status not in fine:
        tally.failures.append(f"{title} (exit status {status})")
    print(f"-- {title}: {'ok' if status in fine else 'FAILED'}, {time.monotonic() - started:.0f} s", flush=True)
    return status


def tests(tally: Tally, title: str, arguments: list[str], environment: dict[str, str], scratch: Path) -> None:
    """One go of pytest."""
    report = scratch / f"{len(list(scratch.iterdir()))}.xml"
    command = [str(BIN / "python"), "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
    step(tally, title, command, environment, fine=(0, NO_TESTS))
    if report.exists():
        tally.add_report(report)


def static(tally: Tally, environment: dict[str, str], scratch: Path) -> None:
    """Linters, types, layers, migrations, the committed API description."""
    tool = {name: str(BIN / name) for name in ("ruff", "mypy", "lint-imports", "python")}
    step(tally, "lint", [tool["ruff"], "check", "."], environment)
    step(tally, "format", [tool["ruff"], "format", "--check", "."], environment)
    step(tally, "types", [tool["mypy"]], environment)
    step(tally, "types of scripts", [tool["mypy"], "scripts"], environment | {"MYPYPATH": "scripts"})
    step(tally, "layers", [tool["lint-imports"]], environment)
    # The check of the history would want a database; what is asked is whether models and files agree.
    quiet = ["-W", "ignore::RuntimeWarning"]
    step(
        tally,
        "migrations",
        [tool["python"], *quiet, "manage.py", "makemigrations", "--check", "--dry-run"],
        environment,
    )
    if (ROOT / OPENAPI).exists():
        made = scratch / "openapi.json"
        command = ["manage.py", "spectacular", "--format", "openapi-json", "--file", str(made)]
        if step(tally, "API description", [tool["python"], *command], environment) == 0:
            same = ["diff", "-u", str(OPENAPI), str(made)]
            step(tally, f"API description is {OPENAPI} (`make openapi` renews it)", same, environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--fast", action="store_true", help="leave out the tests that start a real vLLM server")
    parser.add_argument("pytest", nargs="*", help="further arguments for pytest")
    options = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="rf-check-") as folder:
        scratch = Path(folder)
        (scratch / "reports").mkdir()
        environment = {
            **os.environ,
            "RACKFORGE_HOME": str(scratch / "home"),
            "RACKFORGE_SECRET_KEY": "only for checks",
        }
        for name in ("DATABASE_URL", "BROKER_URL", "RACKFORGE_PORT", "RACKFORGE_HOST"):
            environment.pop(name, None)
        try:
            static(tally, environment, scratch)
            fast = ["-m", "not serving", "-n", "2", *options.pytest]
            tests(tally, "tests", fast, environment, scratch / "reports")
            if not options.fast:
                slow = ["-m", "serving", *options.pytest]
                tests(tally, "tests on real vLLM", slow, environment, scratch / "reports")
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
            return 130
    print()
    for failure in tally.failures:
        print(f"FAILED: {failure}")
    print(tally.line(), flush=True)
    return 1 if tally.failures or tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
