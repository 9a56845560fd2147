"""`Authorization: Bearer rf_...`."""

from __future__ import annotations

from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from rackforge.accounts.models import ApiToken, User
from rackforge.accounts.services import find_token


class TokenAuthentication(BaseAuthentication):
    """Bearer tokens of `ApiToken`; anything else is left to the next class."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, text = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = find_token(text.strip())
        if token is None:
            raise AuthenticationFailed("this token is unknown, expired or revoked")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002
        return "Bearer"
