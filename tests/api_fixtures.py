"""Fixtures of tests that talk to the API or look at the pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from deployments.models import Deployment
from deployments.recipe import parse_recipe
from deployments.services import create_deployment, register_model, register_node
from optimizer.models import Campaign
from optimizer.plan import CampaignConfig
from optimizer.services import create_campaign
from rackforge.accounts.models import Role, User
from rackforge.accounts.services import create_token

RECIPE: dict[str, Any] = {
    "max_model_len": 512,
    "regimes": [
        {"concurrency": 1, "input_len": 32, "output_len": 16, "num_requests": 3},
        {"concurrency": 8, "input_len": 32, "output_len": 16, "num_requests": 16},
    ],
}


@pytest.fixture
def make_client(db: None) -> Callable[..., APIClient]:
    """Clients that send a token of a role; `client.text` is the token."""

    def make(role: Role = Role.OPERATOR, name: str = "ann") -> APIClient:
        user, _ = User.objects.get_or_create(username=name, defaults={"role": role})
        _, text = create_token(user=user, name=f"{role}-{user.tokens.count()}", role=role, actor="test")
        client = APIClient(HTTP_AUTHORIZATION=f"Bearer {text}")
        client.text = text
        return client

    return make


@pytest.fixture
def api(make_client: Callable[..., APIClient]) -> APIClient:
    return make_client()


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}')
    return tmp_path


@pytest.fixture
def deployment(db: None, model_folder: Path) -> Deployment:
    node = register_node(name="node-1", facts={"cpu": "Xeon"}, roofline={}, actor="test")
    model = register_model(name="tiny", path=str(model_folder), actor="test")
    return create_deployment(name="chat", model=model, node=node, recipe=parse_recipe(RECIPE), actor="test")


@pytest.fixture
def campaign(deployment: Deployment) -> Campaign:
    return create_campaign(deployment=deployment, config=CampaignConfig(), actor="test")
