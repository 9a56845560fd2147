"""`rackforge token`: one's API tokens."""

from __future__ import annotations

import click

from rackforge.terminal import ApiGroup, as_json, client, console, show_json, table, when


@click.group(cls=ApiGroup)
def token() -> None:
    """API tokens."""


@token.command("list")
@as_json
def list_tokens(as_json: bool) -> None:
    """Tokens that there are; never their texts."""
    rows = list(client().pages("tokens"))
    if as_json:
        show_json(rows)
        return
    table(
        ["id>", "name", "user", "role", "begins with", "last used", "state"],
        [
            (
                str(row["id"]),
                row["name"],
                row["user"],
                row["role"],
                row["prefix"],
                when(row["last_used_at"]),
                "revoked" if row["revoked_at"] else "valid",
            )
            for row in rows
        ],
        empty="No token.",
    )


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "approver", "admin"]), default="viewer")
@as_json
def create(name: str, role: str, as_json: bool) -> None:
    """A new token of your own; its text is shown this once."""
    made = client().post("tokens", {"name": name, "role": role})
    if as_json:
        show_json(made)
    else:
        click.echo(made["token"])
        console(stderr=True).print("Keep it: it cannot be shown again.")


@token.command()
@click.argument("number", type=int)
def revoke(number: int) -> None:
    """Make a token useless from now on."""
    client().request("DELETE", f"tokens/{number}")
    console().print(f"token {number} is revoked")
