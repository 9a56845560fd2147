"""Is this host what the campaign needs? Asked before anything long is started."""

from __future__ import annotations

from pathlib import Path

from deployments.recipe import RecipeError
from deployments.services import check_context, register_node
from optimizer.context import Interrupted, StepContext, StepFailed, StepResult
from optimizer.engine.host import RooflineFailed, measure_roofline, preflight
from rackforge_runtime.facts import collect_facts

MIN_DISK = 2 << 30


def run(context: StepContext) -> StepResult:
    """Check the host, the model and the workload; bring the node's facts and roofline up to date."""
    context.progress(0, 3, "looking at the host")
    config = context.platform
    checks = preflight(
        root=config.home, serving_python=config.serving_python, min_disk=MIN_DISK, cancelled=context.stopping
    )
    context.check()
    bad = [check for check in checks if check.stops]
    if bad:
        raise StepFailed("; ".join(f"{check.name}: {check.why} - {check.remedy}" for check in bad))
    if not (Path(context.model.path) / "config.json").is_file():
        raise StepFailed(f"model path {context.model.path!r}: there is no config.json; give a folder vLLM can load")
    try:
        check_context(context.model, context.recipe)
    except RecipeError as error:
        raise StepFailed(str(error)) from error
    context.progress(1, 3, "reading the host's facts")
    facts = collect_facts(config.serving_python)
    roofline = context.node.roofline
    if not roofline or context.node.facts_digest != facts.facts_digest:
        context.progress(2, 3, "measuring memory bandwidth and peak arithmetic")
        try:
            roofline = measure_roofline(
                facts,
                cache=config.cache / "build",
                repeats=3,
                progress=lambda text, share: context.progress(2 + share * 0.99, 3, f"measuring: {text}"),
                cancelled=context.stopping,
            ).to_dict()
        except RooflineFailed as error:
            context.check()
            raise StepFailed(str(error)) from error
        except Exception:
            if context.stopping():
                raise Interrupted from None
            raise
    register_node(name=context.node.name, facts=facts.to_dict(), roofline=roofline, actor="campaign")
    context.progress(3, 3, "the host is ready")
    return StepResult(
        {
            "facts_digest": facts.facts_digest,
            "isa": list(facts.isa),
            "roofline": roofline,
            "versions": dict(facts.versions),
            "checks": [{"name": c.name, "ok": c.ok, "why": c.why, "remedy": c.remedy} for c in checks],
        }
    )
