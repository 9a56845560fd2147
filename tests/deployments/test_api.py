import copy
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from deployments.models import Deployment, Revision
from deployments.services import create_revision
from tests.api_fixtures import RECIPE

pytestmark = pytest.mark.django_db


def test_a_deployment_from_nothing(api: APIClient, model_folder: Path) -> None:
    assert api.post("/api/v1/nodes", {"name": "node-1", "facts": {"cpu": "Xeon"}}).status_code == 201
    made = api.post("/api/v1/models", {"name": "tiny", "path": str(model_folder)})
    assert made.json()["config"]["max_position_embeddings"] == 2048
    made = api.post("/api/v1/deployments", {"name": "chat", "model": "tiny", "node": "node-1", "recipe": RECIPE})
    assert (made.status_code, made["ETag"], made["Location"]) == (201, '"v1"', "/api/v1/deployments/chat")
    body = api.get("/api/v1/deployments/chat").json()
    assert body == made.json()
    assert (body["model"], body["node"], body["version"], body["latest_revision"]) == ("tiny", "node-1", 1, 1)
    assert body["recipe"]["regimes"][1]["warmup_requests"] == 0
    again = api.post("/api/v1/deployments", {"name": "chat", "model": "tiny", "node": "node-1", "recipe": RECIPE})
    assert (again.status_code, Deployment.objects.count()) == (409, 1)


def test_what_cannot_be_served_is_refused_with_its_place(api: APIClient, deployment: Deployment) -> None:
    def attempt(**changes: object) -> dict:
        send = {"name": "new", "model": "tiny", "node": "node-1", "recipe": {**copy.deepcopy(RECIPE), **changes}}
        response = api.post("/api/v1/deployments", send)
        assert response.status_code == 400
        return response.json()["errors"]

    assert "more than the 2048 positions of tiny" in attempt(max_model_len=4096)["recipe.max_model_len"][0]
    assert "is set by the platform" in attempt(args=["--port", "1"])["recipe.args"][0]
    assert attempt(colour="red")["recipe.colour"] == ["Extra inputs are not permitted"]
    long = [{"concurrency": 1, "input_len": 500, "output_len": 100, "num_requests": 1}]
    assert "more than the context of 512" in str(attempt(regimes=long))
    missing = api.post("/api/v1/models", {"name": "none", "path": "/does/not/exist"})
    assert missing.json()["errors"]["path"][0].startswith("model path '/does/not/exist': there is no config.json")
    unknown = api.post("/api/v1/deployments", {"name": "x", "model": "nope", "node": "node-1", "recipe": RECIPE})
    assert unknown.json()["detail"] == "model: Object with name=nope does not exist."
    assert Deployment.objects.count() == 1


def test_a_change_needs_the_version_that_was_read(api: APIClient, deployment: Deployment) -> None:
    send = {"recipe": {**RECIPE, "max_model_len": 1024}}
    blind = api.patch("/api/v1/deployments/chat", send)
    assert (blind.status_code, blind.json()["title"]) == (428, "If-Match is required")
    wrong = api.patch("/api/v1/deployments/chat", send, headers={"If-Match": '"v7"'})
    assert wrong.status_code == 412
    assert Revision.objects.count() == 1
    etag = api.get("/api/v1/deployments/chat")["ETag"]
    done = api.patch("/api/v1/deployments/chat", send, headers={"If-Match": etag})
    assert (done.status_code, done["ETag"], done.json()["latest_revision"]) == (200, '"v2"', 2)
    late = api.patch("/api/v1/deployments/chat", send, headers={"If-Match": etag})
    assert (late.status_code, Revision.objects.count()) == (412, 2)


def test_an_unchanged_deployment_is_not_sent_again(api: APIClient, deployment: Deployment) -> None:
    response = api.get("/api/v1/deployments/chat", headers={"If-None-Match": 'W/"v1"'})
    assert (response.status_code, response.content) == (304, b"")


def test_the_difference_of_two_revisions(api: APIClient, deployment: Deployment) -> None:
    kernel = {"name": "rackforge/linear", "version": "1.0.0", "digest": "sha256:" + "a" * 64}
    create_revision(deployment=deployment, kernels=[kernel], reason="won", actor="test")
    api.patch(
        "/api/v1/deployments/chat",
        {"recipe": {**RECIPE, "max_model_len": 1024, "regimes": RECIPE["regimes"][:1]}},
        headers={"If-Match": '"v1"'},
    )
    body = api.get("/api/v1/deployments/chat/revisions/difference?from=1&to=3").json()
    assert body["recipe"][0] == {"path": "recipe.max_model_len", "before": 512, "after": 1024}
    assert [change["path"] for change in body["recipe"]] == ["recipe.max_model_len", "recipe.regimes[1]"]
    assert body["kernels"] == [{"name": "rackforge/linear", "what": "added", "before": None, "after": kernel}]
    assert api.get("/api/v1/deployments/chat/revisions/difference?from=3&to=3").json() == {
        "recipe": [],
        "kernels": [],
    }
    missing = api.get("/api/v1/deployments/chat/revisions/difference?from=1&to=9")
    assert (missing.status_code, missing.json()["detail"]) == (404, "chat has no revision 9")
    assert api.get("/api/v1/deployments/chat/revisions/difference?from=x&to=1").status_code == 400
    assert [row["number"] for row in api.get("/api/v1/deployments/chat/revisions").json()["results"]] == [3, 2, 1]
    assert api.get("/api/v1/deployments/nope/revisions").json()["detail"] == "there is no deployment called 'nope'"


def test_lists_cost_a_fixed_number_of_queries(api: APIClient, deployment: Deployment) -> None:
    """Baselines: user and token, its last use, then one query a list."""
    for number in range(3):
        Deployment.objects.create(
            name=f"more-{number}", model=deployment.model, node=deployment.node, recipe=deployment.recipe
        )
    api.get("/api/v1/me")  # marks the token as used
    for path, baseline in (("deployments", 2), ("nodes", 2), ("models", 2), ("deployments/chat/revisions", 3)):
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert api.get(f"/api/v1/{path}").status_code == 200
        assert len(seen) == baseline, (path, [query["sql"] for query in seen])
