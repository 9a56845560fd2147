"""Append-only events: who changed what, and the source of the live stream."""

from __future__ import annotations

from django.db import models


def _this_transaction() -> models.Func:
    """Id of the transaction that writes a row (64 bits, never reused)."""
    return models.Func(
        function="pg_current_xact_id",
        template="(%(function)s()::text::bigint)",
        output_field=models.BigIntegerField(),
    )


class Event(models.Model):
    """One change. Rows are never updated or deleted: a trigger of the database refuses it."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(auto_now_add=True)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=100)
    object_type = models.CharField(max_length=100)
    object_id = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    request_id = models.CharField(max_length=64, blank=True)
    # Ids are given out before their transactions commit, so a lower id may appear later. The stream goes by
    # (xid, id) up to the oldest transaction that still runs: nothing can appear behind a reader there.
    xid = models.BigIntegerField(db_default=_this_transaction(), editable=False)

    class Meta:
        indexes = [
            models.Index(fields=["object_type", "object_id", "id"], name="event_by_object"),
            models.Index(fields=["action", "id"], name="event_by_action"),
            models.Index(fields=["xid", "id"], name="event_in_commit_order"),
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.action} {self.object_type}/{self.object_id} by {self.actor}"
