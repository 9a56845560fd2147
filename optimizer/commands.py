"""`rackforge campaign` and `rackforge candidate`: thin callers of the REST interface."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import click

from optimizer import watching
from rackforge.client import Client
from rackforge.terminal import (
    EXIT_INTERRUPTED,
    ApiGroup,
    as_json,
    client,
    console,
    duration,
    pairs,
    show_json,
    table,
    when,
)
from rackforge_runtime.cli import EXIT_ERROR, EXIT_NOT_FOUND

EXIT_CANCELLED = 8
PREFIX = 4  # characters of an id that are enough to name it


@click.group(cls=ApiGroup)
def campaign() -> None:
    """Optimization campaigns.

    Where a campaign is asked for, give its id, the first characters of it, `latest`, or the name of a deployment
    (its newest campaign is meant).

    Exit codes: 0 done; 1 an error, or the campaign failed; 2 wrong usage; 4 not found; 5 conflict; 6 no answer;
    7 not allowed; 8 the campaign was cancelled; 130 interrupted (the campaign goes on).
    """


def find(api: Client, text: str) -> str:
    """The id that is meant. Exits with 4 when there is none, 2 when several match."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        pass
    if text == "latest":
        rows = list(api.pages("campaigns", at_most=1))
        if not rows:
            _missing("there is no campaign yet; `rackforge campaign start DEPLOYMENT` makes one")
        return str(rows[0]["id"])
    named = list(api.pages("campaigns", at_most=1, deployment=text))
    if named:
        return str(named[0]["id"])
    if len(text) < PREFIX:
        raise click.UsageError(f"{text!r} is too short to name a campaign; give {PREFIX} characters of its id")
    rows = [row for row in api.pages("campaigns", at_most=2000) if row["id"].startswith(text.lower())]
    if not rows:
        _missing(f"no campaign or deployment is called {text!r}; `rackforge campaign list` shows what there is")
    if len(rows) > 1:
        raise click.UsageError(f"{text!r} is the beginning of {len(rows)} campaigns; give more of the id")
    return str(rows[0]["id"])


def _missing(text: str) -> None:
    click.echo(f"rackforge: {text}", err=True)
    sys.exit(EXIT_NOT_FOUND)


@campaign.command()
@click.argument("deployment")
@click.option("--name", default="", help="Default: the deployment and the time.")
@click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON.")
@click.option("--regime", "regimes", multiple=True, help="Only this regime (c1, c8, ...); may be repeated.")
@click.option("--task", "tasks", multiple=True, help="Only this kernel task; may be repeated.")
@click.option("--wall-minutes", type=click.FloatRange(min=0, min_open=True), help="Budget of wall time.")
@click.option("--candidates", type=click.IntRange(min=1), help="Budget of candidates.")
@click.option("--watch", is_flag=True, help="Follow it until it ends.")
@as_json
def start(
    deployment: str,
    name: str,
    config_file: Path | None,
    regimes: tuple[str, ...],
    tasks: tuple[str, ...],
    wall_minutes: float | None,
    candidates: int | None,
    watch: bool,
    as_json: bool,
) -> None:
    """Start a campaign on a deployment."""
    try:
        config: dict[str, Any] = json.loads(config_file.read_text()) if config_file else {}
        budget = dict(config.get("budget", {}))
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise click.BadParameter(f"{config_file}: not a JSON object of a configuration: {error}") from error
    if regimes:
        config["regimes"] = list(regimes)
    if tasks:
        config["tasks"] = list(tasks)
    if wall_minutes is not None:
        budget["wall_s"] = wall_minutes * 60
    if candidates is not None:
        budget["max_candidates"] = candidates
    if budget:
        config["budget"] = budget
    api = client()
    body = {"deployment": deployment, "name": name, "config": config}
    made = api.post("campaigns", body, key=uuid.uuid4().hex)
    if watch:
        _watch(api, made["id"], as_json)
    elif as_json:
        show_json(made)
    else:
        console().print(f"campaign {made['id']} of {deployment} is {made['state']}", markup=False)
        console().print(f"follow it: rackforge campaign watch {made['id'][:8]}, or {watching.page(api.url, made)}")


@campaign.command("watch")
@click.argument("which", metavar="CAMPAIGN")
@as_json
def watch_command(which: str, as_json: bool) -> None:
    """Follow a campaign until it ends. Interrupting this does not touch the campaign."""
    api = client()
    _watch(api, find(api, which), as_json)


def _watch(api: Client, campaign_id: str, as_json: bool) -> None:
    try:
        last = watching.watch(api, campaign_id, console(), json=as_json)
    except KeyboardInterrupt:
        click.echo(f"\nThe campaign goes on; `rackforge campaign cancel {campaign_id[:8]}` would end it.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if last["state"] == "failed":
        sys.exit(EXIT_ERROR)
    if last["state"] == "cancelled":
        sys.exit(EXIT_CANCELLED)


@campaign.command("list")
@click.option("--deployment")
@click.option("--state", type=click.Choice(["queued", "running", "paused", *watching.ENDED]))
@click.option("--open", "only_open", is_flag=True, help="Only those that have not ended.")
@click.option("--limit", type=click.IntRange(1, 2000), default=50, show_default=True)
@as_json
def list_campaigns(deployment: str | None, state: str | None, only_open: bool, limit: int, as_json: bool) -> None:
    """Campaigns, newest first."""
    rows = list(
        client().pages(
            "campaigns", at_most=limit, deployment=deployment, state=state, open="true" if only_open else None
        )
    )
    if as_json:
        show_json(rows)
        return
    table(
        ["id", "deployment", "state", "outcome", "candidates>", "best kernel>", "work>", "created"],
        [
            (
                row["id"][:8],
                row["deployment"],
                row["state"],
                row["outcome"],
                str(row["candidate_count"]),
                f"{row['best_speedup']:.2f}x" if row["best_speedup"] else "",
                duration(row["wall_s"]),
                when(row["created_at"]),
            )
            for row in rows
        ],
        empty="No campaign matches. `rackforge campaign start DEPLOYMENT` makes one.",
    )


@campaign.command()
@click.argument("which", metavar="CAMPAIGN")
@as_json
def show(which: str, as_json: bool) -> None:
    """A campaign as it stands."""
    api = client()
    found = api.get(f"campaigns/{find(api, which)}")
    if as_json:
        show_json(found)
    else:
        console().print(watching.render(found, url=api.url))


def _ask(which: str, action: str, as_json: bool) -> None:
    api = client()
    found = api.post(f"campaigns/{find(api, which)}/{action}", key=uuid.uuid4().hex)
    if as_json:
        show_json(found)
        return
    pending = found["desired"] != "run" and found["state"] == "running"
    at = f"; {found['desired']} takes effect at the next safe point" if pending else ""
    console().print(f"campaign {found['id'][:8]} is {found['state']}{at}", markup=False)


@campaign.command()
@click.argument("which", metavar="CAMPAIGN")
@as_json
def pause(which: str, as_json: bool) -> None:
    """Stop at the next safe point; everything is kept."""
    _ask(which, "pause", as_json)


@campaign.command()
@click.argument("which", metavar="CAMPAIGN")
@as_json
def resume(which: str, as_json: bool) -> None:
    """Go on where it was."""
    _ask(which, "resume", as_json)


@campaign.command()
@click.argument("which", metavar="CAMPAIGN")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def cancel(which: str, yes: bool, as_json: bool) -> None:
    """End it for good; what was measured and registered stays."""
    if not yes and sys.stdin.isatty():
        click.confirm("A cancelled campaign cannot be resumed. Cancel it?", abort=True, err=True)
    _ask(which, "cancel", as_json)


@campaign.command()
@click.argument("which", metavar="CAMPAIGN")
@click.option("--task")
@click.option("--state")
@click.option("--limit", type=click.IntRange(1, 10000), default=50, show_default=True)
@as_json
def candidates(which: str, task: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """Candidates of a campaign, newest first, failed ones included."""
    api = client()
    rows = list(api.pages(f"campaigns/{find(api, which)}/candidates", at_most=limit, task=task, state=state))
    if as_json:
        show_json(rows)
        return
    table(
        ["#>", "task", "agent", "state", "kernel>", "took>", "reason"],
        [
            (
                str(row["number"]),
                row["task"],
                row["agent"],
                row["state"],
                f"{row['speedup']:.2f}x" if row["speedup"] else "",
                duration(row["wall_s"]),
                row["reason"][:100],
            )
            for row in rows
        ],
        empty="No candidate matches: the search has not begun, or the filter is too narrow.",
    )


@campaign.command()
@click.argument("which", metavar="CAMPAIGN")
@click.argument("slot", required=False)
def logs(which: str, slot: str | None) -> None:
    """Logs of the campaign's model servers: what there is, or the end of one."""
    api = client()
    campaign_id = find(api, which)
    if slot:
        click.echo(api.get(f"campaigns/{campaign_id}/servers/{slot}/log")["text"])
        return
    table(
        ["slot", "state", "port>", "log, bytes>"],
        [
            (row["slot"], "runs" if row["alive"] else "ended", str(row["port"] or ""), str(row["size"]))
            for row in api.get(f"campaigns/{campaign_id}/servers")
        ],
        empty="No server of this campaign has left a log yet.",
    )


@click.group(cls=ApiGroup)
def candidate() -> None:
    """Candidate kernels of a campaign."""


@candidate.command("show")
@click.argument("which", metavar="CAMPAIGN")
@click.argument("number", type=int)
@click.option("--source", is_flag=True, help="Print its sources.")
@as_json
def show_candidate(which: str, number: int, source: bool, as_json: bool) -> None:
    """A candidate: what it is, how far it came and why."""
    api = client()
    found = api.get(f"campaigns/{find(api, which)}/candidates/{number}")
    if as_json:
        show_json(found)
        return
    if source:
        for name, text in found["files"].items():
            click.echo(f"// {name}\n{text}")
        return
    faster = f"{found['speedup']:.2f}x the stock operator alone" if found["speedup"] else ""
    rows = [
        ("candidate", f"#{found['number']} of {found['task']} by {found['agent']}"),
        ("state", found["state"]),
        ("reason", found["reason"]),
        ("speed-up", faster),
        ("digest", found["digest"]),
        ("object", found["object_digest"]),
        ("verdict", found["verdict_digest"]),
        ("parameters", json.dumps(found["params"]) if found["params"] else ""),
    ]
    pairs(row for row in rows if row[1])
    for timing in found["timings"]:
        shape = ", ".join(f"{axis}={length}" for axis, length in timing.get("shape", {}).items())
        stock = f", stock {timing['stock_us']:.1f} us" if timing.get("stock_us") else ""
        console().print(f"  {shape}: {timing.get('us', 0):.1f} us{stock}", markup=False)
