"""`rackforge judge` and `rackforge task`: the judge for people and scripts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from optimizer.engine.candidate import SOURCE_SUFFIXES, CandidateError, load_candidate
from optimizer.engine.judge.engine import judge
from optimizer.engine.judge.policy import JudgePolicy
from optimizer.engine.judge.replay import NotReplayable, replay
from optimizer.engine.judge.verdict import Verdict
from optimizer.engine.tasks import UnknownTask, builtin_tasks, load_task
from optimizer.engine.tasks.base import KernelTask, TensorSpec
from rackforge_runtime.canonical import digest_bytes


def default_cache() -> Path:
    """Where objects are kept between runs: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rackforge" / "builds"


def default_serving_python() -> Path | None:
    """RACKFORGE_SERVING_PYTHON, else the environment beside the working folder, if there is one."""
    named = os.environ.get("RACKFORGE_SERVING_PYTHON")
    path = Path(named) if named else Path.cwd() / ".venv-serving" / "bin" / "python"
    return path if path.exists() else None


def evidence_store(folder: Path) -> Callable[[bytes], str]:
    """Keeps pieces of evidence as files named by their digest."""

    def store(data: bytes) -> str:
        digest = digest_bytes(data)
        path = folder / digest.removeprefix("sha256:")
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            scratch = path.with_name(f".{path.name}.{os.getpid()}")
            scratch.write_bytes(data)
            scratch.replace(path)
        return digest

    return store


def parse_shape(text: str) -> dict[str, int]:
    """`M=8,N=5632,K=1024` -> axes."""
    try:
        return {k.strip(): int(v) for k, _, v in (part.partition("=") for part in text.split(","))}
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: write axes as M=8,N=5632,K=1024") from error


@click.command("judge")
@click.argument("candidate", type=click.Path(exists=True, path_type=Path))
@click.option("--task", "task_name", help="Task by name, or a folder with a task.py. Default: the candidate's own.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict document.")
@click.option("--shape", "shapes", multiple=True, help="Judge at this shape (M=8,N=64); may be repeated.")
@click.option("--baseline", type=click.Path(exists=True, path_type=Path), help="Candidate to time against.")
@click.option("--replay", "document", type=click.Path(exists=True, path_type=Path), help="Run this verdict again.")
@click.option("--output", type=click.Path(path_type=Path), help="Also write the verdict document to this file.")
@click.option(
    "--sign", "key_file", type=click.Path(exists=True, path_type=Path), help="Sign it with this private key."
)
@click.option("--evidence", type=click.Path(path_type=Path), help="Keep evidence (objects, sources) in this folder.")
@click.option("--serving-python", type=click.Path(exists=True, path_type=Path), help="Interpreter that has torch.")
@click.option("--build-cache", type=click.Path(path_type=Path), help="Where compiled objects are kept.")
@click.option("--no-timing", is_flag=True, help="Correctness only; such a verdict speaks of no speed.")
def judge_command(
    candidate: Path, task_name: str | None, as_json: bool, shapes: tuple[str, ...], baseline: Path | None,
    document: Path | None, output: Path | None, key_file: Path | None, evidence: Path | None,
    serving_python: Path | None, build_cache: Path | None, no_timing: bool,
) -> None:  # fmt: skip
    """Judge a CANDIDATE folder or source file.

    Exit code: 0 accepted, 1 rejected, 2 quarantined, 3 inconclusive, 4 infrastructure error. With --replay: 0 when
    the second run agrees with the document, 1 when it does not. Wrong use exits with 64.
    """
    try:
        task, loaded = _load(candidate, task_name)
        base = load_candidate(baseline, task=task.name) if baseline else None
        common: dict[str, Any] = {
            "build_cache": build_cache or default_cache(),
            "serving_python": (serving_python or default_serving_python()),
        }
        if document is not None:
            recorded = _read_document(document)
            done = replay(recorded, loaded, task, baseline=base, **common)
            _show_replay(done.agrees, done.differences, done.verdict, as_json)
            sys.exit(0 if done.agrees else 1)
        verdict = judge(
            loaded,
            task,
            shapes=[parse_shape(s) for s in shapes] or None,
            store=evidence_store(evidence) if evidence else digest_bytes,
            policy=JudgePolicy(baseline=base, timing=not no_timing),
            on_progress=None if as_json else _progress,
            **common,
        )
    except (CandidateError, UnknownTask, NotReplayable, ValueError) as error:
        click.echo(f"rackforge judge: {error}", err=True)
        sys.exit(64)
    if output is not None:
        output.write_bytes(verdict.canonical() + b"\n")
    if key_file is not None:
        envelope = json.dumps(signed(verdict, key_file), indent=2)
        place = output.with_suffix(".dsse.json") if output else Path(f"{loaded.digest[7:19]}.dsse.json")
        place.write_text(envelope + "\n")
    click.echo(json.dumps(verdict.document(), indent=2) if as_json else _words(verdict))
    sys.exit(verdict.outcome.exit_code)


def signed(verdict: Verdict, key_file: Path) -> dict[str, Any]:
    """A DSSE envelope over the verdict document; its subject is the object that was judged."""
    from rackforge_runtime.signing import VERDICT, SigningKey

    key = SigningKey.load(key_file)
    return key.sign(
        subject_name=f"{verdict.task} kernel",
        subject_digest=verdict.object_digest or verdict.candidate_digest,
        predicate_type=VERDICT,
        predicate=verdict.document(),
    )


def _load(path: Path, task_name: str | None) -> tuple[KernelTask, Any]:
    if task_name is not None:
        task = load_task(task_name)
        return task, load_candidate(path, task=task.name)
    loaded = load_candidate(path)
    return load_task(loaded.task), loaded


def _read_document(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise NotReplayable(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise NotReplayable(f"{path}: not a verdict document")
    return value


def _progress(stage: str, done: float) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{stage:<20} {done:4.0%}", nl=False, err=True)


def _words(verdict: Verdict) -> str:
    lines = [f"{verdict.outcome.value.upper()}{'' if verdict.certified else ' (not certified)'}  {verdict.reason}"]
    lines += [f"  {g.name:<3} {g.outcome.value:<14} {g.wall_s:7.2f} s  {g.reason}" for g in verdict.gates]
    for name, ratio in verdict.speedups.items():
        lines.append(f"  {name}: {ratio:.2f} times the baseline's speed")
    lines.append(f"  candidate {verdict.candidate_digest}\n  object    {verdict.object_digest or 'none'}")
    return "\n".join(lines)


def _show_replay(agrees: bool, differences: tuple[str, ...], verdict: Verdict, as_json: bool) -> None:
    if as_json:
        body = {"agrees": agrees, "differences": list(differences), "verdict": verdict.document()}
        click.echo(json.dumps(body, indent=2))
        return
    click.echo("agrees" if agrees else "does not agree")
    for difference in differences:
        click.echo(f"  {difference}")


@click.group("task")
def task_group() -> None:
    """Kernel tasks: what a candidate replaces, and how it is called."""


@task_group.command("list")
@click.option("--json", "as_json", is_flag=True)
def list_tasks(as_json: bool) -> None:
    """The tasks there are."""
    tasks = builtin_tasks()
    if as_json:
        click.echo(json.dumps({n: t.title for n, t in tasks.items()}, indent=2))
        return
    for name, task in tasks.items():
        click.echo(f"{name:<28} {task.title}")


@task_group.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True)
def show_task(name: str, as_json: bool) -> None:
    """One task with the interface of its candidates. NAME may be a folder with a task.py."""
    try:
        task = load_task(name)
    except UnknownTask as error:
        click.echo(f"rackforge task: {error}", err=True)
        sys.exit(64)
    click.echo(json.dumps(describe(task), indent=2) if as_json else _interface(task))


def describe(task: KernelTask) -> dict[str, Any]:
    """A task as JSON."""
    return {
        "name": task.name,
        "title": task.title,
        "inputs": [_tensor(t) for t in task.inputs],
        "outputs": [_tensor(t) for t in task.outputs],
        "shapes": [dict(s) for s in task.shapes],
        "batch_axis": task.batch_axis,
        "budget": {"k": task.budget.k, "floor_ulps": task.budget.floor_ulps},
        "nonfinite": task.nonfinite,
        "allow_library": sorted(task.allow_library),
        "swap": {"kind": task.swap.kind, "target": task.swap.target, "engine": task.swap.engine}
        if task.swap
        else None,
        "notes": task.notes,
    }


def _tensor(t: TensorSpec) -> dict[str, Any]:
    out: dict[str, Any] = {"name": t.name, "dims": list(t.dims), "dtype": t.dtype, "constant": t.constant}
    return out | ({"may_alias": t.may_alias} if t.may_alias else {})


def _interface(task: KernelTask) -> str:
    def row(t: TensorSpec) -> str:
        notes = [t.dtype, "constant: handed to prepare" if t.constant else ""]
        notes.append(f"may share memory with {t.may_alias}" if t.may_alias else "")
        return f"    {t.name}[{', '.join(t.dims)}]  {', '.join(filter(None, notes))}"

    calls, made, constants = task.calls, task.outputs, task.constants
    lines = [f"{task.name}: {task.title}", "  inputs", *map(row, task.inputs), "  outputs", *map(row, made)]
    lines += [f"  error budget: {task.budget.k:g} x error of the working precision + {task.budget.floor_ulps:g} ulp"]
    lines += [f"  shapes: {'; '.join(','.join(f'{k}={v}' for k, v in s.items()) for s in task.shapes)}"]
    lines += ["  C++ (kernel.cpp, rackforge_kernel.h)"]
    if constants:
        names = ", ".join(t.name for t in constants)
        lines += [f"    rf_prepare_bytes(consts = {{{names}}}, {len(constants)}, &bytes)"]
        lines += [f"    rf_prepare(consts = {{{names}}}, {len(constants)}, state)"]
    gives, takes = ", ".join(t.name for t in calls), ", ".join(t.name for t in made)
    lines += [f"    rf_run(in = {{{gives}}}, {len(calls)}, out = {{{takes}}}, {len(made)}, state, threads)"]
    lines += ["  Python and Triton (kernel.py)"]
    if constants:
        lines += [f"    prepare(constants=({', '.join(t.name for t in constants)},)) -> state"]
    lines += [f"    run(inputs=({gives},), outputs=({takes},), state, threads) -> None, or NotImplemented to decline"]
    suffixes = "; ".join(f"{kind}: {', '.join(s)}" for kind, s in SOURCE_SUFFIXES.items())
    return "\n".join([*lines, f"  files: {suffixes}", *([f"  {task.notes}"] if task.notes else [])])
