"""Kernel tasks: every file here (but `base`) that has a TASK is one."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from functools import lru_cache
from pathlib import Path

from optimizer.engine.tasks.base import KernelTask


class UnknownTask(LookupError):
    """No task of that name; the text lists those there are."""


@lru_cache(maxsize=1)
def builtin_tasks() -> dict[str, KernelTask]:
    """The tasks of this folder, by name."""
    found: dict[str, KernelTask] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "base":
            continue
        task = getattr(importlib.import_module(f"{__name__}.{module.name}"), "TASK", None)
        if isinstance(task, KernelTask):
            found[task.name] = task
    return dict(sorted(found.items()))


def load_task(name: str) -> KernelTask:
    """A task by name, or from a folder with a `task.py` (anyone's own; it is trusted code)."""
    path = Path(name)
    if path.is_dir() and (path / "task.py").is_file():
        spec = importlib.util.spec_from_file_location(f"rackforge_task_{path.name}", path / "task.py")
        if spec is None or spec.loader is None:
            raise UnknownTask(f"{path / 'task.py'}: cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        task = getattr(module, "TASK", None)
        if not isinstance(task, KernelTask):
            raise UnknownTask(f"{path / 'task.py'}: has no TASK = KernelTask(...)")
        return task
    try:
        return builtin_tasks()[name]
    except KeyError:
        raise UnknownTask(f"no task {name!r}; there are: {', '.join(builtin_tasks()) or 'none'}") from None
