"""Errors as RFC 9457 problem details: what happened, where, what to do."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_handler

CONTENT_TYPE = "application/problem+json"


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


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn what a view raised into a problem document; None lets Django answer 500."""
    if isinstance(error, ValidationError):
        error = exceptions.ValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages)
    elif isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    response = drf_handler(error, context)
    if response is None or not isinstance(error, exceptions.APIException):
        return response
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": error.default_detail,
        "status": response.status_code,
    }
    if isinstance(error, Problem):
        body |= {"type": error.kind, "title": error.title, "detail": str(error.detail), **error.extra}
    elif isinstance(error, exceptions.ValidationError):
        body |= {"title": "Invalid input", "detail": _first(error.detail), "errors": error.detail}
    else:
        body |= {"detail": str(error.detail)}
    request = context.get("request")
    if request is not None:
        body["instance"] = request.path
    response.data = body
    response.content_type = CONTENT_TYPE
    return response


def _first(detail: Any, where: str = "") -> str:
    """One sentence that names the first fault and where it is."""
    if isinstance(detail, dict):
        key, value = next(iter(detail.items()))
        return _first(value, f"{where}.{key}" if where else str(key))
    if isinstance(detail, list):
        return _first(detail[0], where) if detail else where
    return f"{where}: {detail}" if where and where != "non_field_errors" else str(detail)
