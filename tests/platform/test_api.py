"""What every part of the API has in common."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client, override_settings
from django.utils import timezone
from rest_framework.test import APIClient

from rackforge.accounts.models import ApiToken, Role
from rackforge.api.models import IdempotencyKey
from rackforge.audit.models import Event

pytestmark = pytest.mark.django_db
MakeClient = Callable[..., APIClient]


def problem(response) -> dict:
    assert response["Content-Type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    assert body["request_id"] == response["X-Request-ID"]
    return body


def test_without_a_token_nothing_is_shown() -> None:
    response = APIClient().get("/api/v1/deployments")
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert problem(response)["detail"] == "Authentication credentials were not provided."


def test_a_wrong_and_a_revoked_token_are_refused(api: APIClient) -> None:
    wrong = APIClient(HTTP_AUTHORIZATION="Bearer rf_nonsense").get("/api/v1/me")
    assert (wrong.status_code, problem(wrong)["detail"]) == (401, "this token is unknown, expired or revoked")
    assert api.get("/api/v1/me").status_code == 200
    assert api.delete(f"/api/v1/tokens/{ApiToken.objects.get().pk}").status_code == 204
    assert api.get("/api/v1/me").status_code == 401


def test_every_kind_of_error_is_a_problem_document(api: APIClient, client: Client) -> None:
    assert problem(api.get("/api/v1/nothing"))["detail"] == "There is nothing at this address."
    assert problem(api.get("/api/v1/deployments/nothing"))["status"] == 404
    assert problem(api.put("/api/v1/deployments"))["detail"] == 'Method "PUT" not allowed.'
    malformed = api.post("/api/v1/deployments", data="{not json", content_type="application/json")
    assert malformed.status_code == 400
    assert problem(malformed)["title"] == "Malformed request"
    assert problem(api.post("/api/v1/deployments", data="a=1", content_type="text/plain"))["status"] == 415


def test_a_failure_of_ours_is_a_problem_too(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("deployments.api.DeploymentViewSet.list", boom)
    api.raise_request_exception = False
    body = problem(api.get("/api/v1/deployments"))
    assert body["status"] == 500
    assert "secret" not in str(body)


def test_unknown_fields_and_parameters_are_refused_by_name(api: APIClient) -> None:
    body = problem(api.post("/api/v1/deployments", {"nmae": "chat", "version": 3}))
    assert body["errors"]["nmae"] == ["unknown field; did you mean 'name'?"]
    body = problem(api.get("/api/v1/deployments?modle=x"))
    assert body["detail"] == "modle: unknown query parameter; did you mean 'model'?"


def test_roles_are_kept_and_a_refusal_changes_nothing(make_client: MakeClient) -> None:
    viewer = make_client(Role.VIEWER, "eve")
    before = Event.objects.count()
    response = viewer.post("/api/v1/nodes", {"name": "n", "facts": {}})
    assert problem(response)["detail"] == "this needs the role operator; you act as viewer"
    assert Event.objects.count() == before
    assert viewer.get("/api/v1/nodes").json()["results"] == []


def test_a_token_is_shown_once_and_never_exceeds_its_maker(make_client: MakeClient) -> None:
    api = make_client(Role.OPERATOR)
    made = api.post("/api/v1/tokens", {"name": "ci", "role": "operator"})
    assert made.status_code == 201
    text = made.json()["token"]
    assert text.startswith("rf_")
    assert APIClient(HTTP_AUTHORIZATION=f"Bearer {text}").get("/api/v1/me").json() == {
        "username": "ann",
        "role": "operator",
        "token": "ci",
    }
    assert text not in api.get("/api/v1/tokens").content.decode()
    too_much = api.post("/api/v1/tokens", {"name": "root", "role": "admin"})
    assert (too_much.status_code, ApiToken.objects.filter(name="root").exists()) == (403, False)
    assert api.post("/api/v1/tokens", {"name": "ci"}).status_code == 409
    past = timezone.now() - timedelta(days=1)
    assert problem(api.post("/api/v1/tokens", {"name": "old", "expires_at": past.isoformat()}))["detail"] == (
        "expires_at: this is in the past"
    )


def test_tokens_of_others_are_seen_by_admins_only(make_client: MakeClient) -> None:
    ann, root = make_client(Role.OPERATOR, "ann"), make_client(Role.ADMIN, "root")
    hers = ApiToken.objects.get(user__username="ann")
    his = ApiToken.objects.get(user__username="root")
    assert ann.delete(f"/api/v1/tokens/{his.pk}").status_code == 404
    assert {row["user"] for row in root.get("/api/v1/tokens").json()["results"]} == {"ann", "root"}
    assert root.delete(f"/api/v1/tokens/{hers.pk}").status_code == 204


def test_a_repeated_request_is_done_once(api: APIClient) -> None:
    send = {"name": "node-1", "facts": {"memory_gib": 24.5}}
    first = api.post("/api/v1/nodes", send, headers={"Idempotency-Key": "abc"})
    events = Event.objects.count()
    again = api.post("/api/v1/nodes", send, headers={"Idempotency-Key": "abc"})
    assert (again.status_code, again.json()) == (201, first.json())
    assert "Idempotency-Replayed" not in first
    assert again["Idempotency-Replayed"] == "true"
    assert Event.objects.count() == events
    other = api.post("/api/v1/nodes", {"name": "node-2", "facts": {}}, headers={"Idempotency-Key": "abc"})
    assert (other.status_code, problem(other)["title"]) == (422, "Idempotency-Key used before")


def test_a_failed_request_leaves_no_key(api: APIClient) -> None:
    assert api.post("/api/v1/nodes", {"facts": {}}, headers={"Idempotency-Key": "abc"}).status_code == 400
    assert not IdempotencyKey.objects.exists()
    assert (
        api.post("/api/v1/nodes", {"name": "n", "facts": {}}, headers={"Idempotency-Key": "abc"}).status_code == 201
    )
    bad = api.post("/api/v1/nodes", {"name": "n", "facts": {}}, headers={"Idempotency-Key": "ü" * 3})
    assert problem(bad)["title"] == "Bad Idempotency-Key"


def test_keys_of_two_people_do_not_meet(make_client: MakeClient) -> None:
    for name in ("ann", "bob"):
        response = make_client(Role.OPERATOR, name).post(
            "/api/v1/nodes", {"name": f"node-{name}", "facts": {}}, headers={"Idempotency-Key": "k"}
        )
        assert response.json()["name"] == f"node-{name}"


def test_too_many_requests_say_when_to_come_back(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest_framework.throttling.UserRateThrottle.THROTTLE_RATES", {"user": "2/min"})
    for _ in range(2):
        assert api.get("/api/v1/me").status_code == 200
    response = api.get("/api/v1/me")
    assert response.status_code == 429
    assert 0 < problem(response)["retry_after_s"] <= 61
    assert int(response["Retry-After"]) > 0


def test_events_can_be_filtered(api: APIClient) -> None:
    api.post("/api/v1/nodes", {"name": "node-1", "facts": {}}, headers={"X-Request-ID": "r-1"})
    (event,) = api.get("/api/v1/events?object_type=node").json()["results"]
    assert (event["action"], event["object_id"], event["request_id"]) == ("node.register", "node-1", "r-1")
    assert event["actor"].startswith("ann (token ")
    assert api.get("/api/v1/events?action=none").json()["results"] == []
    assert api.delete(f"/api/v1/events/{event['id']}").status_code == 405


@override_settings(ALLOWED_HOSTS=["only.example"])
def test_a_foreign_host_name_is_refused(api: APIClient) -> None:
    assert api.get("/api/v1/me").status_code == 400
