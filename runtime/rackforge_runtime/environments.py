"""Kinds that are settings and files: put in place before Python starts, since the engine reads them at import.

What the operator set by hand is never overwritten: a variable that is there already wins, and is reported.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from rackforge_runtime.cache import write_atomic
from rackforge_runtime.plan import PlanEntry

ENV_DEVICE_NAME = "RACKFORGE_DEVICE_NAME"
# What a launch configuration may set. Never a search path or a preload: those are code.
_SETTABLE = re.compile(
    r"^(VLLM_(?!PLUGINS$|CACHE_ROOT$|API_KEY$)[A-Z0-9_]+|OMP_[A-Z_]+|KMP_[A-Z_]+|MKL_[A-Z_]+|MIOPEN_[A-Z0-9_]+|"
    r"HSA_[A-Z0-9_]+|HIP_FORCE_[A-Z_]+|NCCL_[A-Z0-9_]+|RCCL_[A-Z0-9_]+|TORCHINDUCTOR_(?!CACHE_DIR$)[A-Z_]+|"
    r"TORCH_BLAS_PREFER_HIPBLASLT|MALLOC_[A-Z_]+)$"
)
_TUNABLE_FIRST = re.compile(r"^Validator,")


class CannotApply(RuntimeError):
    """A kind of setting that cannot be put in place here; the text says why."""


def apply(entry: PlanEntry, env: MutableMapping[str, str], folder: Path) -> None:
    """Put one environment kind in place: variables into `env`, files into `folder`.

    Several entries of a kind add up, the better ranked (earlier) winning where both say something. Raises
    CannotApply, with nothing changed.
    """
    _APPLY[entry.label.kind](entry, env, folder)


def merge_csv(texts: Sequence[str], keys: Sequence[str]) -> str:
    """One CSV of several with the same columns; of rows with equal keys the first is kept.

    Raises CannotApply where columns differ or a key is not a column.
    """
    header: list[str] | None = None
    rows: dict[tuple[str, ...], list[str]] = {}
    for text in texts:
        reader = csv.reader(io.StringIO(text))
        columns = next(reader, None)
        if not columns:
            continue
        if header is None:
            header = columns
            missing = [k for k in keys if k not in header]
            if missing:
                raise CannotApply(f"no column {', '.join(missing)} in {', '.join(header)}")
        if sorted(columns) != sorted(header):
            raise CannotApply(f"columns differ: {', '.join(columns)} and {', '.join(header)}")
        order = [columns.index(c) for c in header]
        at = [header.index(k) for k in keys] if keys else list(range(len(header)))
        for number, row in enumerate(reader, 2):
            if not row:
                continue
            if len(row) != len(columns):
                raise CannotApply(f"line {number}: {len(row)} fields, not {len(columns)}")
            ordered = [row[i] for i in order]
            rows.setdefault(tuple(ordered[i].strip() for i in at), ordered)
    if header is None:
        raise CannotApply("no table at all")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows.values())
    return out.getvalue()


def merge_tunableop(texts: Sequence[str]) -> str:
    """One TunableOp result file of several. PyTorch rejects a file whole where one validator does not fit,
    so validators must be equal; of results for one operator and shape the first is kept."""
    validators: list[str] | None = None
    results: dict[tuple[str, str], str] = {}
    for text in texts:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        mine = sorted(line for line in lines if _TUNABLE_FIRST.match(line))
        if validators is not None and mine != validators:
            raise CannotApply("TunableOp files were made by different versions (their validators differ)")
        validators = mine
        for line in lines:
            if not _TUNABLE_FIRST.match(line):
                fields = line.split(",")
                if len(fields) < 3:
                    raise CannotApply(f"not a TunableOp result: {line[:80]!r}")
                results.setdefault((fields[0], fields[1]), line)
    return "\n".join([*(validators or []), *results.values()]) + "\n"


def tuned_config_name(config: Mapping[str, object], device_name: str) -> str:
    """The file name vLLM looks for. Only the host knows how its device is called (MI355X, MI355_OAM, ...)."""
    name = f"E={config['E']},N={config['N']},device_name={device_name.replace(' ', '_')}"
    if config.get("dtype"):
        name += f",dtype={config['dtype']}"
    if config.get("block_shape"):
        name += f",block_shape={json.dumps(config['block_shape'])}".replace(" ", "")
    return name + ".json"


def _launch_config(entry: PlanEntry, env: MutableMapping[str, str], _folder: Path) -> None:
    try:
        wanted = json.loads(entry.object.read_bytes())["env"]
        items = {str(k): str(v) for k, v in wanted.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotApply(f"not a launch configuration: {error!r}") from error
    bad = sorted(k for k in items if not _SETTABLE.match(k))
    if bad:
        raise CannotApply(f"may not set {', '.join(bad)}")
    for k, v in items.items():
        env.setdefault(k, v)


def _tuned_config(entry: PlanEntry, env: MutableMapping[str, str], folder: Path) -> None:
    target = folder / "tuned"
    if env.get("VLLM_TUNED_CONFIG_FOLDER", str(target)) != str(target):
        raise CannotApply("VLLM_TUNED_CONFIG_FOLDER is set by hand and wins")
    config = entry.selector.get("config")
    if not isinstance(config, Mapping) or not {"E", "N"} <= set(config):
        raise CannotApply("selector.config must say E and N")
    path = target / tuned_config_name(config, env.get(ENV_DEVICE_NAME) or device_name())
    if not path.exists():
        write_atomic(path, entry.object.read_bytes())
    env["VLLM_TUNED_CONFIG_FOLDER"] = str(target)


def device_name() -> str:
    """How vLLM calls the accelerator, asked in a child since asking initialises it."""
    script = "from vllm.platforms import current_platform as p; print('name=' + (p.get_device_name() or ''))"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotApply(f"vLLM does not say the device's name: {error}") from error
    found = re.search(r"^name=(.+)$", done.stdout, re.MULTILINE)
    if not found:
        raise CannotApply(f"vLLM does not say the device's name; set {ENV_DEVICE_NAME}")
    return found.group(1)


def _tunableop(entry: PlanEntry, env: MutableMapping[str, str], folder: Path) -> None:
    pattern = str(folder / "tunableop%d.csv")  # PyTorch puts the device's number in
    if env.get("PYTORCH_TUNABLEOP_FILENAME", pattern) != pattern:
        raise CannotApply("PYTORCH_TUNABLEOP_FILENAME is set by hand and wins")
    first = folder / "tunableop0.csv"
    before = [first.read_text()] if first.exists() else []
    text = merge_tunableop([*before, entry.object.read_text()])
    for device in range(max(1, int(entry.selector.get("devices", 8)))):
        write_atomic(folder / f"tunableop{device}.csv", text.encode())
    env["PYTORCH_TUNABLEOP_ENABLED"] = "1"
    env["PYTORCH_TUNABLEOP_TUNING"] = "0"
    env["PYTORCH_TUNABLEOP_FILENAME"] = pattern


def _aiter(entry: PlanEntry, env: MutableMapping[str, str], folder: Path) -> None:
    table = entry.selector.get("csv")
    if not isinstance(table, Mapping) or not str(table.get("env", "")).startswith("AITER_CONFIG_"):
        raise CannotApply("selector.csv must say env (AITER_CONFIG_...), builtin and keys")
    name, keys = str(table["env"]), [str(k) for k in table.get("keys", ())]
    target = folder / f"{name.lower()}.csv"
    if name in env and env[name] != str(target):
        raise CannotApply(f"{name} is set by hand and wins")
    texts = [target.read_text()] if target.exists() else []
    texts.append(entry.object.read_text())
    # Setting the variable replaces the built-in tables and a shape that occurs twice raises: so they are
    # merged here, ours first.
    texts += [p.read_text() for p in _aiter_builtin(str(table.get("builtin", "")))]
    write_atomic(target, merge_csv(texts, keys).encode())
    env[name] = str(target)


def _aiter_builtin(file: str) -> list[Path]:
    if not file or "/" in file:
        return []
    spec = importlib.util.find_spec("aiter")
    if spec is None or not spec.submodule_search_locations:
        return []
    found: list[Path] = []
    for root in spec.submodule_search_locations:
        for place in (Path(root) / "configs", Path(root).parent / "aiter" / "configs"):
            found += [p for p in sorted(place.rglob(f"*{file}")) if p not in found]
    return found


_APPLY: Mapping[str, Callable[[PlanEntry, MutableMapping[str, str], Path], None]] = {
    "vllm.launch-config": _launch_config,
    "vllm.tuned-config": _tuned_config,
    "tunableop.csv": _tunableop,
    "aiter.tuned-csv": _aiter,
}
