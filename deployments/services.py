"""Everything that changes a node, a model, a deployment or its revisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import F, Max
from django.utils import timezone

from deployments.models import Deployment, Node, Revision, ServedModel
from deployments.recipe import Recipe, RecipeError, parse_recipe
from rackforge.audit.services import record
from rackforge_runtime.canonical import digest_json


class Stale(RuntimeError):
    """Somebody else changed the row since it was read."""


@transaction.atomic
def register_node(*, name: str, facts: dict[str, Any], roofline: dict[str, Any], actor: str) -> Node:
    """Create or refresh a node; an event is written when its facts changed, saying what."""
    digest = digest_json(facts)
    node, created = Node.objects.select_for_update().get_or_create(
        name=name, defaults={"facts": facts, "facts_digest": digest, "roofline": roofline, "seen_at": timezone.now()}
    )
    changed = {} if created else _changes(node.facts, facts)
    node.facts, node.facts_digest, node.seen_at = facts, digest, timezone.now()
    if roofline:
        node.roofline = roofline
    node.save()
    if created or changed:
        record(
            actor=actor,
            action="node.register" if created else "node.changed",
            object_type="node",
            object_id=name,
            before={key: old for key, (old, _) in changed.items()} or None,
            after={key: new for key, (_, new) in changed.items()} or {"facts_digest": digest},
        )
    return node


def _changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = sorted(old.keys() | new.keys())
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


@transaction.atomic
def register_model(*, name: str, path: str, load_format: str = "auto", actor: str) -> ServedModel:
    """Register a model folder by its config.json. Raises ValueError when there is none."""
    config_path = Path(path) / "config.json"
    try:
        config = json.loads(config_path.read_text())
    except FileNotFoundError:
        raise ValueError(f"model path {path!r}: there is no config.json; give a folder that vLLM can load") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{config_path}: cannot be read as JSON: {error}") from error
    model, created = ServedModel.objects.update_or_create(
        name=name,
        defaults={"path": path, "config": config, "config_digest": digest_json(config), "load_format": load_format},
    )
    if created:
        record(actor=actor, action="model.register", object_type="model", object_id=name, after={"path": path})
    return model


@transaction.atomic
def create_deployment(*, name: str, model: ServedModel, node: Node, recipe: Recipe, actor: str) -> Deployment:
    """A deployment with its first revision. Raises RecipeError when the model cannot hold the workload."""
    check_context(model, recipe)
    deployment = Deployment.objects.create(name=name, model=model, node=node, recipe=recipe.model_dump(mode="json"))
    record(
        actor=actor,
        action="deployment.create",
        object_type="deployment",
        object_id=name,
        after={"model": model.name, "node": node.name, "recipe_digest": recipe.digest},
    )
    create_revision(deployment=deployment, kernels=[], reason="first revision", actor=actor)
    return deployment


@transaction.atomic
def update_deployment(*, deployment: Deployment, recipe: Recipe, expected_version: int, actor: str) -> Deployment:
    """Change the recipe, if nobody else did since `expected_version`; a new revision keeps the kernels.

    Raises Stale otherwise.
    """
    check_context(deployment.model, recipe)
    before = parse_recipe(deployment.recipe).digest
    updated = Deployment.objects.filter(pk=deployment.pk, version=expected_version).update(
        recipe=recipe.model_dump(mode="json"), version=F("version") + 1, updated_at=timezone.now()
    )
    if not updated:
        raise Stale(f"deployment {deployment.name} was changed meanwhile; read it again")
    deployment.refresh_from_db()
    record(
        actor=actor,
        action="deployment.update",
        object_type="deployment",
        object_id=deployment.name,
        before={"recipe_digest": before},
        after={"recipe_digest": recipe.digest},
    )
    latest = deployment.revisions.order_by("-number").first()
    create_revision(
        deployment=deployment, kernels=latest.kernels if latest else [], reason="recipe changed", actor=actor
    )
    return deployment


def check_context(model: ServedModel, recipe: Recipe) -> None:
    """Raise RecipeError unless the model's positions hold the recipe's context."""
    limit = model.config.get("max_position_embeddings")
    if isinstance(limit, int) and recipe.max_model_len > limit:
        raise RecipeError(
            f"max_model_len: {recipe.max_model_len} is more than the {limit} positions of {model.name}; lower it"
        )


@transaction.atomic
def create_revision(*, deployment: Deployment, kernels: list[dict[str, str]], reason: str, actor: str) -> Revision:
    """The next revision, or the latest one when nothing differs from it (so that a repeat adds nothing)."""
    Deployment.objects.select_for_update().get(pk=deployment.pk)
    recipe = parse_recipe(deployment.recipe)
    pinned = sorted(kernels, key=lambda kernel: kernel["name"])
    digest = digest_json({"recipe": recipe.digest, "model": deployment.model.config_digest, "kernels": pinned})
    latest = deployment.revisions.order_by("-number").first()
    if latest is not None and latest.digest == digest:
        return latest
    last: int = deployment.revisions.aggregate(last=Max("number"))["last"] or 0
    revision = Revision.objects.create(
        deployment=deployment,
        number=last + 1,
        recipe=deployment.recipe,
        recipe_digest=recipe.digest,
        kernels=pinned,
        digest=digest,
        reason=reason,
        created_by=actor,
    )
    record(
        actor=actor,
        action="revision.create",
        object_type="deployment",
        object_id=deployment.name,
        after={"number": revision.number, "kernels": pinned, "reason": reason},
    )
    return revision
