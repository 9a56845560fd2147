"""The reference deployment: a small Llama of random weights, made here, and the campaign on it."""

from __future__ import annotations

import socket
from pathlib import Path

from django.utils.text import slugify

from deployments.models import Deployment, Node, ServedModel
from deployments.recipe import Recipe, Regime
from deployments.services import create_deployment, register_model, register_node
from optimizer.engine.serving import PRESETS, make_reference_model
from optimizer.models import Campaign
from optimizer.plan import CampaignConfig
from optimizer.servers import environment
from optimizer.services import create_campaign
from optimizer.states import CampaignState
from rackforge.config import Config
from rackforge_runtime.facts import collect_facts

DEPLOYMENT = "reference"
# Requests short enough that a block takes seconds, long enough that decoding is what is measured.
REGIMES = (
    Regime(concurrency=1, input_len=32, output_len=64, num_requests=3, warmup_requests=1),
    Regime(concurrency=8, input_len=32, output_len=64, num_requests=16, warmup_requests=8),
)


def node_name() -> str:
    return slugify(socket.gethostname()) or "localhost"


def ensure_node(config: Config, *, actor: str) -> Node:
    """This host, with its facts as they are now."""
    facts = collect_facts(config.serving_python).to_dict()
    return register_node(name=node_name(), facts=facts, roofline={}, actor=actor)


def ensure_model(config: Config, *, preset: str, actor: str) -> ServedModel:
    """The reference model on disk and registered; made once."""
    folder = config.models / f"reference-{preset}"
    make_reference_model(folder, PRESETS[preset], environment=environment(config))
    return register_model(name=f"reference-{preset}", path=str(folder), load_format="dummy", actor=actor)


def ensure_deployment(config: Config, *, actor: str, preset: str = "reference", name: str = DEPLOYMENT) -> Deployment:
    """The reference deployment; an existing one is left as its people made it."""
    node = ensure_node(config, actor=actor)
    model = ensure_model(config, preset=preset, actor=actor)
    existing = Deployment.objects.filter(name=name).first()
    if existing is not None:
        return existing
    recipe = Recipe(max_model_len=2048, regimes=REGIMES, seed=0)
    return create_deployment(name=name, model=model, node=node, recipe=recipe, actor=actor)


def ensure_campaign(deployment: Deployment, config: CampaignConfig, *, actor: str) -> tuple[Campaign, bool]:
    """The open campaign of the deployment, or a new one; and whether an open one goes on."""
    open_one = deployment.campaigns.filter(state__in=[s for s in CampaignState if not s.terminal]).first()
    if open_one is not None:
        return open_one, True
    return create_campaign(deployment=deployment, config=config, actor=actor), False


def summary_path(config: Config) -> Path:
    return config.home / "summary.json"
