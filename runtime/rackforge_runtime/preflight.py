"""Tries every kernel of a lock in a child process before the server starts: load it, run it, compare.

A kernel that does not load, crashes, hangs or computes something else is left out of the server, with the
reason. `python -m rackforge_runtime.preflight FOLDER` is the child: one JSON line per kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackforge_runtime import isa
from rackforge_runtime.manifests import ENVIRONMENT_KINDS, as_range
from rackforge_runtime.plan import NATIVE_ABI, PlanEntry, load_plan

DEADLINE_S = 30.0  # for all kernels together
_MAX_LENGTH = 1 << 15


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one kernel: `reason` is empty when it may run."""

    key: str
    reason: str
    wall_s: float


def preflight(
    folder: Path,
    *,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> tuple[Outcome, ...]:
    """Try the kernels of a materialised lock; one that kills the child is named and the rest go on."""
    keys = [e.key for e in load_plan(folder).entries]
    done: list[Outcome] = []
    end = time.monotonic() + deadline_s
    while len(done) < len(keys):
        left = end - time.monotonic()
        if left <= 0:
            done += [Outcome(k, f"not tried: the checks ran past {deadline_s:.0f} s", 0.0) for k in keys[len(done) :]]
            break
        started = time.monotonic()
        found, why = _run_child(folder, len(done), python, env, left)
        done += found
        if len(done) < len(keys) and why:
            done.append(Outcome(keys[len(done)], why, time.monotonic() - started))
    return tuple(done)


def _run_child(
    folder: Path, start: int, python: str, env: Mapping[str, str] | None, wall_s: float
) -> tuple[list[Outcome], str]:
    # `-P`: the folder the server is started in must not decide what is imported.
    command = [python, "-P", "-m", "rackforge_runtime.preflight", str(folder), str(start)]
    environ = {**(os.environ if env is None else env), "OMP_NUM_THREADS": "1"}
    try:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
        )
    except OSError as error:
        return [], f"the check does not start: {error}"
    why = ""
    try:
        out, err = child.communicate(timeout=wall_s)
        if child.returncode < 0:
            why = f"killed the check with signal {-child.returncode}"
        elif child.returncode:
            why = f"ended the check with status {child.returncode}: {(err.strip().splitlines() or [''])[-1][:200]}"
        else:
            why = "the check ended before it"
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        why = f"did not come back within {wall_s:.0f} s"
    found = []
    for line in out.splitlines():
        try:
            row = json.loads(line)
            found.append(Outcome(row["key"], row["reason"], row["wall_s"]))
        except (ValueError, KeyError, TypeError):
            continue
    return found, why


def main(argv: Sequence[str]) -> int:
    """The child. What it prints before a crash is what survives."""
    from rackforge_runtime.vllm_plugin.native import allow_amx

    plan = load_plan(Path(argv[0]))
    allow_amx()
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a kernel that prints must not be taken for our report
    for entry in plan.entries[int(argv[1]) :]:
        started = time.monotonic()
        try:
            reason = check(entry)
        except Exception as error:  # noqa: BLE001 - that is what the child is for
            reason = f"check failed: {error!r}"
        report.write(
            json.dumps({"key": entry.key, "reason": reason, "wall_s": round(time.monotonic() - started, 4)}) + "\n"
        )
        report.flush()
    return 0


def check(entry: PlanEntry) -> str:
    """Why a kernel must not run on this host; empty when it may."""
    needed = entry.selector.get("isa")
    if entry.selector.get("backend", "cpu") == "cpu" and needed:
        from rackforge_runtime.facts import _cpu_flags

        flags = _cpu_flags(Path("/proc/cpuinfo").read_text())
        if not isa.runs_here(needed, flags):
            return f"needs {needed}, which this processor does not have"
    if entry.label.kind in ENVIRONMENT_KINDS:
        return "" if not entry.selector.get("files") or entry.object.is_file() else "its file is missing"
    if not entry.object.is_file():
        return f"{entry.object.name} is missing"
    if entry.abi != NATIVE_ABI:
        return f"interface {entry.abi!r} is not known to this runtime"
    from rackforge_runtime.vllm_plugin.native import CannotUse, NativeObject

    try:
        native = NativeObject(entry.object)
    except CannotUse as error:
        return str(error)
    checker = CHECKS.get(entry.label.op)
    return checker(native, entry) if checker else ""


def _lengths(entry: PlanEntry, axes: Sequence[str], otherwise: Mapping[str, int]) -> list[dict[str, int]]:
    """The smallest and the largest shape of an envelope, lengths capped."""
    boxes: list[Mapping[str, Any]] = list(entry.selector.get("shapes", ()))[:1] or [{}]
    found = []
    for box in boxes:
        ranges = {a: as_range(box[a]) if a in box else (otherwise[a], otherwise[a]) for a in axes}
        for pick in (0, 1):
            shape = {a: min(r[0] if pick == 0 or r[1] is None else r[1], _MAX_LENGTH) or 1 for a, r in ranges.items()}
            if shape not in found:
                found.append(shape)
    return found


def _bf16(values: Any) -> tuple[Any, Any]:
    """Values as float32 that bfloat16 holds exactly, and their bfloat16 bits."""
    import numpy as np

    bits = (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32), bits


def _describe(array: Any, dtype: int) -> Any:
    from rackforge_runtime.vllm_plugin.native import Described

    return Described(array.ctypes.data, tuple(array.shape), tuple(s // array.itemsize for s in array.strides), dtype)


def _compare(name: str, got_bits: Any, truth: Any, scale: float) -> str:
    """bfloat16 keeps 8 bits: two units in the last place, plus what summing in float32 may lose."""
    import numpy as np

    got = (got_bits.astype(np.uint32) << 16).view(np.float32)
    allowed = np.abs(truth) * 2.0**-7 + scale
    wrong = ~(np.abs(got - truth) <= allowed)
    if not wrong.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"computes something else: {name}{list(where)} is {got[where]:.6g}, not {truth[where]:.6g} "
        f"({int(wrong.sum())} of {wrong.size} elements)"
    )


def _run(native: Any, constants: list[Any], inputs: list[Any], outputs: list[Any]) -> int:
    from rackforge_runtime.vllm_plugin.native import Frame

    state = native.prepare(constants)
    source, target = Frame(inputs), Frame(outputs)
    return int(native.run(source.address, len(inputs), target.address, len(outputs), state.address, 1))


def _check_linear(native: Any, entry: PlanEntry) -> str:
    import numpy as np

    from rackforge_runtime.vllm_plugin.native import BFLOAT16, CannotUse

    rng = np.random.default_rng(1)
    for shape in _lengths(entry, ("M", "N", "K"), {"M": 3, "N": 64, "K": 64}):
        m, n, k = shape["M"], shape["N"], shape["K"]
        x, xb = _bf16(rng.standard_normal((min(m, 64), k)))
        w, wb = _bf16(rng.standard_normal((n, k)) * k**-0.5)
        y = np.full((x.shape[0], n), 0x7FC0, dtype=np.uint16)
        try:
            status = _run(native, [_describe(wb, BFLOAT16)], [_describe(xb, BFLOAT16)], [_describe(y, BFLOAT16)])
        except CannotUse as error:
            return str(error)
        if status:
            return f"rf_run answered {status} inside of its envelope ({shape})"
        if why := _compare("y", y, x @ w.T, 1e-5 * k**0.5):
            return why
    return ""


def _check_norm(native: Any, entry: PlanEntry, fused: bool) -> str:
    import numpy as np

    from rackforge_runtime.vllm_plugin.native import BFLOAT16, FLOAT64

    rng = np.random.default_rng(2)
    epsilon = np.array(1e-5)
    for shape in _lengths(entry, ("M", "H"), {"M": 3, "H": 256}):
        m, h = min(shape["M"], 256), shape["H"]
        x, xb = _bf16(rng.standard_normal((m, h)))
        r, rb = _bf16(rng.standard_normal((m, h)))
        w, wb = _bf16(1 + 0.1 * rng.standard_normal(h))
        total = x + r if fused else x
        truth = total / np.sqrt((total.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * w
        y, s = np.full((m, h), 0x7FC0, np.uint16), np.full((m, h), 0x7FC0, np.uint16)
        tail = [_describe(wb, BFLOAT16), _describe(epsilon, FLOAT64)]
        inputs = [_describe(xb, BFLOAT16), *([_describe(rb, BFLOAT16)] if fused else []), *tail]
        outputs = [_describe(y, BFLOAT16), *([_describe(s, BFLOAT16)] if fused else [])]
        if status := _run(native, [], inputs, outputs):
            return f"rf_run answered {status} inside of its envelope ({shape})"
        # the engine rounds twice on the way
        if why := _compare("y", y, truth, 0.02) or (_compare("residual", s, total, 1e-6) if fused else ""):
            return why
    return ""


def _check_silu(native: Any, entry: PlanEntry) -> str:
    import numpy as np

    from rackforge_runtime.vllm_plugin.native import BFLOAT16

    rng = np.random.default_rng(3)
    for shape in _lengths(entry, ("M", "D"), {"M": 3, "D": 128}):
        m, d = min(shape["M"], 256), shape["D"]
        x, xb = _bf16(rng.standard_normal((m, 2 * d)))
        y = np.full((m, d), 0x7FC0, np.uint16)
        if status := _run(native, [], [_describe(xb, BFLOAT16)], [_describe(y, BFLOAT16)]):
            return f"rf_run answered {status} inside of its envelope ({shape})"
        if why := _compare("y", y, x[:, :d] / (1 + np.exp(-x[:, :d])) * x[:, d:], 0.02):
            return why
    return ""


CHECKS: Mapping[str, Callable[[Any, PlanEntry], str]] = {
    "cpu_unquantized_gemm": _check_linear,
    "linear": _check_linear,
    "rms_norm": lambda native, entry: _check_norm(native, entry, fused=False),
    "fused_add_rms_norm": lambda native, entry: _check_norm(native, entry, fused=True),
    "silu_and_mul": _check_silu,
    "_C::silu_and_mul": _check_silu,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
