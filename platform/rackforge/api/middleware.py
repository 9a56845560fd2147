"""Request ids and the Content-Security-Policy."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from rackforge.audit.services import request_id as current

Handler = Callable[[HttpRequest], HttpResponse]
_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@sync_and_async_middleware
def request_id(
    get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]],
) -> Callable[..., object]:
    """Give every request an id (or take the caller's), in the answer and in the audit."""

    def enter(request: HttpRequest) -> str:
        given = request.headers.get("X-Request-ID", "")
        value = given if _ID.match(given) else uuid.uuid4().hex
        current.set(value)
        return value

    if iscoroutinefunction(get_response):

        async def amiddleware(request: HttpRequest) -> HttpResponse:
            value = enter(request)
            response = await get_response(request)
            response["X-Request-ID"] = value
            return cast("HttpResponse", response)

        markcoroutinefunction(amiddleware)
        return amiddleware

    def middleware(request: HttpRequest) -> HttpResponse:
        value = enter(request)
        response = get_response(request)
        assert isinstance(response, HttpResponse) or hasattr(response, "headers")  # noqa: S101
        response["X-Request-ID"] = value  # type: ignore[index]
        return response  # type: ignore[return-value]

    return middleware


@sync_and_async_middleware
def content_security_policy(
    get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]],
) -> Callable[..., object]:
    """No inline script and no inline style anywhere."""
    if iscoroutinefunction(get_response):

        async def amiddleware(request: HttpRequest) -> HttpResponse:
            response = await get_response(request)
            response.headers.setdefault("Content-Security-Policy", POLICY)
            return cast("HttpResponse", response)

        markcoroutinefunction(amiddleware)
        return amiddleware

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)  # type: ignore[union-attr]
        return response  # type: ignore[return-value]

    return middleware
