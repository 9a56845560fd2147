"""Recording events."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from django.db import connection

from rackforge.audit.models import Event

CHANNEL = "rackforge_events"
HINTS = "rackforge_hints"
request_id: ContextVar[str] = ContextVar("request_id", default="")


def record(
    *,
    actor: str,
    action: str,
    object_type: str,
    object_id: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> Event:
    """Write one event inside the caller's transaction; listeners hear of it when that commits.

    PostgreSQL delivers NOTIFY at commit and not at all on rollback, which is what makes the stream true.
    """
    event = Event.objects.create(
        actor=actor,
        action=action,
        object_type=object_type,
        object_id=object_id,
        before=before,
        after=after,
        request_id=request_id.get(),
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, str(event.pk)])
    return event


def hint(*, object_type: str, object_id: str) -> None:
    """Tell live pages that something about an object moved (its progress, say), without an event.

    Hints are not kept and not replayed: a page that reconnects reads everything anew anyway.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [HINTS, f"{object_type}/{object_id}"])
