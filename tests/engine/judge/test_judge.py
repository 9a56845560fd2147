"""The engine: progress, cancelling, envelopes, baselines, rooflines, replays, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from suite.cases import affine, softmax

from optimizer.engine.candidate import Candidate
from optimizer.engine.judge import (
    Cancelled,
    JudgePolicy,
    Outcome,
    Roofline,
    SandboxPool,
    Verdict,
    covers,
    judge,
    measured_envelope,
)
from optimizer.engine.judge.cli import judge_command, task_group
from optimizer.engine.judge.gates.g0_task import vet
from optimizer.engine.judge.replay import NotReplayable, replay
from optimizer.engine.judge.rules import banned_symbol, scan_cpp
from optimizer.engine.tasks.base import Budget, KernelTask

HERE = Path(__file__).parent
JudgeOne = Callable[..., Verdict]
REPEAT = "for (int i = 0; i < {n}; i++) honest(in, out, threads);"


def cpp(files: Mapping[str, str], task: str = "test_softmax", **more: object) -> Candidate:
    return Candidate(task, "cpp", {n: t.encode() for n, t in files.items()}, **more)  # type: ignore[arg-type]


@pytest.mark.sandbox
def test_a_verdict_carries_what_it_rests_on(judge_one: JudgeOne) -> None:
    verdict = judge_one(cpp(softmax()))
    document = json.loads(verdict.canonical())
    assert [g["gate"] for g in document["gates"]] == ["G0", "G1", "G2", "G3", "G4", "G5", "G6", "G7"]
    assert len(bytes.fromhex(document["seed"])) == 32
    by_name = {g["gate"]: g["evidence"] for g in document["gates"]}
    assert by_name["G1"]["harness"].startswith("sha256:")
    assert by_name["G3"]["object"] == document["object"]
    assert by_name["G4"]["comparisons"] >= 10
    assert by_name["G5"]["perturbed"] == ["x", "scale"]
    assert by_name["G6"]["statics"] in ("steady", "none")
    for row in by_name["G7"]["shapes"].values():
        assert len(row["samples_ns"]) == len(row["claimed_ns"]) == 5
    assert by_name["G7"]["roofline"].startswith("skipped")
    assert document["environment"]["held"]


@pytest.mark.sandbox
def test_the_judged_object_is_the_kept_object(
    pool: SandboxPool, tasks: dict[str, KernelTask], build_cache: Path
) -> None:
    from rackforge_runtime.canonical import digest_bytes

    kept: dict[str, bytes] = {}

    def store(data: bytes) -> str:
        kept[digest_bytes(data)] = data
        return digest_bytes(data)

    verdict = judge(cpp(softmax()), tasks["softmax"], build_cache=build_cache, store=store, pool=pool)
    assert kept[verdict.object_digest].startswith(b"\x7fELF")


@pytest.mark.sandbox
def test_seeds_differ_and_a_known_one_does_not_certify(
    pool: SandboxPool, tasks: dict[str, KernelTask], build_cache: Path
) -> None:
    def once(seed: bytes | None) -> Verdict:
        return judge(cpp(softmax()), tasks["softmax"], build_cache=build_cache, pool=pool, seed=seed)

    first, second, known = once(None), once(None), once(bytes(32))
    assert first.seed != second.seed
    assert (first.certified, known.certified) == (True, False)


@pytest.mark.sandbox
def test_cancelling_stops_it(pool: SandboxPool, tasks: dict[str, KernelTask], build_cache: Path) -> None:
    calls = iter(range(10**6))
    with pytest.raises(Cancelled):
        judge(
            cpp(softmax()), tasks["softmax"], build_cache=build_cache, pool=pool, cancelled=lambda: next(calls) > 20
        )
    hanging = cpp(softmax("for (;;) {}"))
    calls = iter(range(10**6))
    with pytest.raises(Cancelled):
        judge(hanging, tasks["softmax"], build_cache=build_cache, pool=pool, cancelled=lambda: next(calls) > 6)


@pytest.mark.sandbox
def test_progress_names_every_gate(pool: SandboxPool, tasks: dict[str, KernelTask], build_cache: Path) -> None:
    seen: list[str] = []
    judge(
        cpp(softmax()), tasks["softmax"], build_cache=build_cache, pool=pool, on_progress=lambda s, _: seen.append(s)
    )
    assert list(dict.fromkeys(seen)) == [
        "task vetting", "intake", "policy", "compile", "correctness", "adversarial", "provenance", "micro timing",
        "timing",
    ]  # fmt: skip


@pytest.mark.sandbox
def test_much_faster_than_the_baseline_goes_to_a_person(judge_one: JudgeOne) -> None:
    slow = cpp(softmax(REPEAT.format(n=4000)))
    fast = cpp(softmax())
    verdict = judge_one(fast, policy=JudgePolicy(timed_calls=5, baseline=slow))
    assert verdict.outcome is Outcome.QUARANTINE, verdict.reason
    assert "too fast" in verdict.reason


@pytest.mark.sandbox
def test_a_kernel_that_is_faster_within_reason_is_accepted(judge_one: JudgeOne) -> None:
    """Eight times the work in the baseline: a twin."""
    work = cpp(softmax(REPEAT.format(n=300)))
    slower = cpp(softmax(REPEAT.format(n=2400)))
    verdict = judge_one(work, policy=JudgePolicy(timed_calls=7, baseline=slower, quarantine_speedup=40.0))
    assert verdict.outcome is Outcome.ACCEPT, verdict.reason
    assert min(verdict.speedups.values()) > 1.0


@pytest.mark.sandbox
def test_no_time_beats_the_roofline(judge_one: JudgeOne) -> None:
    impossible = Roofline(bytes_per_s=1.0, flops_per_s=1.0)
    verdict = judge_one(cpp(softmax()), policy=JudgePolicy(timed_calls=5, roofline=impossible))
    assert verdict.outcome is Outcome.REJECT
    assert "roofline" in verdict.reason
    possible = Roofline(bytes_per_s=1e15, flops_per_s=1e18)
    assert judge_one(cpp(softmax()), policy=JudgePolicy(timed_calls=5, roofline=possible)).outcome is Outcome.ACCEPT


@pytest.mark.sandbox
def test_no_speed_is_told_of_a_rejected_kernel(judge_one: JudgeOne) -> None:
    verdict = judge_one(cpp(softmax("")), policy=JudgePolicy(timed_calls=5, baseline=cpp(softmax())))
    assert verdict.outcome is Outcome.REJECT
    assert verdict.speedups == {}


@pytest.mark.sandbox
def test_shapes_outside_of_the_envelope_are_not_spoken_of(judge_one: JudgeOne) -> None:
    only_four = softmax("if (M != 4) return RF_UNSUPPORTED; honest(in, out, threads);")
    verdict = judge_one(cpp(only_four, envelope={"m_min": 4, "m_max": 4}))
    assert verdict.outcome is Outcome.ACCEPT, verdict.reason
    assert [dict(s) for s in verdict.shapes] == [{"M": 4, "N": 64}]
    assert judge_one(cpp(only_four)).reason.startswith("G4: declined")


def test_envelopes(tasks: dict[str, KernelTask]) -> None:
    task = tasks["affine"]
    shape = {"M": 8, "N": 32, "K": 64}
    assert covers({}, task, shape)
    assert covers({"isa": "avx2", "m_max": 8}, task, shape)
    assert not covers({"m_max": 7}, task, shape)
    assert covers({"shapes": [{"N": 1, "K": 1}, {"N": 32, "K": 64, "m_min": 1, "m_max": 8}]}, task, shape)
    assert not covers({"shapes": [{"N": 32, "K": 65}]}, task, shape)
    assert not covers({"shapes": []}, task, shape)


@pytest.mark.sandbox
def test_a_measured_envelope_is_what_was_measured(judge_one: JudgeOne, tasks: dict[str, KernelTask]) -> None:
    verdict = judge_one(cpp(affine(), "test_affine"))
    assert measured_envelope(verdict, tasks["affine"]) == {"shapes": [{"K": 64, "N": 32, "m_min": 2, "m_max": 8}]}
    rejected = judge_one(cpp(affine(""), "test_affine"))
    with pytest.raises(ValueError, match="no envelope"):
        measured_envelope(rejected, tasks["affine"])


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"budget": Budget(k=1e9, floor_ulps=1e9)}, "would pass as zeros"),
        ({"reference": lambda i: {"y": np.ones(np.shape(i["x"]))}}, "would pass as zeros"),
        (
            {
                "reference": lambda i: {"y": np.asarray(i["x"], np.float64)},
                "working": lambda i: {"y": i["x"]},
            },
            "would pass as a copy of x",
        ),
    ],
)
def test_a_task_that_proves_nothing_is_refused(
    tasks: dict[str, KernelTask], broken: dict[str, object], why: str
) -> None:
    problem, _ = vet(replace(tasks["softmax"], **broken), {"M": 4, "N": 64})  # type: ignore[arg-type]
    assert why in problem


def test_a_task_with_an_input_that_does_nothing_is_refused(tasks: dict[str, KernelTask]) -> None:
    task = tasks["softmax"]
    still = replace(
        task,
        reference=lambda i: task.reference({**i, "scale": np.ones(())}),
        working=lambda i: task.working({**i, "scale": np.ones(())}),
    )
    assert vet(still, {"M": 4, "N": 64})[0] == "no output depends on scale"
    assert vet(task, {"M": 4, "N": 64})[0] == ""


@pytest.mark.sandbox
def test_a_worthless_task_is_no_candidates_fault(
    pool: SandboxPool, tasks: dict[str, KernelTask], build_cache: Path
) -> None:
    lax = replace(tasks["softmax"], budget=Budget(k=1e9, floor_ulps=1e9))
    verdict = judge(cpp(softmax()), lax, build_cache=build_cache, pool=pool)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert verdict.reason.startswith("G0: task:")


@pytest.mark.sandbox
def test_a_replay_agrees_or_says_why(pool: SandboxPool, tasks: dict[str, KernelTask], build_cache: Path) -> None:
    wrong = cpp(softmax("honest(in, out, threads); if (N == 256) Y[0] = 0;"))
    for candidate in (cpp(softmax()), wrong):
        first = judge(candidate, tasks["softmax"], build_cache=build_cache, pool=pool)
        again = replay(first.document(), candidate, tasks["softmax"], build_cache=build_cache, pool=pool)
        assert again.agrees, again.differences
        assert not again.verdict.certified
    forged = first.document() | {"outcome": "accept"}
    told = replay(forged, wrong, tasks["softmax"], build_cache=build_cache, pool=pool)
    assert told.differences == ("outcome: 'accept' then, 'reject' now",)


def test_what_cannot_be_replayed_says_so(tasks: dict[str, KernelTask], build_cache: Path) -> None:
    candidate, task = cpp(softmax()), tasks["softmax"]
    with pytest.raises(NotReplayable, match="not a verdict"):
        replay({}, candidate, task, build_cache=build_cache)
    schema = "https://rackforge.dev/verdict/v1"
    with pytest.raises(NotReplayable, match="the verdict is on"):
        replay({"schema": schema, "candidate": "sha256:x"}, candidate, task, build_cache=build_cache)


def test_a_candidate_of_another_task_is_turned_away(judge_one: JudgeOne, tasks: dict[str, KernelTask]) -> None:
    verdict = judge_one(cpp({"kernel.cpp": "x"}, "test_softmax", isa="no-such-isa"))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "cannot run" in verdict.reason


def test_the_tile_request_is_the_only_system_call() -> None:
    asks = "int f() { return syscall(SYS_arch_prctl, 0x1023, 18); }"
    assert [f.rule for f in scan_cpp("k", asks, tiles=True) if f.hard] == []
    assert [f.rule for f in scan_cpp("k", asks) if f.hard] == ["raw system call"]
    other = asks + " int g() { return syscall(57); }"
    assert [f.rule for f in scan_cpp("k", other, tiles=True) if f.hard] == ["raw system call"]
    assert banned_symbol("syscall", frozenset(), tiles=True) == ""
    assert banned_symbol("syscall", frozenset()) == "tracing"


@pytest.mark.parametrize(
    "symbol",
    ["expf", "memcpy", "GOMP_parallel", "omp_get_thread_num", "_Znwm", "__cxa_finalize", "__stack_chk_fail",
     "_ZNSt6thread4joinEv", "pthread_create", "__cxa_guard_acquire", "sincosf", "aligned_alloc"],
)  # fmt: skip
def test_what_honest_kernels_import_is_allowed(symbol: str) -> None:
    assert banned_symbol(symbol, frozenset()) == ""


@pytest.mark.parametrize(
    ("symbol", "why"),
    [("dlopen", "dynamic loading"), ("fork", "processes"), ("clock_gettime", "clocks"), ("getenv", "environment"),
     ("cblas_sgemm", "vendor libraries"), ("sgemm_", "vendor libraries"), ("_ZN2at4_ops2mm4callE", "vendor libraries"),
     ("PyRun_SimpleString", "the interpreter"), ("fopen64", "files"), ("_exit", "leaving"),
     ("_ZNSt6chrono3_V212steady_clock3nowEv", "clocks"), ("ptrace", "tracing"), ("socket", "network")],
)  # fmt: skip
def test_what_none_needs_is_not(symbol: str, why: str) -> None:
    assert banned_symbol(symbol, frozenset()) == why


def test_a_task_may_allow_a_library() -> None:
    assert banned_symbol("cblas_sgemm", frozenset({"cblas"})) == ""


# --- command line


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.cpp"
    path.write_text(softmax()["kernel.cpp"])
    return path


def _run(*args: str | Path, cache: Path) -> tuple[int, str]:
    done = CliRunner().invoke(judge_command, [str(a) for a in (*args, "--build-cache", cache)])
    return done.exit_code, done.stdout


@pytest.mark.sandbox
def test_the_command_says_and_writes_the_verdict(
    pool: SandboxPool, kernel: Path, tmp_path: Path, build_cache: Path
) -> None:
    task, out = HERE / "tasks" / "softmax", tmp_path / "v.json"
    code, text = _run(
        kernel, "--task", task, "--json", "--output", out, "--evidence", tmp_path / "e", cache=build_cache
    )
    assert code == 0
    document = json.loads(text)
    assert json.loads(out.read_bytes()) == document
    assert (tmp_path / "e" / document["object"].removeprefix("sha256:")).read_bytes()[:4] == b"\x7fELF"
    code, text = _run(kernel, "--task", task, "--replay", out, cache=build_cache)
    assert (code, text) == (0, "agrees\n")


@pytest.mark.sandbox
def test_the_command_signs(pool: SandboxPool, kernel: Path, tmp_path: Path, build_cache: Path) -> None:
    from rackforge_runtime.signing import VERDICT, SigningKey, verify

    key = SigningKey.load_or_create(tmp_path / "key.pem")
    out = tmp_path / "v.json"
    code, _ = _run(
        kernel, "--task", HERE / "tasks" / "softmax", "--output", out, "--sign", tmp_path / "key.pem", "--no-timing",
        cache=build_cache,
    )  # fmt: skip
    assert code == 0
    document = json.loads(out.read_bytes())
    envelope = json.loads((tmp_path / "v.dsse.json").read_bytes())
    statement = verify(envelope, [key.public], predicate_type=VERDICT, subject_digest=document["object"])
    assert statement.predicate == document


@pytest.mark.sandbox
def test_the_command_rejects_with_one(pool: SandboxPool, tmp_path: Path, build_cache: Path) -> None:
    wrong = tmp_path / "kernel.cpp"
    wrong.write_text(softmax("")["kernel.cpp"])
    code, text = _run(wrong, "--task", HERE / "tasks" / "softmax", cache=build_cache)
    assert code == 1
    assert text.startswith("REJECT  G4: wrong")


def test_wrong_use_is_told(tmp_path: Path, kernel: Path) -> None:
    assert _run(kernel, cache=tmp_path)[0] == 64
    assert _run(kernel, "--task", "no-such-task", cache=tmp_path)[0] == 64


def test_tasks_are_listed_and_shown() -> None:
    runner = CliRunner()
    listed = runner.invoke(task_group, ["list"])
    assert "linear_bf16_cpu" in listed.stdout
    shown = runner.invoke(task_group, ["show", str(HERE / "tasks" / "affine")])
    assert "rf_prepare(consts = {w, b}, 2, state)" in shown.stdout
    assert "run(inputs=(x,), outputs=(y,), state, threads)" in shown.stdout
    data = json.loads(runner.invoke(task_group, ["show", str(HERE / "tasks" / "affine"), "--json"]).stdout)
    assert data["inputs"][1] == {"name": "w", "dims": ["N", "K"], "dtype": "bfloat16", "constant": True}
    assert runner.invoke(task_group, ["show", "nothing"]).exit_code == 64
