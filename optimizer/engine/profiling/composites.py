"""Operators that an engine runs as a row of smaller ones, found by their order on the thread.

In eager mode on a CPU, vLLM's `rms_norm` and `silu_and_mul` leave no event of their own: only the torch operators
they are made of. Each composite found stands for its whole span: a kernel in its place saves the calls, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.engine.profiling.nesting import Nesting
from optimizer.engine.profiling.tracedata import Call, Ints, Trace

# One letter an operator; those that only make views are passed over.
_LETTERS = {
    "aten::to": "T",
    "aten::_to_copy": "T",
    "aten::pow": "P",
    "aten::mean": "M",
    "aten::add": "A",
    "aten::rsqrt": "R",
    "aten::mul": "X",
    "aten::silu": "S",
}
_VIEWS = frozenset(
    "aten::" + name
    for name in (
        "slice", "as_strided", "view", "reshape", "select", "narrow", "split", "split_with_sizes", "chunk", "empty",
        "unsqueeze", "expand", "detach", "alias", "transpose", "t", "permute", "result_type", "lift_fresh", "flatten",
    )
)  # fmt: skip
_PATTERN = re.compile(r"(?P<add>T{0,2}AT?)?(?:(?<!A)T)?PMARXTX|(?P<silu>SX)")


@dataclass(frozen=True, eq=False)
class Composite:
    """One occurrence: the operator it amounts to, its arguments as that operator would have them, its rows."""

    operator: str
    call: Call | None
    first: int  # row
    last: int  # row
    members: tuple[int, ...]


def find_composites(trace: Trace, nesting: Nesting) -> list[Composite]:
    """Composites among siblings: operators of the same parent, one after the other."""
    events = trace.events
    letters = np.zeros(len(trace.names), np.uint8)
    views = np.zeros(len(trace.names), np.bool_)
    for i, name in enumerate(trace.names):
        letters[i] = ord(_LETTERS.get(name, "."))
        views[i] = name in _VIEWS
    rows = nesting.rows
    code = letters[events.name[rows]]
    if not ((code == ord("R")) | (code == ord("S"))).any():
        return []
    keep = ~views[events.name[rows]]
    rows, parents, code = rows[keep], nesting.parent[keep], code[keep]
    order = np.lexsort((events.start[rows], parents, events.track[rows]))
    rows, parents, code = rows[order], parents[order], code[order]
    edges = np.flatnonzero((np.diff(parents) != 0) | (np.diff(events.track[rows]) != 0)) + 1
    # A line break between families keeps a match within one.
    text = np.insert(code, edges, ord("\n")).tobytes().decode("ascii")
    shift = np.insert(np.arange(len(rows)), edges, -1)
    found = []
    for match in _PATTERN.finditer(text):
        members = tuple(int(r) for r in rows[shift[match.start() : match.end()]])
        composite = _silu(trace, members) if match["silu"] else _norm(trace, members, fused=match["add"] is not None)
        if composite is not None:
            found.append(composite)
    return found


def _call(trace: Trace, row: int) -> Call | None:
    index = int(trace.events.call[row])
    return trace.calls[index] if index >= 0 else None


def _norm(trace: Trace, members: tuple[int, ...], *, fused: bool) -> Composite:
    multiplies = [r for r in members if trace.name_of(r) == "aten::mul"]
    weight = _call(trace, multiplies[-1])
    first = _call(trace, members[0])
    call = None
    if weight is not None and len(weight.dims) >= 2 and weight.dims[0] and first is not None:
        # The last product is in the weight's type, which is also the activations'.
        x: Any = weight.dims[0]
        kind = first.types[0] if fused and first.types else weight.types[0]
        count = 3 if fused else 2
        call = Call((*(x,) * (count - 1), weight.dims[1]), (kind,) * (count - 1) + (weight.types[1],))
    name = "vllm_ir::fused_add_rms_norm" if fused else "vllm_ir::rms_norm"
    return Composite(name, call, members[0], members[-1], members)


def _silu(trace: Trace, members: tuple[int, ...]) -> Composite | None:
    silu, product = _call(trace, members[0]), _call(trace, members[1])
    call = None
    if silu is not None and product is not None and silu.dims and silu.dims[0]:
        half = silu.dims[0]
        if len(product.dims) < 2 or product.dims[0] != half or product.dims[1] != half:
            return None
        call = Call((half, [*half[:-1], 2 * half[-1]]), (silu.types[0], silu.types[0]))
    elif trace.has_shapes:
        return None
    return Composite("_C::silu_and_mul", call, members[0], members[-1], members)


def subtree_mask(trace: Trace, nesting: Nesting, tops: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of `nesting.rows` are one of `tops` or below one."""
    marked = np.zeros(len(trace.events), np.bool_)
    marked[tops] = True
    order = np.lexsort((-trace.events.duration[nesting.rows], trace.events.start[nesting.rows]))
    # Parents start no later than their children, so one pass in order of start is enough.
    flags = marked.tolist()
    for row, parent in zip(nesting.rows[order].tolist(), nesting.parent[order].tolist(), strict=True):
        if parent >= 0 and flags[parent]:
            flags[row] = True
    return np.array(flags, np.bool_)[nesting.rows]
