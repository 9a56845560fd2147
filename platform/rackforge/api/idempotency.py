"""`Idempotency-Key`: a request that is sent twice is done once.

The key's row is inserted in the transaction of the work itself. A second request with the same key waits at the
unique index until the first one has committed and then gets the stored answer; if the first one failed, its row
is gone with everything else it did, and the second one does the work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar, cast

from django.db import transaction
from django.utils import timezone
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from rackforge.api.models import IdempotencyKey
from rackforge.api.problems import Problem
from rackforge_runtime.canonical import digest_json

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
LIFETIME = timedelta(hours=24)
_KEY = re.compile(r"^[\x21-\x7e]{1,200}$")
_KEPT_HEADERS = ("Location", "ETag")

Handler = TypeVar("Handler", bound=Callable[..., Response])


def idempotent(handler: Handler) -> Handler:
    """Make a view set's method repeatable for callers that send the header; others notice nothing.

    Only answers below 400 are kept. The same key with another request is refused with 422.
    """

    @wraps(handler)
    def handle(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get(HEADER)
        if key is None:
            return handler(view, request, *args, **kwargs)
        if not _KEY.match(key):
            raise Problem(
                status_code=status.HTTP_400_BAD_REQUEST,
                title="Bad Idempotency-Key",
                detail="Idempotency-Key must be 1 to 200 visible ASCII characters, e.g. a UUID",
            )
        digest = digest_json({"method": request.method, "path": request.path, "body": _body(request)})
        with transaction.atomic():
            IdempotencyKey.objects.filter(user=request.user, created_at__lt=timezone.now() - LIFETIME).delete()
            row = IdempotencyKey(user=request.user, key=key, request_digest=digest)
            IdempotencyKey.objects.bulk_create([row], ignore_conflicts=True)
            stored = IdempotencyKey.objects.select_for_update().get(user=request.user, key=key)
            if stored.status:
                return _replay(stored, digest)
            response = handler(view, request, *args, **kwargs)
            if response.status_code < status.HTTP_400_BAD_REQUEST:
                stored.status = response.status_code
                stored.body = _plain(response)
                stored.headers = {name: response[name] for name in _KEPT_HEADERS if name in response}
                stored.save()
            else:
                stored.delete()
            return response

    return cast("Handler", handle)


def _replay(stored: IdempotencyKey, digest: str) -> Response:
    if stored.request_digest != digest:
        raise Problem(
            status_code=status.HTTP_422_UNPROCESSABLE_ENTITY,
            title="Idempotency-Key used before",
            detail="this Idempotency-Key came with another request in the last 24 hours; use a new one",
        )
    return Response(stored.body, status=stored.status, headers={**stored.headers, REPLAYED: "true"})


def _body(request: Request) -> Any:
    """The parsed body with floats as text: what JSON numbers look like must not decide about identity."""
    return json.loads(json.dumps(request.data, default=str), parse_float=str, parse_int=str)


def _plain(response: Response) -> Any:
    """The answer as JSON values, as the renderer would write them."""
    from rest_framework.renderers import JSONRenderer

    return None if response.data is None else json.loads(JSONRenderer().render(response.data))
