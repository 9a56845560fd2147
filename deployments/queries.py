"""Reads over several rows of deployments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deployments.models import Revision


@dataclass(frozen=True, slots=True)
class Change:
    """One place where two revisions differ; None where it is not there."""

    path: str  # e.g. "recipe.regimes[0].concurrency"
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel that another revision pins differently."""

    name: str
    what: str  # added, removed, changed
    before: dict[str, str] | None
    after: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from one revision to another."""

    recipe: tuple[Change, ...]
    kernels: tuple[KernelChange, ...]

    @property
    def empty(self) -> bool:
        return not self.recipe and not self.kernels


def difference(old: Revision, new: Revision) -> Difference:
    """What changed between two revisions of a deployment."""
    before = {kernel["name"]: kernel for kernel in old.kernels}
    after = {kernel["name"]: kernel for kernel in new.kernels}
    kernels = []
    for name in sorted(before.keys() | after.keys()):
        was, becomes = before.get(name), after.get(name)
        if was != becomes:
            what = "added" if was is None else "removed" if becomes is None else "changed"
            kernels.append(KernelChange(name, what, was, becomes))
    return Difference(tuple(_walk(old.recipe, new.recipe, "recipe")), tuple(kernels))


def _walk(old: Any, new: Any, path: str) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _walk(old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            one = old[index] if index < len(old) else None
            other = new[index] if index < len(new) else None
            yield from _walk(one, other, f"{path}[{index}]")
    elif old != new:
        yield Change(path, old, new)
