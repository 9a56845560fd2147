"""What runs where: nodes, models, deployments and their immutable revisions."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Node(models.Model):
    """A host that can serve, with the facts that were detected on it."""

    name = models.SlugField(max_length=100, unique=True)
    facts = models.JSONField(default=dict)  # rackforge_runtime.facts.HostFacts
    facts_digest = models.CharField(max_length=71, blank=True)
    roofline = models.JSONField(default=dict)  # optimizer.engine.host: GB/s and GFLOP/s of one core and of all
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ServedModel(models.Model):
    """A model on disk, as vLLM loads it."""

    name = models.SlugField(max_length=100, unique=True)
    path = models.CharField(max_length=1000)
    config = models.JSONField(default=dict)  # its config.json
    config_digest = models.CharField(max_length=71, blank=True)
    load_format = models.CharField(max_length=20, default="auto")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Deployment(models.Model):
    """A model served on a node in a certain way.

    `recipe` is checked by `deployments.recipe.Recipe`: engine, arguments, environment and the workload
    profile (input and output lengths, request count, seed, concurrency regimes).
    """

    name = models.SlugField(max_length=100, unique=True)
    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="deployments")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="deployments")
    recipe = models.JSONField()
    version = models.PositiveIntegerField(default=1)  # of this row, for ETag and If-Match
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Revision(models.Model):
    """One immutable state of a deployment: the recipe and the exact kernels."""

    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="revisions")
    number = models.PositiveIntegerField()
    recipe = models.JSONField()
    recipe_digest = models.CharField(max_length=71)
    # [{"name": "ns/kernel", "version": "1.0.0", "digest": "sha256:..."}]
    kernels = models.JSONField(default=list)
    digest = models.CharField(max_length=71)
    reason = models.CharField(max_length=500, blank=True)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(fields=["deployment", "number"], name="revision_number_is_unique"),
            models.CheckConstraint(condition=Q(number__gte=1), name="revision_number_starts_at_one"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment.name} r{self.number}"
