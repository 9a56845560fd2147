"""Errors as RFC 9457 problem details: what happened, where, what to do."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_handler

from rackforge.audit.services import request_id

CONTENT_TYPE = "application/problem+json"
_TRANSLATIONS: dict[type[Exception], Callable[[Exception], exceptions.APIException]] = {}


class Problem(exceptions.APIException):
    """An error with a name of its own. `extra` members stand beside the standard ones."""

    def __init__(self, *, status_code: int, title: str, detail: str, kind: str = "about:blank", **extra: Any) -> None:
        super().__init__(detail)
        self.status_code = status_code
        self.title = title
        self.kind = kind
        self.extra = extra


class Conflict(Problem):
    """409: the thing is in another state than the request needs."""

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(status_code=status.HTTP_409_CONFLICT, title="Conflict", detail=detail, **extra)


def translate(error: type[Exception], into: Callable[[Exception], exceptions.APIException]) -> None:
    """Say what an app's own error is over HTTP, so that its views need not catch it.

    Subclasses are meant too; the nearest class counts.
    """
    _TRANSLATIONS[error] = into


def conflict(error: Exception) -> Conflict:
    """For `translate`: 409 with the error's text."""
    return Conflict(str(error))


def invalid(error: Exception) -> exceptions.ValidationError:
    """For `translate`: 400 of an error whose text is `place: what is wrong`."""
    place, colon, text = str(error).partition(": ")
    return exceptions.ValidationError({place: [text]} if colon and " " not in place else [str(error)])


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn what a view raised into a problem document; None lets Django log it and answer 500."""
    known = _known(error)
    response = drf_handler(known, context)
    if response is None or not isinstance(known, exceptions.APIException):
        return response
    members: dict[str, Any] = {}
    title, detail, kind = HTTPStatus(response.status_code).phrase, str(known.detail), "about:blank"
    if isinstance(known, Problem):
        title, kind, members = known.title, known.kind, known.extra
    elif isinstance(known, exceptions.ValidationError):
        title, detail, members = "Invalid input", _first(known.detail), {"errors": known.detail}
    elif isinstance(known, exceptions.ParseError):
        title = "Malformed request"
    elif isinstance(known, exceptions.Throttled) and known.wait is not None:
        members = {"retry_after_s": int(known.wait) + 1}
    request = context.get("request")
    response.data = document(
        status_code=response.status_code,
        title=title,
        detail=detail,
        kind=kind,
        instance=request.path if request is not None else "",
        **members,
    )
    response.content_type = CONTENT_TYPE
    return response


def document(
    *, status_code: int, title: str, detail: str, instance: str, kind: str = "about:blank", **extra: Any
) -> dict[str, Any]:
    """The members of a problem document."""
    return {
        "type": kind,
        "title": title,
        "status": status_code,
        "detail": detail,
        "instance": instance,
        "request_id": request_id.get(),
        **extra,
    }


def respond(request: HttpRequest, *, status_code: int, detail: str) -> JsonResponse:
    """A problem document outside of REST framework's views."""
    body = document(
        status_code=status_code, title=HTTPStatus(status_code).phrase, detail=detail, instance=request.path
    )
    return JsonResponse(body, status=status_code, content_type=CONTENT_TYPE)


def _known(error: Exception) -> Exception:
    for cls in type(error).__mro__:
        if cls in _TRANSLATIONS:
            return _TRANSLATIONS[cls](error)
    if isinstance(error, ValidationError):
        return exceptions.ValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages)
    if isinstance(error, Http404):
        return exceptions.NotFound(str(error) or "there is nothing at this address")
    if isinstance(error, (PermissionDenied, PermissionError)):
        return exceptions.PermissionDenied(str(error) or None)
    return error


def _first(detail: Any, where: str = "") -> str:
    """One sentence that names the first fault and where it is."""
    if isinstance(detail, dict):
        if not detail:
            return where
        key, value = next(iter(detail.items()))
        return _first(value, f"{where}.{key}" if where else str(key))
    if isinstance(detail, list):
        return _first(next((item for item in detail if item), ""), where)
    return f"{where}: {detail}" if where and not where.endswith("non_field_errors") else str(detail)
