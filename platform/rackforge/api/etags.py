"""ETag, If-None-Match and If-Match: nobody overwrites what they have not seen."""

from __future__ import annotations

from django.utils.http import parse_etags, quote_etag
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from rackforge.api.problems import Problem


def etag_of(version: int | str) -> str:
    """The strong ETag of a row's version or of a digest."""
    return quote_etag(f"v{version}" if isinstance(version, int) else version)


def not_modified(request: Request, etag: str) -> bool:
    """Whether the caller has this very version already (If-None-Match, weak comparison)."""
    given = parse_etags(request.headers.get("If-None-Match", ""))
    return "*" in given or etag in [tag.removeprefix("W/") for tag in given]


def answer(request: Request, data: object, etag: str) -> Response:
    """200 with the data and its ETag, or 304 without it."""
    if not_modified(request, etag):
        return Response(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": etag})
    return Response(data, headers={"ETag": etag})


def require_match(request: Request, etag: str) -> None:
    """Raise 428 unless If-Match was sent, 412 unless it names the present version."""
    header = request.headers.get("If-Match")
    if header is None:
        raise Problem(
            status_code=status.HTTP_428_PRECONDITION_REQUIRED,
            title="If-Match is required",
            detail=f"read the resource, then send its ETag as If-Match (it is {etag} now)",
        )
    given = parse_etags(header)
    if "*" not in given and etag not in given:
        raise stale(etag)


def stale(etag: str | None = None) -> Problem:
    """412: changed by somebody else since the caller read it."""
    now = f" (its ETag is {etag} now)" if etag else ""
    return Problem(
        status_code=status.HTTP_412_PRECONDITION_FAILED,
        title="Changed meanwhile",
        detail=f"somebody changed this since you read it{now}; read it again and repeat your change",
    )
