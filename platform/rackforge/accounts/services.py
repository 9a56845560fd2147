"""Making and revoking tokens."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from rackforge.accounts.models import ApiToken, Role, User
from rackforge.audit.services import record

PREFIX = "rf_"


def hash_token(text: str) -> str:
    """Tokens carry 256 random bits, so a plain SHA-256 is enough: there is nothing to guess."""
    return hashlib.sha256(text.encode()).hexdigest()


@transaction.atomic
def create_token(
    *, user: User, name: str, role: Role, actor: str, expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """A new token and its text, which cannot be read again. A token never exceeds its user's role."""
    if not user.effective_role.includes(role):
        raise PermissionError(f"{user.username} is {user.effective_role.value} and cannot make a {role.value} token")
    text = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        user=user, name=name, prefix=text[:10], hash=hash_token(text), role=role, expires_at=expires_at
    )
    record(
        actor=actor,
        action="token.create",
        object_type="token",
        object_id=str(token.pk),
        after={"name": name, "role": role},
    )
    return token, text


@transaction.atomic
def revoke_token(*, token: ApiToken, actor: str) -> None:
    """Make a token useless from now on; revoking twice changes nothing."""
    if ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now()):
        record(actor=actor, action="token.revoke", object_type="token", object_id=str(token.pk))


def find_token(text: str) -> ApiToken | None:
    """The valid token of this text, marking its use at most once a minute."""
    now = timezone.now()
    token = (
        ApiToken.objects.select_related("user")
        .filter(hash=hash_token(text), revoked_at__isnull=True, user__is_active=True)
        .first()
    )
    if token is None or (token.expires_at is not None and token.expires_at <= now):
        return None
    if token.last_used_at is None or now - token.last_used_at > timedelta(minutes=1):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token
