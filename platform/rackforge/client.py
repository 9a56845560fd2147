"""A small client of the platform's REST interface, for the command line and for whoever scripts in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from rackforge.config import Config, load

TOKEN_FILE = "admin_token"  # noqa: S105 - a file's name
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Unreachable(RuntimeError):
    """The platform does not answer; the text says where it was looked for and what to do."""


class ApiError(RuntimeError):
    """The platform refused; `problem` is its RFC 9457 document."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP {status}"))
        self.status = status
        self.problem = problem


class Client:
    """Speaks JSON with one platform; paths are below /api/v1/. A context manager."""

    def __init__(
        self, url: str, token: str, *, timeout_s: float = 30, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1/",
            headers=headers,
            timeout=timeout_s,
            transport=transport,
            # A proxy that is set for the outside world has no business with this host's own ports.
            trust_env=urlsplit(self.url).hostname not in LOOPBACK,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """One request. Raises ApiError for a refusal, Unreachable when nobody answers."""
        given = {key: value for key, value in (params or {}).items() if value is not None}
        try:
            response = self._http.request(method, path, json=json, params=given, headers=headers)
        except httpx.TransportError as error:
            raise Unreachable(
                f"{self.url} does not answer ({error or type(error).__name__}). Is the platform up? "
                "`rackforge up` starts it; RACKFORGE_URL names another one."
            ) from error
        if response.is_error:
            raise ApiError(response.status_code, _problem(response))
        return response

    def get(self, path: str, **params: Any) -> Any:
        return self.request("GET", path, params=params).json()

    def post(self, path: str, json: Any = None, *, key: str | None = None) -> Any:
        """POST; with an idempotency key it may be repeated without harm."""
        headers = {"Idempotency-Key": key} if key else None
        return self.request("POST", path, json=json, headers=headers).json()

    def pages(self, path: str, *, at_most: int | None = None, **params: Any) -> Iterator[dict[str, Any]]:
        """The rows of a list over all its pages."""
        left = at_most
        page = self.get(path, **params, limit=min(left or 200, 200))
        while True:
            for row in page["results"]:
                if left is not None:
                    if not left:
                        return
                    left -= 1
                yield row
            if not page["next"]:
                return
            # The address that the server knows itself by may not be the one it is reached at.
            page = self.get(path, **dict(httpx.URL(page["next"]).params))


def connect(config: Config | None = None, *, url: str | None = None, token: str | None = None) -> Client:
    """A client of RACKFORGE_URL with RACKFORGE_TOKEN; without them, of this installation.

    The installation's own token is sent only to the installation's own address.
    """
    config = config or load()
    address = url or os.environ.get("RACKFORGE_URL") or config.url
    secret = token or os.environ.get("RACKFORGE_TOKEN") or ""
    if not secret and address.rstrip("/") == config.url:
        secret = _read(config.home / TOKEN_FILE)
    return Client(address, secret)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        return body
    return {"title": response.reason_phrase, "status": response.status_code, "detail": response.text[:300]}
