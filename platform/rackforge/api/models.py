"""What the API itself has to remember."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class IdempotencyKey(models.Model):
    """The answer to a request that carried an `Idempotency-Key`, given again when the request is repeated."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_digest = models.CharField(max_length=71)  # of method, path and body
    status = models.PositiveSmallIntegerField(default=0)
    body = models.JSONField(null=True)
    headers = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["created_at"], name="idempotency_key_by_age")]
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_is_unique_per_user")]

    def __str__(self) -> str:
        return self.key
