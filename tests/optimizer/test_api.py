import json
import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from deployments.models import Deployment
from optimizer.models import Campaign, Candidate, Measurement, Step
from optimizer.queries import campaign_folder
from optimizer.services import note_failure, record_candidate
from optimizer.states import CampaignState, CandidateState
from rackforge.audit.models import Event
from registry import facade as registry

pytestmark = pytest.mark.django_db
DIGEST = "sha256:" + "a" * 64


def test_a_campaign_is_started_once(api: APIClient, deployment: Deployment) -> None:
    send = {"deployment": "chat", "config": {"regimes": ["c8"], "budget": {"wall_s": 60}}}
    made = api.post("/api/v1/campaigns", send, headers={"Idempotency-Key": "start-1"})
    assert made.status_code == 201
    body = made.json()
    assert (body["state"], body["revision"], body["config"]["regimes"]) == ("queued", 1, ["c8"])
    assert [stage["key"] for stage in body["stages"]] == ["prepare", "baseline", "aa", "profile"]
    assert body["left"] == {"seconds": 60.0, "basis": "at most, by the budget"}
    assert made["Location"] == f"/api/v1/campaigns/{body['id']}"
    assert api.get(made["Location"]).json() == body
    again = api.post("/api/v1/campaigns", send, headers={"Idempotency-Key": "start-1"})
    assert (again.status_code, again.json()["id"], again["Location"]) == (201, body["id"], made["Location"])
    second = api.post("/api/v1/campaigns", send)
    assert (second.status_code, Campaign.objects.count()) == (409, 1)
    assert second.json()["detail"] == "chat has an open campaign; cancel it or wait for it"


@pytest.mark.parametrize(
    ("config", "place", "text"),
    [
        ({"regimes": ["c9"]}, "config.regimes", "'c9' is not a regime of chat; it has c1, c8"),
        ({"tasks": ["nope"]}, "config.tasks", "no task 'nope'"),
        ({"tasks": ["/tmp"]}, "config.tasks", "no task '/tmp'"),
        ({"budget": {"wall_s": -1}}, "config.budget.wall_s", "greater than 0"),
        ({"colour": 1}, "config.colour", "Extra inputs are not permitted"),
        ({"test": {"looks": [1]}}, "config.test", "cannot reach alpha"),
    ],
)
def test_a_campaign_that_cannot_be_is_refused(
    api: APIClient, deployment: Deployment, config: dict, place: str, text: str
) -> None:
    response = api.post("/api/v1/campaigns", {"deployment": "chat", "config": config})
    assert response.status_code == 400
    assert text in response.json()["errors"][place][0]
    assert not Campaign.objects.exists()


def test_pause_resume_cancel(api: APIClient, campaign: Campaign) -> None:
    path = f"/api/v1/campaigns/{campaign.pk}"
    assert api.post(f"{path}/pause").json()["state"] == "paused"
    assert api.post(f"{path}/pause").json()["state"] == "paused"
    assert api.post(f"{path}/resume").json()["state"] == "running"
    body = api.post(f"{path}/cancel").json()
    assert (body["state"], {stage["state"] for stage in body["stages"]}) == ("cancelled", {"skipped"})
    late = api.post(f"{path}/resume")
    assert (late.status_code, late.json()["detail"]) == (409, "the campaign has ended (cancelled); start a new one")
    actions = Event.objects.filter(object_id=str(campaign.pk)).values_list("action", flat=True)
    assert [a for a in actions if a != "campaign.state"] == [
        "campaign.create",
        "campaign.pause",
        "campaign.run",
        "campaign.cancel",
    ]


def test_a_step_that_runs_is_not_cancelled_under_its_worker(api: APIClient, campaign: Campaign) -> None:
    Campaign.objects.update(state=CampaignState.RUNNING)
    Step.objects.filter(key="prepare").update(state="running", lease_token=uuid.uuid4(), attempt=1)
    body = api.post(f"/api/v1/campaigns/{campaign.pk}/cancel").json()
    assert (body["state"], body["desired"]) == ("running", "cancel")


def test_the_detail_shows_progress_budget_best_and_failures(api: APIClient, campaign: Campaign) -> None:
    Step.objects.filter(key="prepare").update(state="done", wall_s=12.5)
    Step.objects.filter(key="baseline").update(progress={"done": 1, "total": 4, "text": "compiled/auto"}, wall_s=2.5)
    common = {"kind": "cpp", "agent": "tuner"}
    record_candidate(campaign=campaign, digest="d1", task="linear", state=CandidateState.TRIED, speedup=3.0, **common)
    record_candidate(
        campaign=campaign,
        digest="d2",
        task="linear",
        state=CandidateState.JUDGED,
        speedup=1.5,
        verdict_digest=DIGEST,
        object_digest=DIGEST,
        **common,
    )
    record_candidate(
        campaign=campaign, digest="d3", task="linear", state=CandidateState.CRASHED, reason="SIGSEGV", **common
    )
    note_failure(campaign_id=campaign.pk, stage="optimize", what="candidate 3", why="SIGSEGV")
    body = api.get(f"/api/v1/campaigns/{campaign.pk}").json()
    assert [(stage["fraction"], stage["wall_s"]) for stage in body["stages"][:2]] == [(1.0, 12.5), (0.25, 2.5)]
    assert body["budget"][0] == {
        "name": "wall time",
        "unit": "s",
        "spent": 15.0,
        "limit": 3600.0,
        "fraction": 15 / 3600,
    }
    assert body["candidates"] == {"total": 3, "by_state": {"tried": 1, "crashed": 1, "judged": 1}}
    # the judge's word counts more than a faster time of the search
    (best,) = body["best"]
    assert (best["number"], best["speedup"], best["proven"], best["evidence"]) == (2, 1.5, True, DIGEST)
    assert body["failures"][0]["why"] == "SIGSEGV"
    assert body["best_speedup"] == 1.5
    listed = api.get("/api/v1/campaigns?deployment=chat&open=true").json()["results"]
    assert [(row["id"], row["candidate_count"], row["wall_s"]) for row in listed] == [(str(campaign.pk), 3, 15.0)]
    assert api.get("/api/v1/campaigns?open=false").json()["results"] == []
    assert api.get("/api/v1/campaigns?state=nonsense").status_code == 400


def test_time_left_is_learned_from_the_campaign_before(
    api: APIClient, campaign: Campaign, deployment: Deployment
) -> None:
    Step.objects.filter(campaign=campaign).update(state="done", wall_s=100)
    Campaign.objects.update(state="succeeded", outcome="nothing")
    body = api.post("/api/v1/campaigns", {"deployment": "chat"}).json()
    assert body["left"] == {"seconds": 400.0, "basis": "as long as the last campaign of this deployment"}


def test_candidates_with_their_sources(api: APIClient, campaign: Campaign) -> None:
    source = registry.put_blob(json.dumps({"kernel.cpp": "int x;\n"}).encode())
    record_candidate(
        campaign=campaign,
        digest="d1",
        task="linear",
        kind="cpp",
        agent="tuner",
        state=CandidateState.SLOWER,
        source_digest=source,
        timings=[{"shape": {"M": 1}, "us": 10.0, "stock_us": 9.0}],
    )
    path = f"/api/v1/campaigns/{campaign.pk}/candidates"
    assert [row["number"] for row in api.get(f"{path}?state=slower&task=linear").json()["results"]] == [1]
    assert api.get(f"{path}?min_speedup=2").json()["results"] == []
    response = api.get(f"{path}/1")
    assert response.json()["files"] == {"kernel.cpp": "int x;\n"}
    assert response.json()["timings"][0]["us"] == 10.0
    assert api.get(f"{path}/1", headers={"If-None-Match": response["ETag"]}).status_code == 304
    assert api.get(f"{path}/2").status_code == 404
    assert api.get(f"/api/v1/campaigns/{uuid.uuid4()}/candidates").status_code == 404


def test_steps_and_measurements(api: APIClient, campaign: Campaign) -> None:
    step = Step.objects.get(key="aa")
    for index in range(2):
        Measurement.objects.create(
            step=step, kind="block", regime="c8", index=index, payload={"log_ratio": 0.01}, evidence=[DIGEST]
        )
    path = f"/api/v1/campaigns/{campaign.pk}"
    assert [row["key"] for row in api.get(f"{path}/steps").json()["results"]] == [
        "prepare",
        "baseline",
        "aa",
        "profile",
    ]
    assert api.get(f"{path}/steps/aa").json()["kind"] == "aa"
    rows = api.get(f"{path}/measurements?kind=block&step=aa").json()["results"]
    assert [(row["index"], row["evidence"]) for row in rows] == [(0, [DIGEST]), (1, [DIGEST])]
    assert api.get(f"{path}/measurements?regime=c1").json()["results"] == []


def test_the_log_of_a_server_is_read_in_pieces(api: APIClient, campaign: Campaign) -> None:
    folder = campaign_folder(campaign.pk) / "baseline"
    folder.mkdir(parents=True)
    (folder / "server.log").write_text("one\ntwo\n")
    path = f"/api/v1/campaigns/{campaign.pk}/servers"
    assert api.get(path).json() == [{"slot": "baseline", "alive": False, "port": None, "size": 8}]
    first = api.get(f"{path}/baseline/log").json()
    assert (first["text"], first["next_offset"]) == ("one\ntwo\n", 8)
    with (folder / "server.log").open("a") as log:
        log.write("three\n")
    assert api.get(f"{path}/baseline/log?offset=8").json()["text"] == "three\n"
    assert api.get(f"{path}/baseline/log?offset=-6").json()["text"] == "three\n"
    assert api.get(f"{path}/..%2F..%2Fsecret/log").status_code == 404
    assert api.get(f"{path}/../log").status_code == 404
    assert api.get(f"{path}/baseline/log?offset=x").status_code == 400


def test_queries_do_not_grow_with_the_rows(api: APIClient, campaign: Campaign) -> None:
    """Baselines, the token's own query included."""
    for number in range(5):
        Candidate.objects.create(
            campaign=campaign, number=number + 1, task="t", kind="cpp", agent="a", digest=f"d{number}", state="tried"
        )
    api.get("/api/v1/me")  # marks the token as used
    path = f"/api/v1/campaigns/{campaign.pk}"
    baselines = {
        "/api/v1/campaigns": 2,
        path: 7,
        f"{path}/candidates": 3,
        f"{path}/steps": 3,
        f"{path}/measurements": 3,
    }
    for address, baseline in baselines.items():
        with CaptureQueriesContext(connection) as seen:
            assert api.get(address).status_code == 200
        assert len(seen) == baseline, (address, [query["sql"] for query in seen])
