"""Kernels, their immutable versions, moving channels, and what happened to them."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q


class Blob(models.Model):
    """Content by its digest. The bytes lie in the blob store; the row says that they are whole.

    Unkept blobs that no manifest names are garbage after a while (an upload whose publish never came).
    """

    digest = models.CharField(primary_key=True, max_length=71)
    size = models.PositiveBigIntegerField()
    kept = models.BooleanField(default=False)  # evidence of campaigns and other things no manifest names
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(digest__regex=r"^sha256:[0-9a-f]{64}$"), name="blob_digest_is_sha256")
        ]
        indexes = [models.Index(fields=["created_at"], condition=Q(kept=False), name="blob_garbage_candidates")]

    def __str__(self) -> str:
        return self.digest


class Kernel(models.Model):
    """A named kernel: what its versions have in common is their operator and the way into the engine."""

    name = models.CharField(max_length=200, unique=True)  # namespace/kernel
    kind = models.CharField(max_length=40)
    op = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Version(models.Model):
    """One published version. All but `yanked` and `revoked` is fixed for ever: a trigger sees to it.

    `order` is semver's precedence as text that sorts, so that the database can order versions.
    """

    kernel = models.ForeignKey(Kernel, on_delete=models.PROTECT, related_name="versions")
    version = models.CharField(max_length=100)
    order = models.CharField(max_length=300, db_collation="C")
    digest = models.CharField(max_length=71, unique=True)
    signature_digest = models.CharField(max_length=71)
    manifest = models.JSONField()
    published_by = models.CharField(max_length=200)
    published_at = models.DateTimeField(auto_now_add=True)
    yanked = models.BooleanField(default=False)
    revoked = models.BooleanField(default=False)

    class Meta:
        ordering = ["kernel", "-order"]
        constraints = [
            models.UniqueConstraint(fields=["kernel", "version"], name="version_is_published_once"),
            models.CheckConstraint(condition=~Q(manifest={}), name="version_has_a_manifest"),
        ]
        indexes = [
            models.Index(fields=["kernel", "-order"], name="versions_newest_first"),
            models.Index(fields=["digest"], condition=Q(revoked=True), name="versions_revoked"),
        ]

    def __str__(self) -> str:
        return f"{self.kernel.name}@{self.version}"


class VersionBlob(models.Model):
    """Which blobs a version needs: what garbage collection must never touch."""

    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="named_blobs")
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="named_by")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "blob"], name="version_names_a_blob_once")]

    def __str__(self) -> str:
        return f"{self.version_id} {self.blob_id}"


class VersionEventKind(models.TextChoices):
    YANK = "yank", "Yanked"
    UNYANK = "unyank", "Put back"
    REVOKE = "revoke", "Revoked"


class VersionEvent(models.Model):
    """Append-only: a version was yanked, put back or revoked."""

    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="events")
    kind = models.CharField(max_length=8, choices=VersionEventKind.choices)
    reason = models.CharField(max_length=1000)
    actor = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [models.CheckConstraint(condition=~Q(reason=""), name="version_event_has_a_reason")]

    def __str__(self) -> str:
        return f"{self.kind} {self.version_id}"


class Channel(models.Model):
    """A moving name of a kernel: `candidate`, `canary`, `stable`, or one of your own."""

    kernel = models.ForeignKey(Kernel, on_delete=models.PROTECT, related_name="channels")
    name = models.CharField(max_length=50)
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    sequence = models.PositiveIntegerField(default=1)  # of the last move; movers compare and swap it

    class Meta:
        ordering = ["kernel", "name"]
        constraints = [
            models.UniqueConstraint(fields=["kernel", "name"], name="channel_of_a_kernel_is_unique"),
            models.CheckConstraint(condition=Q(name__regex=r"^[a-z][a-z0-9-]{0,48}$"), name="channel_name_is_plain"),
        ]
        indexes = [models.Index(fields=["name"], name="channels_for_resolve")]

    def __str__(self) -> str:
        return f"{self.name} of {self.kernel_id}"


class ChannelEvent(models.Model):
    """Append-only: a channel moved."""

    kernel = models.ForeignKey(Kernel, on_delete=models.PROTECT, related_name="channel_events")
    channel = models.CharField(max_length=50)
    sequence = models.PositiveIntegerField()
    before = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, related_name="+")
    after = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    rollback = models.BooleanField(default=False)
    reason = models.CharField(max_length=1000, blank=True)
    actor = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            # Two movers of one channel: the second one finds the number taken.
            models.UniqueConstraint(fields=["kernel", "channel", "sequence"], name="channel_moves_one_at_a_time")
        ]

    def __str__(self) -> str:
        return f"{self.channel} {self.sequence}"


class PublicKey(models.Model):
    """A key whose signatures are taken. Retired ones stay, so that old signatures can be told apart."""

    keyid = models.CharField(primary_key=True, max_length=64)
    public = models.CharField(max_length=64)
    name = models.CharField(max_length=100)
    added_by = models.CharField(max_length=200)
    added_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.keyid[:12]})"


class RegistryState(models.Model):
    """The one row whose generation counts every change that can alter what a host resolves."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    generation = models.PositiveBigIntegerField(default=1)
    changed_at = models.DateTimeField()  # when the generation began: the time of issue of its locks
    disabled = models.JSONField(default=list)  # operators switched off for the fleet; "*" is all
    disabled_reason = models.CharField(max_length=1000, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="registry_state_is_one_row")]

    def __str__(self) -> str:
        return f"generation {self.generation}"


class Pull(models.Model):
    """A host got a lock: which, and what for."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.CharField(max_length=200, blank=True)
    channel = models.CharField(max_length=50)
    pins = models.JSONField(default=list)
    facts = models.JSONField()
    lock_digest = models.CharField(max_length=71)
    generation = models.PositiveBigIntegerField()
    kernels = models.JSONField()  # ["namespace/kernel@1.2.3#variant"]
    actor = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-at"]
        indexes = [
            models.Index(fields=["-at"], name="pulls_newest_first"),
            models.Index(fields=["lock_digest"], name="pulls_by_lock"),
        ]

    def __str__(self) -> str:
        return f"{self.host} {self.lock_digest[:19]}"
