"""A campaign followed in the terminal. It lives through restarts of the web process."""

from __future__ import annotations

import json as _json
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rackforge.client import ApiError, Client, Unreachable
from rackforge.terminal import duration

ENDED = ("succeeded", "failed", "cancelled")
MARKS = {"done": ("✓", "green"), "running": ("●", "cyan"), "failed": ("✗", "red"), "skipped": ("–", "dim")}
HTTP_SERVER_ERROR = 500


def watch(
    client: Client,
    campaign_id: str,
    console: Console,
    *,
    json: bool = False,
    interval_s: float = 1.0,
    patience_s: float = 300.0,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Follow a campaign until it ends; its last state.

    In a terminal a live view, elsewhere a line per change, with `json` a JSON document per change on stdout. A web
    process that does not answer is waited for, `patience_s` seconds long; then Unreachable is raised. Interrupting
    the watch does not touch the campaign.
    """
    if json:
        return _follow(client, campaign_id, _JsonLines().show, interval_s, patience_s, sleep)
    if not console.is_terminal:
        return _follow(client, campaign_id, _Lines(console, client.url).show, interval_s, patience_s, sleep)
    with Live(console=console, refresh_per_second=4, transient=False) as live:

        def show(campaign: dict[str, Any] | None, trouble: str) -> None:
            if campaign is not None:
                live.update(render(campaign, url=client.url, trouble=trouble))

        return _follow(client, campaign_id, show, interval_s, patience_s, sleep)


Show = Callable[[dict[str, Any] | None, str], None]


def _follow(
    client: Client, campaign_id: str, show: Show, interval_s: float, patience_s: float, sleep: Callable[[float], None]
) -> dict[str, Any]:
    last: dict[str, Any] | None = None
    waited = 0.0
    while True:
        try:
            last = client.get(f"campaigns/{campaign_id}")
            waited = 0.0
            show(last, "")
            if last is not None and last["state"] in ENDED:
                return last
        except (Unreachable, ApiError) as error:
            if isinstance(error, ApiError) and error.status < HTTP_SERVER_ERROR:
                raise
            if waited >= patience_s:
                raise
            waited += interval_s
            show(last, f"the platform does not answer ({duration(waited)}); the campaign goes on without it")
        sleep(interval_s)


class _JsonLines:
    """A document per change."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, campaign: dict[str, Any] | None, trouble: str) -> None:
        line = _json.dumps(campaign if not trouble else {"trouble": trouble})
        # Seconds that merely pass are no change.
        key = _json.dumps(_without_clock(campaign)) + trouble
        if key != self._last:
            self._last = key
            click.echo(line)


def _without_clock(campaign: dict[str, Any] | None) -> Any:
    if campaign is None:
        return None
    stages = [{key: value for key, value in stage.items() if key != "wall_s"} for stage in campaign["stages"]]
    return {**campaign, "stages": stages, "budget": campaign["candidates"], "left": None, "wall_s": None}


class _Lines:
    """A line per change, for logs."""

    def __init__(self, console: Console, url: str) -> None:
        self._console = console
        self._url = url
        self._said: set[str] = set()

    def show(self, campaign: dict[str, Any] | None, trouble: str) -> None:
        if trouble:
            self._once("trouble", trouble)
            return
        if campaign is None:
            return
        self._said.discard("trouble")
        self._once("page", f"{campaign['name']}: {page(self._url, campaign)}")
        for stage in campaign["stages"]:
            if stage["state"] == "running":
                self._once(f"{stage['key']} runs {stage['attempt']}", f"{stage['label']} ...")
            elif stage["state"] in ("done", "failed"):
                error = f": {stage['error'].strip().splitlines()[-1]}" if stage["error"].strip() else ""
                self._once(
                    f"{stage['key']} {stage['state']}",
                    f"{stage['label']}: {stage['state']} after {duration(stage['wall_s'])}{error}",
                )
        for failure in campaign["failures"]:
            self._once(f"{failure['at']} {failure['what']}", f"{failure['what']}: {failure['why']}")
        for best in campaign["best"]:
            self._once(
                f"{best['task']} {best['number']} {best['proven']}",
                f"best {best['task']}: #{best['number']}, {speedup(best)}",
            )
        if campaign["state"] in ENDED:
            self._once("end", headline(campaign))

    def _once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._console.print(f"{time.strftime('%H:%M:%S')}  {text}", markup=False)


def page(url: str, campaign: dict[str, Any]) -> str:
    return f"{url}/campaigns/{campaign['id']}"


def speedup(best: dict[str, Any]) -> str:
    """A candidate's speed-up, saying what it is worth."""
    said = "the judge found it correct" if best["proven"] else "timed by the search, not judged yet"
    return f"{best['speedup']:.2f}x the stock operator alone ({said})"


def headline(campaign: dict[str, Any]) -> str:
    """How a campaign stands, in one line."""
    outcome = {
        "accepted": "a kernel was accepted",
        "nothing": "no gain was found",
        "held": "a candidate waits for a person",
        "unfit": "the host cannot measure well enough",
    }.get(campaign["outcome"], "")
    reason = campaign["reason"]
    return ": ".join(part for part in (campaign["state"], outcome or reason) if part)


def render(campaign: dict[str, Any], *, url: str, trouble: str = "") -> Group:
    """The live view: stages with bars, what was tried, the best so far, what is left."""
    head = Text.assemble((campaign["name"], "bold"), "  ", (headline(campaign), _colour(campaign["state"])))
    if campaign["desired"] != "run" and campaign["state"] not in (*ENDED, "paused"):
        head.append(f"  ({campaign['desired']} asked for, at the next safe point)", "yellow")
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="ellipsis", no_wrap=True, max_width=44)
    grid.add_column(width=20)
    grid.add_column(justify="right")
    grid.add_column(overflow="ellipsis", no_wrap=True, style="dim")
    for stage in campaign["stages"]:
        mark, style = MARKS.get(stage["state"], ("○", "dim"))
        bar = ProgressBar(
            total=1.0,
            completed=stage["fraction"],
            width=20,
            pulse=stage["state"] == "running" and not stage["fraction"],
        )
        shown = stage["state"] in ("running", "done")
        grid.add_row(
            Text(mark, style),
            Text(stage["label"], "" if stage["state"] != "pending" else "dim"),
            bar if shown else "",
            duration(stage["wall_s"]) if stage["wall_s"] else "",
            stage["text"] if stage["state"] == "running" else "",
        )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    facts.add_row("candidates", f"{campaign['candidates']['total']} tried")
    for best in campaign["best"]:
        facts.add_row(f"best {best['task']}", f"#{best['number']}, {speedup(best)}")
    if campaign["left"]:
        facts.add_row("time left", f"{duration(campaign['left']['seconds'])} ({campaign['left']['basis']})")
    if campaign["failures"]:
        last = campaign["failures"][-1]
        facts.add_row("failures", f"{len(campaign['failures'])}; the last: {last['what']}: {last['why'][:200]}")
    facts.add_row("page", page(url, campaign))
    parts: list[Any] = [head, Text(), grid, Text(), facts]
    if trouble:
        parts.append(Text(trouble, "yellow"))
    return Group(*parts)


def _colour(state: str) -> str:
    return {"succeeded": "green", "failed": "red", "cancelled": "yellow", "paused": "yellow"}.get(state, "cyan")
