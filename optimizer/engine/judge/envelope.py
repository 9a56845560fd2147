"""What a candidate says it is for, read against a shape; and what a verdict allows it to be used for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.engine.judge.verdict import Outcome, Verdict
from optimizer.engine.tasks.base import KernelTask, Shape


def covers(envelope: Mapping[str, Any], task: KernelTask, shape: Shape) -> bool:
    """Whether a shape is inside of a declared envelope. No declaration covers everything.

    `{"m_min": 1, "m_max": 8}` bounds the task's batch axis; `{"shapes": [{"N": 5632, "K": 1024, "m_max": 8}, ...]}`
    lists such boxes, with the axes they fix. Entries that are neither an axis nor a bound (`isa`) are no bounds.
    """
    if not _inside(envelope, task, shape):
        return False
    boxes = envelope.get("shapes")
    if boxes is None:
        return True
    return isinstance(boxes, (list, tuple)) and any(
        isinstance(box, Mapping) and _inside(box, task, shape) for box in boxes
    )


def _inside(box: Mapping[str, Any], task: KernelTask, shape: Shape) -> bool:
    axis = task.batch_axis
    if axis is not None:
        low, high = box.get("m_min"), box.get("m_max")
        if isinstance(low, int) and shape[axis] < low:
            return False
        if isinstance(high, int) and shape[axis] > high:
            return False
    return all(box[name] == length for name, length in shape.items() if isinstance(box.get(name), int))


def measured_envelope(verdict: Verdict, task: KernelTask) -> dict[str, Any]:
    """The envelope that a registry may publish: boxes around the shapes which passed, nothing between other axes.

    ValueError for a verdict that is not an acceptance.
    """
    if verdict.outcome is not Outcome.ACCEPT:
        raise ValueError(f"a verdict of {verdict.outcome} has no envelope")
    axis = task.batch_axis
    boxes: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for shape in verdict.shapes:
        rest = tuple(sorted((k, v) for k, v in shape.items() if k != axis))
        boxes.setdefault(rest, []).append(shape[axis] if axis is not None else 0)
    out = []
    for rest, batches in sorted(boxes.items()):
        box: dict[str, Any] = dict(rest)
        if axis is not None:
            box |= {"m_min": min(batches), "m_max": max(batches)}
        out.append(box)
    return {"shapes": out}
