"""API tokens: made, listed, revoked."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status, viewsets
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rackforge.accounts.models import ApiToken, Role, User
from rackforge.accounts.permissions import actor_of, role_of
from rackforge.accounts.services import create_token, revoke_token
from rackforge.api.filters import StrictFilterBackend
from rackforge.api.problems import Conflict
from rackforge.api.router import router
from rackforge.api.serializers import StrictSerializer


class TokenSerializer(serializers.Serializer[ApiToken]):
    """A token without its text."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="the first characters of its text")
    user = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(choices=Role.choices)
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)


class NewTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="the text to send as a bearer; it is shown this once")


class TokenInput(StrictSerializer):
    name = serializers.CharField(max_length=100)
    role = serializers.ChoiceField(choices=Role.choices, default=Role.VIEWER)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)

    def validate_expires_at(self, value: Any) -> Any:
        if value is not None and value <= timezone.now():
            raise serializers.ValidationError("this is in the past")
        return value


class TokenViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[ApiToken]):
    """One's own tokens; an admin sees everybody's. Deleting one revokes it; its row stays for the audit."""

    queryset = ApiToken.objects.select_related("user")
    serializer_class = TokenSerializer
    filter_backends = [StrictFilterBackend]
    lookup_value_regex = r"\d+"
    roles = {"create": Role.VIEWER, "destroy": Role.VIEWER}

    def get_queryset(self) -> QuerySet[ApiToken]:
        query = super().get_queryset()
        if role_of(self.request) == Role.ADMIN:
            return query
        return query.filter(user=self.request.user.pk)

    @extend_schema(request=TokenInput, responses={201: NewTokenSerializer})
    def create(self, request: Request) -> Response:
        """A new token of one's own. It never exceeds the role of the token or session that asks for it."""
        given = TokenInput(data=request.data)
        given.is_valid(raise_exception=True)
        user = request.user
        role, mine = Role(given.validated_data["role"]), role_of(request)
        if not isinstance(user, User) or mine is None or not mine.includes(role):
            raise PermissionError(
                f"you act as {mine.value if mine else 'nobody'} and cannot make a {role.value} token"
            )
        name = given.validated_data["name"]
        if user.tokens.filter(name=name, revoked_at__isnull=True).exists():
            raise Conflict(f"you have a token called {name!r}; revoke it or choose another name")
        token, text = create_token(
            user=user,
            name=name,
            role=role,
            actor=actor_of(request),
            expires_at=given.validated_data.get("expires_at"),
        )
        body = {**TokenSerializer(token).data, "token": text}
        return Response(body, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, pk: str | None = None) -> Response:  # noqa: ARG002
        """Revoke. A revoked token stays revoked."""
        revoke_token(token=self.get_object(), actor=actor_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class MeSerializer(serializers.Serializer[Any]):
    username = serializers.CharField()
    role = serializers.ChoiceField(choices=Role.choices, help_text="what this request may do")
    token = serializers.CharField(allow_null=True, help_text="name of the token that was used")


class MeView(APIView):
    """Who the caller is."""

    @extend_schema(responses=MeSerializer)
    def get(self, request: Request) -> Response:
        token = request.auth.name if isinstance(request.auth, ApiToken) else None
        return Response({"username": request.user.get_username(), "role": role_of(request), "token": token})


router.register("tokens", TokenViewSet, basename="token")
urlpatterns = [path("me", MeView.as_view(), name="me")]
