"""The wall: what the probe reports, what a candidate process can and cannot do, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from suite.cases import softmax

from optimizer.engine.candidate import Candidate
from optimizer.engine.judge import GateOutcome, Outcome, SandboxPool, Verdict, judge, probe_wall
from optimizer.engine.judge.sandbox import Sandbox, SandboxFault
from optimizer.engine.judge.wall import WallReport, base_python, command, find_bwrap
from optimizer.engine.tasks.base import KernelTask
from rackforge_runtime.runner.confine import Held, seccomp_program

ROOT = Path(__file__).parents[3]
JudgeOne = Callable[..., Verdict]
ALL = Held.NAMESPACES | Held.PRIVATE_TMP | Held.SECCOMP | Held.NON_ROOT | Held.NO_NEW_PRIVS


@pytest.mark.sandbox
def test_the_probe_says_what_holds(pool: SandboxPool) -> None:
    report = probe_wall()
    assert report.certifies
    assert report.document()["certifies"] is True
    assert report.as_root == (os.getuid() == 0)


@pytest.mark.sandbox
def test_everything_holds_for_a_candidate(pool: SandboxPool) -> None:
    with pool.sandbox("cpp") as sandbox, sandbox.spawn(files=[], input_bytes=1, output_bytes=1) as session:
        assert session.held & ALL == ALL
        status = Path(f"/proc/{session.pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        if os.getuid() == 0:  # not root outside either
            assert Path(f"/proc/{session.pid}").stat().st_uid != 0
        for space in ("user", "pid", "mnt", "ipc", "net", "uts"):
            assert Path(f"/proc/{session.pid}/ns/{space}").readlink() != Path(f"/proc/self/ns/{space}").readlink(), (
                space
            )


@pytest.mark.sandbox
def test_nothing_of_the_project_is_inside(pool: SandboxPool) -> None:
    with pool.sandbox("cpp") as sandbox, sandbox.spawn(files=[], input_bytes=1, output_bytes=1) as session:
        inside = Path(f"/proc/{session.pid}/root")
        try:
            (inside / "usr").stat()
        except OSError:
            pytest.skip("the candidate's root cannot be looked at from here")
        assert not (inside / str(ROOT / "optimizer").lstrip("/")).exists()
        assert not (inside / "home").exists()
        assert list((inside / "proc").iterdir()) == []


@pytest.mark.sandbox
def test_a_session_ends_with_all_it_started(pool: SandboxPool) -> None:
    with pool.sandbox("cpp") as sandbox:
        with sandbox.spawn(files=[], input_bytes=1, output_bytes=1) as session:
            pid = session.pid
            assert Path(f"/proc/{pid}").exists()
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().rpartition(") ")[2].startswith("Z")
        assert sandbox.alive


@pytest.mark.sandbox
def test_an_input_cannot_be_mapped_writable(pool: SandboxPool) -> None:
    import mmap

    with pool.sandbox("cpp") as sandbox, sandbox.spawn(files=[], input_bytes=1, output_bytes=1) as session:
        fd = session.inputs.read_only()
        with pytest.raises(PermissionError):
            mmap.mmap(fd, session.inputs.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(fd)
        with pytest.raises(PermissionError):
            os.ftruncate(session.outputs.fd, 0)


def test_a_sandbox_that_does_not_start_says_why() -> None:
    with pytest.raises(SandboxFault, match="no-such-bwrap"):
        Sandbox(kind="cpp", python=base_python(), bwrap="/no-such-bwrap")
    with pytest.raises(SandboxFault):
        Sandbox(kind="cpp", python=Path("/bin/false"), bwrap=None)


def test_without_a_wall_nothing_is_certified(tasks: dict[str, KernelTask], build_cache: Path) -> None:
    candidate = Candidate("test_softmax", "cpp", {n: t.encode() for n, t in softmax().items()})
    with SandboxPool(walled=False) as open_pool:
        verdict = judge(candidate, tasks["softmax"], build_cache=build_cache, pool=open_pool)
    assert verdict.outcome is Outcome.ACCEPT, verdict.reason
    assert not verdict.certified
    assert verdict.environment["walled"] is False


def test_python_candidates_without_a_serving_environment(tasks: dict[str, KernelTask], build_cache: Path) -> None:
    candidate = Candidate("test_softmax", "python", {"kernel.py": b"def run(i, o, s, t):\n    return None\n"})
    with SandboxPool(walled=False) as bare:
        verdict = judge(candidate, tasks["softmax"], build_cache=build_cache, pool=bare)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert "serving environment" in verdict.reason


@pytest.mark.parametrize("missing", ["bubblewrap", "non_root", "seccomp"])
def test_a_wall_with_a_hole_does_not_certify(missing: str) -> None:
    whole = {"bubblewrap": "0.8.0", "namespaces": True, "private_tmp": True, "landlock": 6, "seccomp": True,
             "non_root": True, "as_root": False}  # fmt: skip
    assert WallReport(**whole).certifies  # type: ignore[arg-type]
    assert not WallReport(**(whole | {missing: "" if missing == "bubblewrap" else False})).certifies  # type: ignore[arg-type]
    assert not WallReport(**whole, problem="does not start").certifies  # type: ignore[arg-type]


def test_the_command_binds_little_and_nothing_writable() -> None:
    args = command(bwrap="bwrap", kind="cpp", python=base_python(), control_fd=9)
    assert "--bind" not in args
    assert {"--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--clearenv"} <= set(args)
    assert "--die-with-parent" in args


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_well_formed(machine: str) -> None:
    program = seccomp_program(machine)
    assert program is not None
    assert len(program) % 8 == 0
    steps = [program[i : i + 8] for i in range(0, len(program), 8)]
    assert len(steps) < 4096
    for i, step in enumerate(steps):  # jumps stay inside
        code, jt, jf = int.from_bytes(step[:2], "little"), step[2], step[3]
        if code & 7 == 5:
            assert i + 1 + max(jt, jf) < len(steps)
    assert steps[-1][:2] == (6).to_bytes(2, "little")


def test_no_filter_for_a_machine_without_a_table() -> None:
    assert seccomp_program("s390x") is None


_AS_USER = """
import json, os, sys
from pathlib import Path
from optimizer.engine.candidate import Candidate
from optimizer.engine.judge import SandboxPool, judge, probe_wall
from optimizer.engine.tasks import load_task
task = load_task(sys.argv[1])
candidate = Candidate("test_softmax", "cpp", {"kernel.cpp": Path(sys.argv[2]).read_bytes()})
verdict = judge(candidate, task, build_cache=Path(sys.argv[3]))
print(json.dumps({"uid": os.getuid(), "report": probe_wall().document(), "verdict": verdict.document()}))
"""


@pytest.mark.sandbox
def test_works_as_an_ordinary_user(pool: SandboxPool, tmp_path: Path) -> None:
    bwrap = find_bwrap()[0]
    source = tmp_path / "kernel.cpp"
    source.write_text(softmax()["kernel.cpp"])
    done = subprocess.run(
        [bwrap, "--unshare-user", "--uid", "1000", "--gid", "1000", "--dev-bind", "/", "/", sys.executable, "-c",
         _AS_USER, str(Path(__file__).parent / "tasks" / "softmax"), str(source), str(tmp_path / "cache")],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uid"] == 1000
    assert found["report"]["as_root"] is False
    assert found["report"]["namespaces"]
    assert found["verdict"]["outcome"] == "accept", found["verdict"]["reason"]
    assert found["verdict"]["certified"]


@pytest.mark.sandbox
def test_no_process_is_left(judge_one: JudgeOne) -> None:
    source = softmax("for (;;) {}")["kernel.cpp"]
    verdict = judge_one(Candidate("test_softmax", "cpp", {"kernel.cpp": source.encode()}))
    assert verdict.outcome is Outcome.REJECT
    gate = verdict.gate("G4")
    assert gate is not None
    assert gate.outcome is GateOutcome.FAIL
    assert "hang" in gate.reason


def test_bubblewrap_is_found_where_it_is() -> None:
    assert bool(find_bwrap()[0]) == bool(shutil.which("bwrap") or (Path(sys.executable).parent / "bwrap").is_file())
