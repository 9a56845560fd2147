"""Reads the lock's plan and hands every active kernel to the installer of its kind."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from rackforge_runtime.activity import ENV_STATE, Recorder
from rackforge_runtime.locks import LockError
from rackforge_runtime.plan import ENV_LOCK, Plan, PlanEntry, active_digest, load_plan, scope_compile_cache
from rackforge_runtime.vllm_plugin.native import CannotUse, NativeObject, allow_amx

logger = logging.getLogger("vllm.rackforge")

# kind -> module of this package with `install(entries, host)`, imported only when the lock has such a kernel.
INSTALLERS = {
    "vllm.linear": "linear",
    "vllm.ir-provider": "ir_provider",
    "vllm.customop": "activation",
    "torch.library-override": "library_override",
}


@dataclass
class Host:
    """What installers share in one process: the recorder (made when first needed), loaded objects, names."""

    plan: Plan
    state: Path | None
    digest: str
    _recorder: Recorder | None = None
    _objects: dict[Path, NativeObject | str] = field(default_factory=dict)
    _early_skips: list[tuple[str, str]] = field(default_factory=list)

    @property
    def recorder(self) -> Recorder:
        """Made on first use, so that only processes that run the model have one."""
        if self._recorder is None or self._recorder.pid != os.getpid():
            try:
                self._recorder = Recorder(self.state, lock_digest=self.plan.lock_digest)
            except OSError as error:
                logger.warning("Rackforge: calls are not counted, no state folder: %s", error)
                self._recorder = Recorder(None, lock_digest=self.plan.lock_digest)
            for op, reason in self._early_skips:
                self._recorder.skip(op, reason)
        return self._recorder

    def skip(self, entry: PlanEntry, reason: str) -> None:
        logger.warning("Rackforge: %s is skipped: %s", entry.key, reason)
        if self._recorder is None:
            self._early_skips.append((entry.label.op, f"{entry.key}: {reason}"))
        else:
            self._recorder.skip(entry.label.op, f"{entry.key}: {reason}")

    def object(self, entry: PlanEntry) -> NativeObject | None:
        """The entry's loaded object; None, with the reason recorded, where it does not load."""
        if entry.object not in self._objects:
            try:
                self._objects[entry.object] = NativeObject(entry.object)
            except (CannotUse, OSError) as error:
                self._objects[entry.object] = str(error)
                self.skip(entry, str(error))
        found = self._objects[entry.object]
        return found if isinstance(found, NativeObject) else None


_host: Host | None = None


def install(environ: MutableMapping[str, str]) -> None:
    """Put the lock's kernels in place. Raises for what is wrong with the lock as a whole."""
    global _host  # noqa: PLW0603 - keeps operator libraries alive as long as the process
    named = environ.get(ENV_LOCK)
    if not named:
        return
    try:
        plan = load_plan(Path(named))
    except LockError as error:
        logger.warning("Rackforge: %s; the engine's own operators serve", error)
        scope_compile_cache(environ, None)
        return
    active, skipped = plan.decide(environ)
    for s in skipped:
        logger.info("Rackforge: %s is skipped: %s", s.key, s.reason)
    if not active:
        scope_compile_cache(environ, None)
        return
    allow_amx()
    digest = active_digest(active)
    scope_compile_cache(environ, digest)
    state = environ.get(ENV_STATE)
    _host = Host(plan, Path(state) if state else None, digest)
    by_module: dict[str, list[PlanEntry]] = {}
    for e in active:
        module = INSTALLERS.get(e.label.kind)
        if module is not None:
            by_module.setdefault(module, []).append(e)
    for module, entries in by_module.items():
        try:
            installer: Callable[[list[PlanEntry], Host], None] = importlib.import_module(
                f"rackforge_runtime.vllm_plugin.{module}"
            ).install
            installer(entries, _host)
        except Exception as error:  # noqa: BLE001 - one kind's trouble must not take the others along
            for e in entries:
                _host.skip(e, f"could not be put in place: {error!r}")
    logger.info("Rackforge: lock %s, active: %s", plan.lock_digest[:19], json.dumps([e.key for e in active]))
