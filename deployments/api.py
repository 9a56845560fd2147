"""Nodes, models, deployments and their revisions over REST."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, serializers, status, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from deployments.models import Deployment, Node, Revision, ServedModel
from deployments.queries import difference
from deployments.recipe import RecipeError, parse_recipe
from deployments.services import Stale, create_deployment, register_model, register_node, update_deployment
from rackforge.accounts.permissions import actor_of
from rackforge.api import etags
from rackforge.api.filters import StrictFilterBackend
from rackforge.api.idempotency import idempotent
from rackforge.api.problems import Conflict, invalid, translate
from rackforge.api.router import router
from rackforge.api.serializers import StrictSerializer

translate(RecipeError, lambda error: invalid(RecipeError(f"recipe.{error}")))
translate(Stale, lambda _: etags.stale())

NAME = r"[-a-zA-Z0-9_]+"


class NodeSerializer(StrictSerializer):
    """A host that can serve, with what was detected on it."""

    name = serializers.SlugField(max_length=100)
    facts = serializers.JSONField(help_text="processor, instruction sets, memory, accelerators, engine versions")
    facts_digest = serializers.CharField(read_only=True)
    roofline = serializers.JSONField(required=False, help_text="measured GB/s and GFLOP/s of one core and of all")
    created_at = serializers.DateTimeField(read_only=True)
    seen_at = serializers.DateTimeField(read_only=True, allow_null=True)

    def validate_facts(self, value: Any) -> Any:
        return _object(value)

    def validate_roofline(self, value: Any) -> Any:
        return _object(value)


class ModelSerializer(StrictSerializer):
    """A model in a folder of the node, as vLLM loads it."""

    name = serializers.SlugField(max_length=100)
    path = serializers.CharField(max_length=1000, help_text="folder with config.json, on the node")
    load_format = serializers.CharField(max_length=20, default="auto")
    config = serializers.JSONField(read_only=True)
    config_digest = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)


class RevisionSerializer(serializers.Serializer[Revision]):
    """One immutable state of a deployment."""

    deployment = serializers.CharField(source="deployment.name")
    number = serializers.IntegerField()
    recipe = serializers.JSONField()
    recipe_digest = serializers.CharField()
    kernels = serializers.JSONField(help_text="name, version and digest of every pinned kernel")
    digest = serializers.CharField()
    reason = serializers.CharField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()


class DeploymentSerializer(serializers.Serializer[Deployment]):
    """A model served on a node in a certain way."""

    name = serializers.CharField()
    model = serializers.CharField(source="model.name")
    node = serializers.CharField(source="node.name")
    recipe = serializers.JSONField(help_text="engine, arguments, environment and load")
    version = serializers.IntegerField(help_text='of this row; its ETag is `"v<version>"`')
    latest_revision = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    archived_at = serializers.DateTimeField(allow_null=True)


class DeploymentInput(StrictSerializer):
    name = serializers.SlugField(max_length=100)
    model = serializers.SlugRelatedField(slug_field="name", queryset=ServedModel.objects.all())
    node = serializers.SlugRelatedField(slug_field="name", queryset=Node.objects.all())
    recipe = serializers.JSONField()


class DeploymentChange(StrictSerializer):
    recipe = serializers.JSONField()


class ChangeSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class KernelChangeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    what = serializers.ChoiceField(choices=["added", "removed", "changed"])
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class DifferenceSerializer(serializers.Serializer[Any]):
    """What changed from one revision to another."""

    recipe = ChangeSerializer(many=True)
    kernels = KernelChangeSerializer(many=True)


def _object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise serializers.ValidationError("must be an object")
    return value


class NodeViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[Node]):
    """Hosts. Registering one again refreshes its facts."""

    queryset = Node.objects.all()
    serializer_class = NodeSerializer
    filter_backends = [StrictFilterBackend]
    filterset_fields: tuple[str, ...] = ()
    lookup_field = "name"
    lookup_value_regex = NAME
    page_ordering = "name"

    @extend_schema(responses={201: NodeSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        given = NodeSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        values = given.validated_data
        node = register_node(
            name=values["name"], facts=values["facts"], roofline=values.get("roofline", {}), actor=actor_of(request)
        )
        return Response(NodeSerializer(node).data, status=status.HTTP_201_CREATED)


class ModelViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[ServedModel]):
    """Models."""

    queryset = ServedModel.objects.all()
    serializer_class = ModelSerializer
    filter_backends = [StrictFilterBackend]
    filterset_fields = ("load_format",)
    lookup_field = "name"
    lookup_value_regex = NAME
    page_ordering = "name"

    @extend_schema(responses={201: ModelSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        given = ModelSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        try:
            model = register_model(**given.validated_data, actor=actor_of(request))
        except ValueError as error:
            raise serializers.ValidationError({"path": [str(error)]}) from error
        return Response(ModelSerializer(model).data, status=status.HTTP_201_CREATED)


class DeploymentFilter(django_filters.FilterSet):  # type: ignore[misc]
    model = django_filters.CharFilter(field_name="model__name")
    node = django_filters.CharFilter(field_name="node__name")
    archived = django_filters.BooleanFilter(field_name="archived_at", lookup_expr="isnull", exclude=True)

    class Meta:
        model = Deployment
        fields: tuple[str, ...] = ()


class DeploymentViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[Deployment]):
    """Deployments. A change of the recipe makes a new revision; revisions never change."""

    queryset = Deployment.objects.select_related("model", "node")
    serializer_class = DeploymentSerializer
    filter_backends = [StrictFilterBackend]
    filterset_class = DeploymentFilter
    lookup_field = "name"
    lookup_value_regex = NAME
    page_ordering = "name"

    def get_queryset(self) -> QuerySet[Deployment]:
        newest = Revision.objects.filter(deployment=OuterRef("pk")).order_by("-number").values("number")[:1]
        return super().get_queryset().annotate(latest_revision=Subquery(newest))

    @extend_schema(responses=DeploymentSerializer)
    def retrieve(self, request: Request, name: str) -> Response:  # noqa: ARG002
        deployment = self.get_object()
        return etags.answer(request, self.get_serializer(deployment).data, etags.etag_of(deployment.version))

    @extend_schema(request=DeploymentInput, responses={201: DeploymentSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        given = DeploymentInput(data=request.data)
        given.is_valid(raise_exception=True)
        values = given.validated_data
        if Deployment.objects.filter(name=values["name"]).exists():
            raise Conflict(f"there is a deployment called {values['name']!r}; change that one or choose another name")
        create_deployment(**values | {"recipe": parse_recipe(values["recipe"])}, actor=actor_of(request))
        deployment = self.get_queryset().get(name=values["name"])
        headers = {"ETag": etags.etag_of(deployment.version), "Location": f"{request.path}/{deployment.name}"}
        return Response(self.get_serializer(deployment).data, status=status.HTTP_201_CREATED, headers=headers)

    @extend_schema(
        request=DeploymentChange,
        responses=DeploymentSerializer,
        parameters=[OpenApiParameter("If-Match", str, OpenApiParameter.HEADER, required=True)],
    )
    @idempotent
    def partial_update(self, request: Request, name: str) -> Response:
        """Change the recipe. `If-Match` must carry the ETag that was read."""
        deployment = self.get_object()
        etags.require_match(request, etags.etag_of(deployment.version))
        given = DeploymentChange(data=request.data)
        given.is_valid(raise_exception=True)
        update_deployment(
            deployment=deployment,
            recipe=parse_recipe(given.validated_data["recipe"]),
            expected_version=deployment.version,
            actor=actor_of(request),
        )
        deployment = self.get_queryset().get(name=name)
        return Response(self.get_serializer(deployment).data, headers={"ETag": etags.etag_of(deployment.version)})


class RevisionViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[Revision]):
    """Revisions of a deployment, newest first."""

    queryset = Revision.objects.select_related("deployment")
    serializer_class = RevisionSerializer
    filter_backends = [StrictFilterBackend]
    filterset_fields = ("digest",)
    lookup_field = "number"
    lookup_value_regex = r"\d{1,9}"
    page_ordering = "-number"

    @property
    def extra_parameters(self) -> tuple[str, ...]:
        return ("from", "to") if self.action == "difference" else ()

    def get_queryset(self) -> QuerySet[Revision]:
        if getattr(self, "swagger_fake_view", False):
            return Revision.objects.none()
        name = self.kwargs["deployment"]
        if not Deployment.objects.filter(name=name).exists():
            raise Http404(f"there is no deployment called {name!r}")
        return super().get_queryset().filter(deployment__name=name)

    @extend_schema(
        responses=DifferenceSerializer,
        parameters=[OpenApiParameter("from", int, required=True), OpenApiParameter("to", int, required=True)],
        filters=False,
    )
    @action(detail=False, url_path="difference", pagination_class=None)
    def difference(self, request: Request, deployment: str) -> Response:
        """What changed from one revision to another: `?from=1&to=2`."""
        numbers = [self._number(request, name) for name in ("from", "to")]
        found = {revision.number: revision for revision in self.get_queryset().filter(number__in=numbers)}
        for number in numbers:
            if number not in found:
                raise Http404(f"{deployment} has no revision {number}")
        return Response(DifferenceSerializer(difference(found[numbers[0]], found[numbers[1]])).data)

    @staticmethod
    def _number(request: Request, name: str) -> int:
        text = request.query_params.get(name, "")
        if not text.isdigit():
            raise serializers.ValidationError({name: ["the number of a revision is needed here, e.g. ?from=1&to=2"]})
        return int(text)


router.register("nodes", NodeViewSet, basename="node")
router.register("models", ModelViewSet, basename="model")
router.register("deployments", DeploymentViewSet, basename="deployment")
router.register(rf"deployments/(?P<deployment>{NAME})/revisions", RevisionViewSet, basename="revision")
