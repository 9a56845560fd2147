"""A template family: the parametrised source of one operator's kernels and the space of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from optuna.distributions import BaseDistribution

from optimizer.engine.build import runs_here
from optimizer.engine.candidate import Candidate
from optimizer.engine.tasks.base import KernelTask

TEMPLATES = Path(__file__).parent / "templates"
MARKER = "//@VARIANTS@"
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Host:
    """What a family needs to know of the machine a kernel is for."""

    cpu_flags: frozenset[str]
    threads: int

    def runs(self, isa: str) -> bool:
        return runs_here(isa, self.cpu_flags)


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of a composed kernel: at this shape, from m_min to m_max rows, these parameters."""

    shape: Mapping[str, int]
    m_min: int
    m_max: int
    params: Params


class Family(Protocol):
    """One template file. Implementations are pure: text in, text out."""

    @property
    def name(self) -> str: ...

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks it has kernels for."""

    @property
    def max_batch(self) -> int:
        """The largest batch its kernels take; beyond it the stock operator stays."""

    def space(self, task: KernelTask, host: Host, batch: int) -> dict[str, BaseDistribution]:
        """The declared search space for one batch regime on this host."""

    def repair(self, params: Params, host: Host, batch: int) -> dict[str, Any]:
        """The nearest point that makes sense (registers, code size); equal points give equal sources."""

    def fits(self, params: Params, shape: Mapping[str, int], host: Host) -> bool:
        """Whether kernels of these parameters can run a shape."""

    def layout(self, params: Params) -> tuple[Any, ...]:
        """What of the parameters decides the prepared state: variants of one shape must agree in it."""

    def isa(self, params: Params, host: Host) -> str:
        """The instruction set (a key of build.ISA_FLAGS) these parameters need."""

    def trial_source(self, task: KernelTask, params: Params, batch: int) -> str:
        """A kernel of one variant, for any shape that fits."""

    def unify(self, choices: Sequence[Choice]) -> list[Choice]:
        """The choices as one object can hold them (a family may allow one variant an object only)."""

    def composed_source(self, task: KernelTask, choices: Sequence[Choice]) -> str:
        """One kernel with a specialisation for each choice and RF_UNSUPPORTED elsewhere."""


def fill(template: str, variants: str) -> str:
    """A template's text with the generated part in its place."""
    text = (TEMPLATES / template).read_text()
    if text.count(MARKER) != 1:
        raise ValueError(f"{template}: must hold {MARKER} once")
    return text.replace(MARKER, variants)


def constants(name: str, values: Mapping[str, bool | int]) -> str:
    """A C++ struct of compile-time constants."""
    lines = [
        f"  static constexpr {'bool' if isinstance(v, bool) else 'int64_t' if k in _WIDE else 'int'} "
        f"{k} = {str(v).lower()};"
        for k, v in sorted(values.items())
    ]
    return "\n".join([f"struct {name} {{", *lines, "};"])


_WIDE = frozenset({"kAhead", "kSkew", "kBlock", "kRowsPerThread"})


def trial_candidate(
    family: Family, task: KernelTask, params: Params, host: Host, batch: int, parent: str = ""
) -> Candidate:
    """The candidate of one point of the space; its envelope says the one batch it was made for."""
    isa = family.isa(params, host)
    source = family.trial_source(task, params, batch)
    return Candidate(
        task=task.name,
        kind="cpp",
        files={"kernel.cpp": source.encode()},
        isa=isa,
        envelope={"isa": isa, "m_min": batch, "m_max": batch},
        params=dict(params),
        agent="tuner",
        parent=parent,
    )


def families() -> tuple[Family, ...]:
    """The families there are. A new one is a module in `families/` with a FAMILY, listed here."""
    from optimizer.engine.agents.tuner.families import linear_bf16, rowwise

    return (linear_bf16.FAMILY, rowwise.FAMILY)


def family_for(task: KernelTask) -> Family:
    """The family of a task; LookupError says which tasks have one."""
    for family in families():
        if task.name in family.tasks:
            return family
    known = sorted(name for f in families() for name in f.tasks)
    raise LookupError(f"the tuner has no template for task {task.name!r}; it has for: {', '.join(known)}")
