#!/usr/bin/env python3
"""Set Rackforge up: check the machine, make or finish the two virtual environments. Standard library only.

    python3 scripts/bootstrap.py [--platform-only] [--check]

Idempotent and quick when nothing is to do. An environment is stamped with the digest of its lock files when it
is complete; one that was left half made is made anew.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import prerequisites

ROOT = Path(__file__).resolve().parent.parent


class SetupFailed(Exception):
    """Setting up cannot go on; the text says what to do."""


@dataclass(frozen=True)
class Environment:
    """One virtual environment: where, from which lock files (in this order), with which packages of ours."""

    title: str
    folder: Path
    locks: tuple[Path, ...]
    projects: tuple[Path, ...]
    proof: str  # Python that must run in it when it is complete
    takes: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def unfinished(self) -> Path:
        """Exists while packages are being installed."""
        return self.folder / ".unfinished"

    def stamp(self, name: str) -> Path:
        return self.folder / f".{name}.sha256"

    def is_current(self, name: str, files: Iterable[Path]) -> bool:
        try:
            return self.stamp(name).read_text() == digest(files)
        except OSError:
            return False

    @property
    def project_files(self) -> tuple[Path, ...]:
        return tuple(project / "pyproject.toml" for project in self.projects)

    @property
    def complete(self) -> bool:
        return (
            self.python.exists()
            and not self.unfinished.exists()
            and self.is_current("locks", self.locks)
            and self.is_current("projects", self.project_files)
        )


def environments(root: Path) -> list[Environment]:
    """The platform's environment and the serving one of a checkout."""
    requirements = root / "requirements"
    return [
        Environment(
            "platform",
            root / ".venv",
            (requirements / "platform.lock",),
            (root / "runtime", root),
            "import django, celery, numpy, rackforge.config, rackforge_runtime",
            "about a minute",
        ),
        Environment(
            "serving",
            root / ".venv-serving",
            (requirements / "torch.lock", requirements / "serving.lock"),
            (root / "runtime",),
            "import torch, vllm.platforms; assert vllm.platforms.current_platform.is_cpu()",
            "about three minutes, 3.4 GB",
        ),
    ]


def digest(files: Iterable[Path]) -> str:
    """SHA-256 over the folders, names and bytes of files."""
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path}\n".encode() + path.read_bytes())
    return total.hexdigest()


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let one set-up of this checkout run at a time; a second one waits."""
    folder = root / "var"
    folder.mkdir(exist_ok=True)
    with (folder / ".setup.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up of this checkout is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def make(environment: Environment, python: str) -> None:
    """Make an environment, or bring it up to date. Raises SetupFailed; stopped at any point, a rerun mends it."""
    if environment.complete:
        return
    started = time.monotonic()
    if environment.folder.exists() and not _sound(environment):
        say(f"{environment.folder.name}: left half made; starting anew")
        shutil.rmtree(environment.folder)
    if not environment.folder.exists():
        say(f"{environment.folder.name}: making the {environment.title} environment ({environment.takes})")
        _run([python, "-m", "venv", str(environment.folder)], "making the virtual environment")
    if not environment.is_current("locks", environment.locks):
        environment.unfinished.touch()
        for lock in environment.locks:
            _pip(environment, ["--no-deps", "--require-hashes", "-r", str(lock)], _packages(lock))
        environment.unfinished.unlink()
    for project in environment.projects:
        _pip(environment, ["--no-deps", "--no-build-isolation", "--no-index", "-e", str(project)], 0)
    _prove(environment)
    environment.stamp("projects").write_text(digest(environment.project_files))
    environment.stamp("locks").write_text(digest(environment.locks))
    say(f"{environment.folder.name}: ready after {time.monotonic() - started:.0f} s")


def _sound(environment: Environment) -> bool:
    """Whether packages can be added to what is there: not interrupted, not moved, its Python still runs."""
    if environment.unfinished.exists():
        return False
    try:
        done = subprocess.run(
            [str(environment.python), "-c", "import sys, pip; print(sys.prefix, *sys.version_info[:2])"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.split() == [str(environment.folder), *map(str, prerequisites.PYTHON)]


def _packages(lock: Path) -> int:
    return sum(1 for line in lock.read_text().splitlines() if line[:1].isalnum())


def _pip(environment: Environment, arguments: list[str], total: int) -> None:
    """pip install with a line of progress for every package it gets hold of."""
    command = [
        str(environment.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check",
        "--progress-bar", "off", "--no-warn-script-location", *arguments,
    ]  # fmt: skip
    live = sys.stdout.isatty()
    lines: list[str] = []
    count = 0
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        for line in process.stdout:
            lines.append(line)
            if total and line.startswith(("Collecting ", "Requirement already satisfied: ")):
                count += 1
                name = line.removeprefix("Requirement already satisfied: ").removeprefix("Collecting ").split("==")[0]
                if live:
                    print(f"\r\033[K  {count}/{total} {name}", end="", flush=True)
                elif count % 25 == 0:
                    say(f"  {count}/{total} packages")
            elif line.startswith("Installing collected packages"):
                print(
                    "\r\033[K" if live else "",
                    f"  unpacking {count} packages",
                    sep="",
                    end="" if live else "\n",
                    flush=True,
                )
        returncode = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        if live:
            print("\r\033[K", end="", flush=True)
    if returncode != 0:
        end = "".join(line for line in lines if not line.startswith(("Collecting", "  Downloading", "  Using")))[
            -3000:
        ]
        raise SetupFailed(f"pip could not install into {environment.folder}:\n{end}{_advice(end)}")


def _advice(output: str) -> str:
    if "No space left" in output:
        return "The disk is full: make room and run this again."
    if "torch==" in output and ("No matching distribution" in output or "DO NOT MATCH" in output):
        return (
            "pip found no fitting torch: name the index with torch's CPU builds in PIP_EXTRA_INDEX_URL "
            "(docs/environments.md) and run this again."
        )
    return "Look at the lines above (is a package index reachable?) and run this again: it goes on."


def _prove(environment: Environment) -> None:
    done = subprocess.run(
        [str(environment.python), "-c", environment.proof],
        capture_output=True, text=True, check=False, cwd=ROOT, stdin=subprocess.DEVNULL,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    if done.returncode == 0:
        return
    hint = ""
    if environment.title == "serving":
        hint = (
            "\nIs it a CUDA build of torch (libcudart, libcudnn missing)? Then name the index with torch's CPU "
            "builds in PIP_EXTRA_INDEX_URL (docs/environments.md), remove .venv-serving and run this again."
        )
    raise SetupFailed(f"the {environment.title} environment does not work:\n{done.stderr[-2000:]}{hint}")


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SetupFailed(f"{what} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def report(missing: list[prerequisites.Missing]) -> bool:
    """Say what is missing; whether Rackforge can go on."""
    fatal = [item for item in missing if item.required]
    for item in missing:
        print(("missing: " if item.required else "note: ") + item.text(), file=sys.stderr, flush=True)
    if fatal:
        names = ", ".join(item.name for item in fatal)
        print(f"\nRackforge cannot be set up on this machine yet: {names}.", file=sys.stderr, flush=True)
    return not fatal


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--platform-only", action="store_true", help="leave the serving environment out")
    parser.add_argument("--check", action="store_true", help="check the machine and change nothing")
    options = parser.parse_args(arguments)

    wanted = environments(root)[: 1 if options.platform_only else None]
    if not options.check:
        prerequisites.install_debian_packages()
    ready = all(environment.complete for environment in wanted)
    missing = prerequisites.check(root, disk=prerequisites.RUN_DISK if ready else prerequisites.SETUP_DISK)
    if not report(missing):
        return 1
    if options.check:
        return 0
    interpreter, _ = prerequisites.find_python()
    assert interpreter is not None  # noqa: S101 - the check above insists on one
    try:
        with alone(root):
            for environment in wanted:
                make(environment, interpreter.path)
    except SetupFailed as failure:
        print(f"\n{failure}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the next run goes on", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
