"""The model servers of campaigns: a named slot each, adopted by the next worker when one is killed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from deployments.recipe import Recipe
from optimizer.context import Interrupted, StepContext
from optimizer.engine.serving import LocalServer, ServerSpec, ServingEnvironment, StartCancelled
from optimizer.engine.serving import reap as reap_recorded
from optimizer.engine.serving.server import ServerRecord, end_recorded
from optimizer.models import Campaign
from optimizer.states import CampaignState
from rackforge.config import Config


def environment(config: Config) -> ServingEnvironment:
    """The serving environment of this installation."""
    return ServingEnvironment(python=config.serving_python, cache_root=config.cache / "serving")


def stock_spec(*, recipe: Recipe, model_path: str, load_format: str) -> ServerSpec:
    """The deployment as it is served without any of our kernels and before a launch configuration."""
    return ServerSpec(
        model=model_path,
        load_format=load_format,
        seed=recipe.seed,
        max_model_len=recipe.max_model_len,
        max_num_seqs=max(64, *(regime.concurrency for regime in recipe.regimes)),
        kv_cache_gib=recipe.kv_cache_gib,
        args=recipe.args,
        env=recipe.env,
    )


def campaign_folder(campaign_id: uuid.UUID | str, config: Config | None = None) -> Path:
    """Where the servers of a campaign keep their state and logs."""
    config = config or settings.CONFIG
    return config.servers / str(campaign_id)


def ensure(context: StepContext, slot: str, spec: ServerSpec, *, note: str = "") -> LocalServer:
    """The running server of a slot: adopted when it is this spec's, else started anew.

    Raises StartFailed with the cause from the log, Interrupted when the campaign stops meanwhile.
    """

    def progress(stage: str, seconds: float) -> None:
        context.progress(0, 1, f"{note or slot}: {stage} ({seconds:.0f} s)")

    try:
        return LocalServer.ensure(
            spec,
            environment=environment(context.platform),
            state_dir=campaign_folder(context.campaign.pk, context.platform) / slot,
            owner=str(context.campaign.pk),
            progress=progress,
            cancelled=context.stopping,
        )
    except StartCancelled as error:
        raise Interrupted from error


def stop_slots(context: StepContext, *, keep: tuple[str, ...] = ()) -> None:
    """Stop the campaign's servers but for these slots."""
    folder = campaign_folder(context.campaign.pk, context.platform)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and path.name not in keep:
            end_recorded(path)


def with_environment(spec: ServerSpec, env: Mapping[str, str]) -> ServerSpec:
    """The same server with more environment."""
    return replace(spec, env={**spec.env, **env})


def stop_campaign(campaign_id: uuid.UUID | str) -> None:
    """Stop whatever a campaign left running."""
    reap_recorded(campaign_folder(campaign_id), keep=lambda _: False)


def reap(*, keep: Callable[[ServerRecord], bool] | None = None) -> list[str]:
    """Stop servers whose campaign does not run any more; ids of what was stopped.

    A server whose worker was killed stays as long as its campaign runs: the next worker adopts it.
    """
    if keep is None:
        running = {
            str(pk)
            for pk in Campaign.objects.filter(state__in=[CampaignState.QUEUED, CampaignState.RUNNING]).values_list(
                "pk", flat=True
            )
        }

        def keep(record: ServerRecord) -> bool:
            return record.owner in running

    root = settings.CONFIG.servers
    return reap_recorded(root, keep=keep) if root.is_dir() else []
