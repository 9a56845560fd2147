"""Users, teams, roles and API tokens."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models


class Role(models.TextChoices):
    """What a person may do; each includes the ones before it."""

    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    APPROVER = "approver", "Approver"
    ADMIN = "admin", "Admin"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    def includes(self, other: Role) -> bool:
        return self.rank >= other.rank


class User(AbstractUser):
    """A person or a service account."""

    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)

    @property
    def effective_role(self) -> Role:
        return Role.ADMIN if self.is_superuser else Role(self.role)


class ApiToken(models.Model):
    """A bearer token. Only its SHA-256 is kept; the text is shown once, when it is made."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    hash = models.CharField(max_length=64, unique=True)
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "name"],
                condition=models.Q(revoked_at__isnull=True),
                name="token_name_per_user_is_unique_while_valid",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"
