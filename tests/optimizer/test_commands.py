"""The commands, against the real REST interface in this process."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner
from django.test import Client as InProcess
from rest_framework.test import APIClient
from rich.console import Console

from deployments.commands import deployment as deployment_group
from deployments.models import Deployment
from optimizer.commands import campaign as campaign_group
from optimizer.commands import candidate as candidate_group
from optimizer.models import Campaign
from optimizer.services import finish, record_candidate
from optimizer.states import CampaignState
from optimizer.watching import watch
from rackforge.accounts.commands import token as token_group
from rackforge.accounts.models import Role
from rackforge.client import Client, Unreachable

Run = Callable[..., Any]


@pytest.fixture
def run(make_client: Callable[..., APIClient], monkeypatch: pytest.MonkeyPatch) -> Run:
    token = make_client(Role.OPERATOR).text
    django = InProcess()

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        headers = dict(request.headers)
        got = django.generic(
            request.method, path, request.content, headers.get("content-type", "text/plain"), headers=headers
        )
        return httpx.Response(got.status_code, headers=dict(got.headers), content=got.content)

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr("rackforge.terminal.connect", lambda: Client("http://127.0.0.1", token, transport=transport))

    def call(group: click.Group, *args: str) -> Any:
        return CliRunner().invoke(group, args, env={"COLUMNS": "200"})

    return call


def test_start_list_pause_and_cancel(run: Run, deployment: Deployment) -> None:
    started = run(campaign_group, "start", "chat", "--regime", "c8", "--wall-minutes", "2")
    assert started.exit_code == 0
    made = Campaign.objects.get()
    assert (made.config["regimes"], made.config["budget"]["wall_s"]) == (["c8"], 120)
    assert f"http://127.0.0.1/campaigns/{made.pk}" in started.output
    assert run(campaign_group, "pause", str(made.pk)[:8]).output == f"campaign {str(made.pk)[:8]} is paused\n"
    listed = json.loads(run(campaign_group, "list", "--open", "--json").output)
    assert [(row["id"], row["state"]) for row in listed] == [(str(made.pk), "paused")]
    assert json.loads(run(campaign_group, "resume", "latest", "--json").output)["state"] == "running"
    assert run(campaign_group, "cancel", "chat", "--yes").exit_code == 0
    late = run(campaign_group, "resume", "chat")
    assert (late.exit_code, late.stderr) == (5, "rackforge: the campaign has ended (cancelled); start a new one\n")


def test_what_is_wrong_is_said_with_its_exit_code(run: Run, deployment: Deployment) -> None:
    refused = run(campaign_group, "start", "chat", "--regime", "c9")
    assert refused.exit_code == 2
    assert refused.stderr == "rackforge: config.regimes: 'c9' is not a regime of chat; it has c1, c8\n"
    assert run(campaign_group, "show", "latest").exit_code == 4
    unknown = run(campaign_group, "show", "nonsense")
    assert (unknown.exit_code, "called 'nonsense'" in unknown.stderr) == (4, True)
    assert run(campaign_group, "show", "ab").exit_code == 2
    denied = run(token_group, "create", "root", "--role", "admin")
    assert (denied.exit_code, "you act as operator" in denied.stderr) == (7, True)


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    monkeypatch.setattr(
        "rackforge.terminal.connect", lambda: Client("http://127.0.0.1:9", "", transport=httpx.MockTransport(refuse))
    )
    result = CliRunner().invoke(campaign_group, ["list"])
    assert result.exit_code == 6
    assert "http://127.0.0.1:9 does not answer" in result.stderr
    assert "rackforge up" in result.stderr


def test_candidates_are_shown(run: Run, campaign: Campaign) -> None:
    record_candidate(
        campaign=campaign,
        digest="d1",
        task="linear",
        kind="cpp",
        agent="tuner",
        state="slower",
        reason="0.8x",
        timings=[{"shape": {"M": 1, "N": 8}, "us": 12.5, "stock_us": 10.0}],
    )
    (row,) = json.loads(run(campaign_group, "candidates", "chat", "--json").output)
    assert (row["number"], row["state"]) == (1, "slower")
    shown = run(candidate_group, "show", "chat", "1").output
    assert "M=1, N=8: 12.5 us, stock 10.0 us" in shown
    assert run(candidate_group, "show", "chat", "2").exit_code == 4


def test_revisions_are_compared(run: Run, deployment: Deployment) -> None:
    assert "r1 and r1 are the same." in run(deployment_group, "diff", "chat", "1", "1").output
    shown = run(deployment_group, "show", "chat")
    assert "c8: 16 requests, 32 tokens in, 16 out" in shown.output


class Script:
    """A client that answers from a list; an exception in it is raised."""

    url = "http://rackforge"

    def __init__(self, *answers: Any) -> None:
        self._answers: Iterator[Any] = iter(answers)

    def get(self, _path: str) -> Any:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_watching_lives_through_a_restart_of_the_web_process(
    run: Run, campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    before = json.loads(run(campaign_group, "show", "chat", "--json").output)
    finish(campaign=campaign, state=CampaignState.CANCELLED, reason="cancelled", actor="test")
    after = json.loads(run(campaign_group, "show", "chat", "--json").output)
    script = [before, before, Unreachable("gone"), Unreachable("gone"), before, after]
    out = io.StringIO()
    waits: list[float] = []
    last = watch(Script(*script), str(campaign.pk), Console(file=out), sleep=waits.append)  # type: ignore[arg-type]
    assert last["state"] == "cancelled"
    assert waits == [1.0] * 5
    assert out.getvalue().count("does not answer") == 1
    assert out.getvalue().rstrip().endswith("cancelled: cancelled")
    watch(Script(*script), str(campaign.pk), Console(file=out), json=True, sleep=waits.append)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("state", "trouble") for line in lines] == ["queued", "trouble", "trouble", "queued", "cancelled"]


def test_watching_gives_up_in_the_end(campaign: Campaign) -> None:
    endless = Script(*[Unreachable("gone")] * 10)
    with pytest.raises(Unreachable):
        watch(endless, "x", Console(file=io.StringIO()), patience_s=3, sleep=lambda _: None)  # type: ignore[arg-type]


def test_the_live_view_shows_stages_and_the_page(run: Run, campaign: Campaign) -> None:
    out = io.StringIO()
    campaign.steps.filter(key="prepare").update(state="done", wall_s=75)
    campaign.steps.filter(key="baseline").update(progress={"done": 1, "total": 2, "text": "eager/auto"})
    body = json.loads(run(campaign_group, "show", "chat", "--json").output)
    body["state"] = "cancelled"
    watch(Script(body), "x", Console(file=out, force_terminal=True, width=160, color_system=None))  # type: ignore[arg-type]
    text = out.getvalue()
    assert "Check the host" in text
    assert "1 min 15 s" in text
    assert f"http://rackforge/campaigns/{campaign.pk}" in text
