"""Who may call what: a role per action, in one place."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from rackforge.accounts.models import ApiToken, Role, User


def role_of(request: Any) -> Role | None:
    """The role a request acts with: the token's, or the user's; None for nobody."""
    user = request.user
    if not isinstance(user, User) or not user.is_active:
        return None
    auth = getattr(request, "auth", None)
    if isinstance(auth, ApiToken):
        token_role = Role(auth.role)
        return token_role if user.effective_role.includes(token_role) else user.effective_role
    return user.effective_role


class RolePermission(BasePermission):
    """Reading needs VIEWER, changing needs OPERATOR; a view may ask for more.

    A view names exceptions in `roles = {action: Role}`.
    """

    message = "your role does not allow this"

    def has_permission(self, request: Request, view: Any) -> bool:
        role = role_of(request)
        if role is None:
            return False
        needed = getattr(view, "roles", {}).get(getattr(view, "action", None))
        if needed is None:
            needed = Role.VIEWER if request.method in SAFE_METHODS else Role.OPERATOR
        self.message = f"this needs the role {needed.value}; you act as {role.value}"
        return role.includes(needed)


def actor_of(request: Any) -> str:
    """Name of who acts, for the audit: the user, and the token where one was used."""
    auth = getattr(request, "auth", None)
    name = request.user.get_username() or "anonymous"
    return f"{name} (token {auth.name})" if isinstance(auth, ApiToken) else name
