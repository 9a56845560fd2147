"""From a judged candidate to what a server can run and a registry can keep.

A kernel of a campaign is described by a JSON value (`describe`), so that steps hand it on through their results:
candidate, object and source digests, envelope, target. Manifests are made from it in one place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.context import StepContext
from optimizer.engine.candidate import Candidate
from optimizer.engine.tasks import load_task
from rackforge_runtime.manifests import Manifest
from rackforge_runtime.staging import Staged, make_manifest
from rackforge_runtime.staging import stage as stage_folder
from registry import facade as registry

ABI = "rackforge-c-1"
UNREGISTERED = "0.0.0-candidate"


def pack_sources(candidate: Candidate) -> bytes:
    """The sources as a JSON object: what a candidate's page shows and a registry ships."""
    return json.dumps(
        {"meta": candidate.meta(), "files": {n: d.decode(errors="replace") for n, d in candidate.files.items()}},
        sort_keys=True,
    ).encode()


def unpack_sources(data: bytes) -> Candidate:
    """The candidate that `pack_sources` packed."""
    value = json.loads(data)
    meta = value["meta"]
    return Candidate(
        task=meta["task"],
        kind=meta["kind"],
        files={name: text.encode() for name, text in value["files"].items()},
        isa=meta["isa"],
        envelope=meta["envelope"],
        params=meta["params"],
        agent=meta["agent"],
        parent=meta["parent"],
    )


def describe(
    candidate: Candidate, *, object_digest: str, source_digest: str, envelope: Mapping[str, Any]
) -> dict[str, Any]:
    """A kernel as the later steps need it; `envelope` is the measured one, which the judge allows."""
    task = load_task(candidate.task)
    if task.swap is None:
        raise ValueError(f"{task.name}: no swap point, a kernel for it cannot be served")
    return {
        "task": task.name,
        "candidate": candidate.digest,
        "object": object_digest,
        "source": source_digest,
        "isa": candidate.isa,
        "shapes": [_box(box) for box in envelope.get("shapes", ())],
        "kind": task.swap.kind,
        "target": task.swap.target,
        "engine": task.swap.engine,
        "dtypes": sorted({spec.dtype for spec in task.inputs if spec.dims}),
    }


def _box(box: Mapping[str, int]) -> dict[str, Any]:
    """{"N": 5632, "K": 1024, "m_min": 1, "m_max": 8} as the registry writes ranges."""
    found: dict[str, Any] = {axis: length for axis, length in box.items() if not axis.startswith("m_")}
    if "m_max" in box:
        found["M"] = {"min": box.get("m_min", 1), "max": box["m_max"]}
    return found


def manifest_of(
    context: StepContext,
    kernel: Mapping[str, Any],
    *,
    version: str,
    regimes: Sequence[int] = (),
    evidence: Sequence[Mapping[str, Any]] = (),
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The registry manifest of a kernel: one variant, for this instruction set."""
    size = len(registry.read_blob(str(kernel["object"])))
    source_size = len(registry.read_blob(str(kernel["source"])))
    selector: dict[str, Any] = {
        "backend": "cpu",
        "isa": kernel["isa"],
        "vllm": kernel["engine"],
        "dtypes": kernel["dtypes"],
        "shapes": kernel["shapes"],
    }
    if regimes:
        selector["regime"] = {"concurrency": sorted(regimes)}
    return make_manifest(
        name=f"{context.config.namespace}/{str(kernel['task']).replace('_', '-')}",
        version=version,
        kind=str(kernel["kind"]),
        op=str(kernel["target"]),
        abi=ABI,
        variants=[
            {
                "id": f"cpu-{str(kernel['isa']).replace('_', '-')}",
                "selector": selector,
                "entry": "kernel.so",
                "files": [
                    {"path": "kernel.so", "digest": kernel["object"], "size": size},
                    {"path": "sources.json", "digest": kernel["source"], "size": source_size},
                ],
            }
        ],
        evidence=evidence,
        provenance=provenance,
    )


def stage(context: StepContext, kernels: Sequence[Mapping[str, Any]]) -> Staged:
    """A signed lock folder for kernels that are not in the registry yet. The same kernels give the same lock.

    The object in it is the very one that was judged: it is taken from the store by its digest.
    """
    staged = []
    blobs: dict[str, bytes | Path] = {}
    for kernel in kernels:
        manifest = manifest_of(context, kernel, version=UNREGISTERED)
        parsed = Manifest.parse(manifest)
        staged.append((manifest, parsed.variants[0].id))
        for file in parsed.variants[0].files:
            blobs[file.digest] = registry.read_blob(file.digest)
    name = "-".join(str(kernel["object"]).removeprefix("sha256:")[:12] for kernel in kernels)
    return stage_folder(context.work / f"lock-{name}", key=registry.signing_key(), kernels=staged, blobs=blobs)


def accepted_kernels(context: StepContext) -> list[dict[str, Any]]:
    """The kernels this campaign registered so far, in order."""
    steps = context.campaign.steps.filter(kind="register", state="done").order_by("ordinal")
    return [dict(step.result["kernel"]) for step in steps if "kernel" in step.result]
