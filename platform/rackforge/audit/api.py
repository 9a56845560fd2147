"""Events: the list, and the live stream as Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import django_filters
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.urls import path
from django.views.decorators.http import require_GET
from rest_framework import serializers, viewsets
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from rackforge.accounts.authentication import TokenAuthentication
from rackforge.accounts.models import User
from rackforge.api.filters import StrictFilterBackend
from rackforge.api.problems import respond
from rackforge.api.router import router
from rackforge.audit.models import Event
from rackforge.audit.stream import (
    Hint,
    Overrun,
    Row,
    format_position,
    hub,
    parse_position,
    position_of,
    with_heartbeat,
)

HEARTBEAT_S = 15.0
RETRY_MS = 2000


class EventSerializer(serializers.Serializer[Event]):
    """Who changed what, when, in which request."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    action = serializers.CharField()
    object_type = serializers.CharField()
    object_id = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    request_id = serializers.CharField()


class EventFilter(django_filters.FilterSet):  # type: ignore[misc]
    since = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte", help_text="at or after, RFC 3339")
    until = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt", help_text="before, RFC 3339")

    class Meta:
        model = Event
        fields = ("actor", "action", "object_type", "object_id", "request_id")


class EventViewSet(viewsets.ReadOnlyModelViewSet[Event]):
    """The audit: append-only, newest first."""

    queryset = Event.objects.all()
    serializer_class = EventSerializer
    filter_backends = [StrictFilterBackend]
    filterset_class = EventFilter
    lookup_value_regex = r"\d+"


router.register("events", EventViewSet, basename="event")


def _user(request: HttpRequest) -> User | None:
    """Who asks: by token, else by session. Raises AuthenticationFailed for a bad token."""
    found = TokenAuthentication().authenticate(Request(request))
    if found is not None:
        return found[0]
    user = request.user
    return user if isinstance(user, User) and user.is_active else None


@require_GET
async def stream(request: HttpRequest) -> HttpResponseBase:
    """`GET /api/v1/events/stream`: events as they happen.

    `Last-Event-ID` (header, or `last_event_id=`) continues after the last one seen; without it the stream starts
    now. `object_type=` and `object_id=` narrow it. `event:` is the action, `id:` the position, `data:` the event as
    in the list; `event: hint` says that an object's progress moved, `event: reset` that too much was missed and
    everything should be read anew.
    """
    try:
        user = await sync_to_async(_user)(request)
    except AuthenticationFailed as error:
        return respond(request, status_code=401, detail=str(error.detail))
    if user is None:
        return respond(request, status_code=401, detail="send a token (Authorization: Bearer rf_...) or log in")
    last = request.headers.get("Last-Event-ID") or request.GET.get("last_event_id") or ""
    position = parse_position(last)
    if last and position is None:
        return respond(request, status_code=400, detail=f"Last-Event-ID {last!r} is not one of ours (<xid>-<id>)")
    response = StreamingHttpResponse(
        _frames(position, request.GET.get("object_type", ""), request.GET.get("object_id", "")),
        content_type="text/event-stream",
    )
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"  # proxies must not collect a stream
    return response


async def _frames(position: tuple[int, int] | None, object_type: str, object_id: str) -> AsyncIterator[bytes]:
    yield f"retry: {RETRY_MS}\n\n".encode()
    source = with_heartbeat(hub().read(position), HEARTBEAT_S)
    try:
        async for item in source:
            if item is None:
                yield b": still here\n\n"
                continue
            kind, key = (item.object_type, item.object_id) if isinstance(item, Hint) else _object(item)
            if (object_type and kind != object_type) or (object_id and key != object_id):
                continue
            yield _frame(item)
    except Overrun:
        yield b"event: reset\ndata: {}\n\n"
    except ConnectionError:
        return  # the client reconnects with its position
    except asyncio.CancelledError:
        raise
    finally:
        await source.aclose()  # type: ignore[attr-defined]


def _object(row: Row) -> tuple[str, str]:
    return row["object_type"], row["object_id"]


def _frame(item: Row | Hint) -> bytes:
    if isinstance(item, Hint):
        data = json.dumps({"object_type": item.object_type, "object_id": item.object_id})
        return f"event: hint\ndata: {data}\n\n".encode()
    body: dict[str, Any] = {key: value for key, value in item.items() if key != "xid"}
    body["at"] = serializers.DateTimeField().to_representation(item["at"])
    return f"id: {format_position(position_of(item))}\nevent: {item['action']}\ndata: {json.dumps(body)}\n\n".encode()


urlpatterns = [path("events/stream", stream, name="event-stream")]
