"""`rackforge`: the command line. The platform adds its commands through the entry-point group of this file.

Exit codes: 0 done; 1 an error of ours; 2 wrong usage; 3 refused (signature, digest, policy closed, revoked);
4 not found; 5 conflict (another digest, somebody was quicker); 6 the registry does not answer;
7 not allowed.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click

GROUP = "rackforge.commands"
EXIT_ERROR, EXIT_USAGE, EXIT_REFUSED, EXIT_NOT_FOUND, EXIT_CONFLICT, EXIT_UNREACHABLE, EXIT_DENIED = range(1, 8)


class Group(click.Group):
    """Commands of this package and those installed beside it, each imported only when it is asked for."""

    def _installed(self) -> dict[str, EntryPoint]:
        return {e.name: e for e in entry_points(group=GROUP)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._installed()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        entry = self._installed().get(cmd_name)
        if entry is None:
            return None
        try:
            found = entry.load()
        except Exception as error:  # noqa: BLE001 - one broken command must not take the others along
            return _broken(cmd_name, entry, error)
        return found if isinstance(found, click.Command) else _broken(cmd_name, entry, TypeError("not a command"))


def _broken(name: str, entry: EntryPoint, error: Exception) -> click.Command:
    def fail(**_: Any) -> None:
        raise click.ClickException(f"the command {name!r} ({entry.value}) does not load: {error!r}")

    return click.Command(
        name,
        callback=fail,
        help=f"(does not load: {error})",
        params=[click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
    )


@click.group(cls=Group)
@click.version_option(package_name="rackforge-runtime", prog_name="rackforge")
def main() -> None:
    """Make deployed language models faster, and prove it."""


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--lock", type=click.Path(path_type=Path), help="A lock file with its blobs beside it.")
@click.option("--url", help="The registry. Default: $RACKFORGE_URL.")
@click.option("--channel", help="Channel to follow. Default: $RACKFORGE_CHANNEL, else stable.")
@click.option("--keys", multiple=True, type=click.Path(path_type=Path), help="Pinned public keys: files or folders.")
@click.option("--policy", type=click.Choice(["open", "closed"]), help="Default: $RACKFORGE_POLICY, else open.")
@click.option("--cache", type=click.Path(path_type=Path), help="Default: $RACKFORGE_CACHE, else ~/.cache/rackforge.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 300), help="Seconds the registry may take.")
@click.option("--pin", "pins", multiple=True, help="namespace/kernel@version: exactly this version.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def serve(command: tuple[str, ...], **given: Any) -> None:
    """Start an inference server with its kernels: rackforge serve [OPTIONS] -- python -m vllm...

    Everything that goes wrong ends with the engine's own operators serving, unless --policy closed.
    """
    import os

    from rackforge_runtime import launcher

    try:
        options = launcher.options_from(os.environ, **given)
        launcher.serve(options, command, os.environ)
    except launcher.Refused as error:
        click.echo(f"rackforge: refused (policy closed): {error}", err=True)
        sys.exit(EXIT_REFUSED)
    except OSError as error:
        raise click.ClickException(f"{command[0]} does not start: {error.strerror or error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
