"""What the platform's commands have in common: options, errors with exit codes, tables, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rackforge.client import ApiError, Client, Unreachable, connect
from rackforge.config import ConfigError
from rackforge_runtime.cli import (
    EXIT_CONFLICT,
    EXIT_DENIED,
    EXIT_ERROR,
    EXIT_NOT_FOUND,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
)

EXIT_INTERRUPTED = 130
_CODES = {400: EXIT_USAGE, 401: EXIT_DENIED, 403: EXIT_DENIED, 404: EXIT_NOT_FOUND, 409: EXIT_CONFLICT}
_CODES |= {412: EXIT_CONFLICT, 422: EXIT_USAGE, 428: EXIT_CONFLICT}

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


class ApiGroup(click.Group):
    """Commands that talk to the platform: what it refuses becomes one line and an exit code.

    0 done; 1 an error; 2 wrong usage; 4 not found; 5 conflict; 6 no answer; 7 not allowed; 130 interrupted.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ApiError as error:
            self._fail(describe(error), _CODES.get(error.status, EXIT_ERROR))
        except Unreachable as error:
            self._fail(str(error), EXIT_UNREACHABLE)
        except ConfigError as error:
            self._fail(str(error), EXIT_USAGE)
        return None

    @staticmethod
    def _fail(text: str, code: int) -> None:
        click.echo(f"rackforge: {text}", err=True)
        sys.exit(code)


def describe(error: ApiError) -> str:
    """A refusal in words, with every field that was wrong."""
    if error.status == 401:
        return f"{error}. Set RACKFORGE_TOKEN to a token of this platform."
    errors = error.problem.get("errors")
    if not isinstance(errors, dict):
        return str(error)
    lines = [f"{place}: {_text(what)}" for place, what in errors.items()]
    return "; ".join(lines)


def _text(what: Any) -> str:
    if isinstance(what, list):
        return ", ".join(_text(item) for item in what)
    if isinstance(what, dict):
        return "; ".join(f"{key}: {_text(value)}" for key, value in what.items())
    return str(what)


def client() -> Client:
    """The client of this call, closed with it."""
    context = click.get_current_context()
    made: Client = context.with_resource(connect())
    return made


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, soft_wrap=not sys.stdout.isatty())


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, sort_keys=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table, or what to do when there is nothing to show."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.endswith(">")
        grid.add_column(column.removesuffix(">"), justify="right" if right else "left", overflow="fold")
    count = 0
    for row in rows:
        grid.add_row(*row)
        count += 1
    console().print(grid if count else empty)


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values below each other."""
    grid = Table(box=None, pad_edge=False, show_header=False)
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    console().print(grid)


def duration(seconds: float | None) -> str:
    """Seconds as people read them: 0.4 s, 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def when(text: str | None) -> str:
    """An RFC 3339 time in this terminal's zone."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")


def now() -> datetime:
    return datetime.now(tz=UTC)
