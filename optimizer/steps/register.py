"""The confirmed kernel becomes an immutable version of the registry; doing it twice makes one."""

from __future__ import annotations

from typing import Any

from deployments.services import create_revision
from optimizer.context import StepContext, StepResult
from optimizer.kernels import manifest_of
from optimizer.states import CandidateState, StepKind
from optimizer.steps.profiling import round_of
from registry import facade as registry

ACTOR = "campaign"


def run(context: StepContext) -> StepResult:
    """Publish the version with its evidence and envelope, move the channel, and pin it in a new revision."""
    number = round_of(context)
    confirmed = context.result_of(f"confirm:{number}")
    judged = context.result_of(f"judge:{number}")
    ab = context.result_of(f"ab:{number}")
    kernel = confirmed["kernel"]
    concurrency = [r.concurrency for r in context.regimes if r.name in confirmed["envelope"]]
    evidence = [
        {"type": "correctness", "digest": judged["verdict"]},
        {"type": "ab", "digest": ab["evidence"]},
        {"type": "ab", "digest": confirmed["evidence"]},
    ]
    provenance = {
        "campaign": str(context.campaign.pk),
        "candidate": kernel["candidate"],
        "agent": "tuner",
        "arch": kernel["isa"],
    }
    draft = manifest_of(
        context, kernel, version="0.0.1", regimes=concurrency, evidence=evidence, provenance=provenance
    )
    # Chosen once and kept: a second attempt must publish the very same manifest.
    version = context.checkpoint_data.get("version") or registry.next_version(draft)
    context.save_checkpoint(version=version)
    manifest = draft | {"version": version}
    context.progress(0, 2, f"publishing {manifest['name']} {version}")
    published = registry.publish_version(manifest=manifest, actor=ACTOR)
    registry.promote(
        name=manifest["name"],
        channel=context.config.channel,
        version=version,
        actor=ACTOR,
        reason=f"accepted by campaign {context.campaign.pk}",
    )
    pinned = {"name": manifest["name"], "version": version, "digest": published.digest}
    others = [k for k in context.revision.kernels if k["name"] != manifest["name"]]
    earlier = [k for k in _earlier(context) if k["name"] != manifest["name"]]
    by_name = {k["name"]: k for k in [*others, *earlier, pinned]}
    revision = create_revision(
        deployment=context.deployment,
        kernels=list(by_name.values()),
        reason=f"campaign {context.campaign.pk}",
        actor=ACTOR,
    )
    context.candidate(
        digest=kernel["candidate"],
        task=kernel["task"],
        state=CandidateState.ACCEPTED,
        reason=f"registered as {manifest['name']} {version}",
        ab={"discovery": ab["decisions"], "confirmation": confirmed["decisions"]},
    )
    context.progress(2, 2, f"registered {manifest['name']} {version}")
    result: dict[str, Any] = {
        "kernel": kernel,
        "pinned": pinned,
        "revision": revision.number,
        "envelope": confirmed["envelope"],
        "object": kernel["object"],
    }
    return StepResult(result, next=[(StepKind.PROFILE, f"profile:{number + 1}")])


def _earlier(context: StepContext) -> list[dict[str, str]]:
    """Kernels that earlier rounds of this campaign pinned."""
    steps = context.campaign.steps.filter(kind=StepKind.REGISTER, state="done").order_by("ordinal")
    return [dict(step.result["pinned"]) for step in steps]
