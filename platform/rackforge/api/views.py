"""Health of the web process, and errors that happen outside of any view."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from rackforge.api.problems import respond
from rackforge.audit.services import request_id

WORDS = {
    400: "The request cannot be understood.",
    403: "This is not allowed.",
    404: "There is nothing at this address.",
    500: "Something broke on our side. The log has the details under this request id.",
}


def health(request: HttpRequest) -> JsonResponse:  # noqa: ARG001
    """200 when the database answers, 503 when it does not."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return JsonResponse({"status": "no database", "detail": str(error)}, status=503)
    return JsonResponse({"status": "ok"})


def _error(request: HttpRequest, status_code: int, detail: str = "") -> HttpResponse:
    """A problem document below /api/, a page elsewhere."""
    text = detail or WORDS[status_code]
    if request.path.startswith("/api/"):
        return respond(request, status_code=status_code, detail=text)
    context = {"status": status_code, "title": HTTPStatus(status_code).phrase, "detail": text, "id": request_id.get()}
    return render(request, "error.html", context, status=status_code)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    return _error(request, 400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _error(request, 403, str(exception))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    return _error(request, 404)


def failed(request: HttpRequest) -> HttpResponse:
    return _error(request, 500)


def csrf_failed(request: HttpRequest, reason: str = "", **_: Any) -> HttpResponse:
    return _error(
        request, 403, f"This form is too old or came from elsewhere; go back, reload and repeat. ({reason})"
    )
