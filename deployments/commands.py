"""`rackforge deployment`, `node` and `model`: thin callers of the REST interface."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import click

from rackforge.terminal import ApiGroup, as_json, client, console, pairs, show_json, table, when


@click.group(cls=ApiGroup)
def deployment() -> None:
    """What is served where, and how."""


def _recipe(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise click.BadParameter(f"{path}: not JSON: {error}") from error


RECIPE = click.option(
    "--recipe",
    "recipe_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="JSON: args, env, max_model_len, kv_cache_gib, regimes, seed.",
)


@deployment.command("list")
@as_json
def list_deployments(as_json: bool) -> None:
    """All deployments."""
    rows = list(client().pages("deployments"))
    if as_json:
        show_json(rows)
        return
    table(
        ["name", "model", "node", "regimes", "revision>", "changed"],
        [
            (
                row["name"],
                row["model"],
                row["node"],
                ", ".join(f"c{regime['concurrency']}" for regime in row["recipe"]["regimes"]),
                str(row["latest_revision"] or ""),
                when(row["updated_at"]),
            )
            for row in rows
        ],
        empty="No deployment yet. `rackforge deployment create` makes one.",
    )


@deployment.command()
@click.argument("name")
@as_json
def show(name: str, as_json: bool) -> None:
    """A deployment and its newest revisions."""
    api = client()
    found = api.get(f"deployments/{name}")
    revisions = list(api.pages(f"deployments/{name}/revisions", at_most=10))
    if as_json:
        show_json({**found, "revisions": revisions})
        return
    pairs(
        [
            ("deployment", found["name"]),
            ("model", found["model"]),
            ("node", found["node"]),
            ("arguments", " ".join(found["recipe"].get("args", ())) or "(vLLM's own)"),
            ("context", f"{found['recipe']['max_model_len']} tokens"),
        ]
    )
    for regime in found["recipe"]["regimes"]:
        console().print(
            f"  c{regime['concurrency']}: {regime['num_requests']} requests, {regime['input_len']} tokens in, "
            f"{regime['output_len']} out",
            markup=False,
        )
    table(
        ["revision>", "kernels", "reason", "by", "made"],
        [
            (
                str(row["number"]),
                ", ".join(f"{kernel['name']}@{kernel['version']}" for kernel in row["kernels"]) or "stock",
                row["reason"],
                row["created_by"],
                when(row["created_at"]),
            )
            for row in revisions
        ],
        empty="No revision.",
    )


@deployment.command()
@click.argument("name")
@click.option("--model", required=True, help="A registered model (`rackforge model register`).")
@click.option("--node", required=True)
@RECIPE
@as_json
def create(name: str, model: str, node: str, recipe_file: Path, as_json: bool) -> None:
    """A new deployment."""
    body = {"name": name, "model": model, "node": node, "recipe": _recipe(recipe_file)}
    made = client().post("deployments", body, key=uuid.uuid4().hex)
    if as_json:
        show_json(made)
    else:
        console().print(f"deployment {name} is there; `rackforge campaign start {name} --watch` optimizes it")


@deployment.command()
@click.argument("name")
@RECIPE
@as_json
def update(name: str, recipe_file: Path, as_json: bool) -> None:
    """Change the recipe; refused when somebody else changes it meanwhile."""
    api = client()
    etag = api.request("GET", f"deployments/{name}").headers["ETag"]
    changed = api.request(
        "PATCH", f"deployments/{name}", json={"recipe": _recipe(recipe_file)}, headers={"If-Match": etag}
    ).json()
    if as_json:
        show_json(changed)
    else:
        console().print(f"{name} is at revision {changed['latest_revision']}")


@deployment.command()
@click.argument("name")
@click.argument("old", type=int)
@click.argument("new", type=int)
@as_json
def diff(name: str, old: int, new: int, as_json: bool) -> None:
    """What changed from one revision to another."""
    found = client().get(f"deployments/{name}/revisions/difference", **{"from": old, "to": new})
    if as_json:
        show_json(found)
        return
    rows = [(row["path"], json.dumps(row["before"]), json.dumps(row["after"])) for row in found["recipe"]]
    rows += [
        (f"kernel {row['name']}", *(_pin(row[side]) for side in ("before", "after"))) for row in found["kernels"]
    ]
    table(["what", f"r{old}", f"r{new}"], rows, empty=f"r{old} and r{new} are the same.")


def _pin(kernel: dict[str, str] | None) -> str:
    return f"{kernel['version']} {kernel['digest'][:19]}" if kernel else "-"


@click.group(cls=ApiGroup)
def node() -> None:
    """Hosts that serve."""


@node.command("list")
@as_json
def list_nodes(as_json: bool) -> None:
    """All nodes."""
    rows = list(client().pages("nodes"))
    if as_json:
        show_json(rows)
        return
    table(
        ["name", "facts", "seen"],
        [(row["name"], row["facts_digest"][:19], when(row["seen_at"])) for row in rows],
        empty="No node yet: `rackforge up` registers this host.",
    )


@click.group(cls=ApiGroup)
def model() -> None:
    """Models on disk."""


@model.command("list")
@as_json
def list_models(as_json: bool) -> None:
    """All models."""
    rows = list(client().pages("models"))
    if as_json:
        show_json(rows)
        return
    table(
        ["name", "architecture", "path"],
        [(row["name"], ", ".join(row["config"].get("architectures", ())), row["path"]) for row in rows],
        empty="No model yet. `rackforge model register NAME FOLDER` adds one.",
    )


@model.command()
@click.argument("name")
@click.argument("folder", type=click.Path())
@click.option("--load-format", default="auto", show_default=True)
@as_json
def register(name: str, folder: str, load_format: str, as_json: bool) -> None:
    """Register a folder that vLLM can load (on the platform's host)."""
    path = str(Path(folder).resolve())
    made = client().post("models", {"name": name, "path": path, "load_format": load_format}, key=uuid.uuid4().hex)
    if as_json:
        show_json(made)
    else:
        console().print(f"model {name} is registered")
