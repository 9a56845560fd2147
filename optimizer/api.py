"""Campaigns, their steps, candidates and measurements over REST."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins, serializers, status, viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from deployments.models import Deployment
from optimizer import queries
from optimizer.engine.tasks import builtin_tasks
from optimizer.models import Campaign, Candidate, Measurement, Step
from optimizer.plan import CampaignConfig, PlanError, parse_config
from optimizer.services import WrongState, create_campaign
from optimizer.services import request as request_state
from optimizer.states import CampaignState, CandidateState, Desired, Outcome, StepKind, StepState
from rackforge.accounts.permissions import actor_of
from rackforge.api import etags
from rackforge.api.filters import StrictFilterBackend
from rackforge.api.idempotency import idempotent
from rackforge.api.problems import conflict, invalid, translate
from rackforge.api.router import router
from rackforge.api.serializers import StrictSerializer
from rackforge_runtime.canonical import digest_json

translate(PlanError, lambda error: invalid(PlanError(f"config.{error}")))
translate(WrongState, conflict)

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
LOG_BYTES = 256 << 10


class CampaignSerializer(serializers.Serializer[Campaign]):
    """A campaign as a list shows it."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    deployment = serializers.CharField(source="deployment.name")
    node = serializers.CharField(source="deployment.node.name")
    model = serializers.CharField(source="deployment.model.name")
    revision = serializers.IntegerField(source="revision.number")
    state = serializers.ChoiceField(choices=CampaignState.choices)
    desired = serializers.ChoiceField(choices=Desired.choices)
    outcome = serializers.ChoiceField(choices=Outcome.choices, allow_blank=True)
    reason = serializers.CharField(help_text="of the last change of state")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    wall_s = serializers.FloatField(help_text="seconds that workers were busy with it, finished attempts only")
    candidate_count = serializers.IntegerField()
    best_speedup = serializers.FloatField(
        allow_null=True, help_text="of a kernel that the judge passed, alone, over the engine's own operator"
    )


class StageSerializer(serializers.Serializer[Any]):
    """A step as people follow it."""

    id = serializers.IntegerField()
    key = serializers.CharField()
    kind = serializers.ChoiceField(choices=StepKind.choices)
    label = serializers.CharField()
    state = serializers.ChoiceField(choices=StepState.choices)
    state_label = serializers.CharField()
    attempt = serializers.IntegerField()
    done = serializers.FloatField(allow_null=True)
    total = serializers.FloatField(allow_null=True)
    text = serializers.CharField()
    fraction = serializers.FloatField(help_text="done, 0 to 1")
    wall_s = serializers.FloatField(help_text="over all attempts, in seconds")
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField()


class SpentSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    unit = serializers.CharField()
    spent = serializers.FloatField()
    limit = serializers.FloatField()
    fraction = serializers.FloatField()


class LeftSerializer(serializers.Serializer[Any]):
    seconds = serializers.FloatField()
    basis = serializers.CharField(help_text="what the estimate rests on")


class BestSerializer(serializers.Serializer[Any]):
    task = serializers.CharField()
    number = serializers.IntegerField()
    digest = serializers.CharField()
    speedup = serializers.FloatField(help_text="the kernel alone, over the engine's own operator")
    state = serializers.ChoiceField(choices=CandidateState.choices)
    state_label = serializers.CharField()
    proven = serializers.BooleanField(help_text="whether the judge found it correct")
    evidence = serializers.CharField(help_text="digest of the judge's document; empty where there is none")


class CountsSerializer(serializers.Serializer[Any]):
    total = serializers.IntegerField()
    by_state = serializers.DictField(child=serializers.IntegerField())


class CampaignDetailSerializer(CampaignSerializer):
    """A campaign with all that its page shows."""

    config = serializers.JSONField()
    result = serializers.JSONField()
    failures = serializers.JSONField(help_text="stage, what, why, at: also of what the campaign survived")
    stages = StageSerializer(many=True)
    budget = SpentSerializer(many=True)
    left = LeftSerializer(allow_null=True)
    best = BestSerializer(many=True)
    candidates = CountsSerializer()


class CampaignInput(StrictSerializer):
    """A campaign to start. What `config` leaves out has its default."""

    deployment = serializers.SlugRelatedField(
        slug_field="name", queryset=Deployment.objects.filter(archived_at__isnull=True)
    )
    name = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")
    config = serializers.JSONField(required=False, help_text="budget, regimes, tasks and the design of the tests")

    def validate_config(self, value: Any) -> CampaignConfig:
        config = parse_config(value)
        for task in config.tasks or ():
            # Only names: a folder's `task.py` is code, and what may be run is decided on the host.
            if task not in builtin_tasks():
                raise PlanError(f"tasks: no task {task!r}; there are: {', '.join(builtin_tasks())}")
        return config


class StepSerializer(serializers.Serializer[Step]):
    """A step with everything it left."""

    key = serializers.CharField()
    ordinal = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=StepKind.choices)
    state = serializers.ChoiceField(choices=StepState.choices)
    attempt = serializers.IntegerField()
    lease_owner = serializers.CharField()
    lease_expires_at = serializers.DateTimeField(allow_null=True)
    progress = serializers.JSONField()
    result = serializers.JSONField()
    error = serializers.CharField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    wall_s = serializers.FloatField(help_text="finished attempts, in seconds")


class CandidateSerializer(serializers.Serializer[Candidate]):
    """A kernel that was tried, also when it failed."""

    number = serializers.IntegerField()
    task = serializers.CharField()
    kind = serializers.CharField()
    agent = serializers.CharField()
    digest = serializers.CharField(help_text="identity of the code")
    parent = serializers.CharField(help_text="digest of the candidate it was made from")
    state = serializers.ChoiceField(choices=CandidateState.choices)
    reason = serializers.CharField(help_text="why it went no further")
    speedup = serializers.FloatField(allow_null=True)
    params = serializers.JSONField()
    source_digest = serializers.CharField(help_text="blob: the sources as a JSON object")
    verdict_digest = serializers.CharField(help_text="blob: the judge's document")
    object_digest = serializers.CharField(help_text="the compiled artifact that was judged")
    wall_s = serializers.FloatField()
    created_at = serializers.DateTimeField()


class CandidateDetailSerializer(CandidateSerializer):
    timings = serializers.JSONField(help_text="per shape: microseconds of the candidate and of the stock operator")
    ab = serializers.JSONField(help_text="end-to-end decisions by regime")
    files = serializers.DictField(child=serializers.CharField(), help_text="the sources, by file name")


class MeasurementSerializer(serializers.Serializer[Measurement]):
    """One benchmark run or A/B block."""

    step = serializers.CharField(source="step.key")
    kind = serializers.CharField()
    regime = serializers.CharField()
    index = serializers.IntegerField()
    payload = serializers.JSONField()
    evidence = serializers.JSONField(help_text="digests of the raw benchmark documents")
    created_at = serializers.DateTimeField()


class ServerSerializer(serializers.Serializer[Any]):
    slot = serializers.CharField()
    alive = serializers.BooleanField()
    port = serializers.IntegerField(allow_null=True)
    size = serializers.IntegerField(help_text="of its log, in bytes")


class LogSerializer(serializers.Serializer[Any]):
    """A piece of a server's log. Ask again with `offset=next_offset` for what came since."""

    slot = serializers.CharField()
    offset = serializers.IntegerField(help_text="of the text, in bytes")
    next_offset = serializers.IntegerField()
    size = serializers.IntegerField()
    text = serializers.CharField()


class CampaignFilter(django_filters.FilterSet):  # type: ignore[misc]
    deployment = django_filters.CharFilter(field_name="deployment__name")
    node = django_filters.CharFilter(field_name="deployment__node__name")
    open = django_filters.BooleanFilter(method="filter_open", help_text="queued, running or paused")
    created_after = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = Campaign
        fields = ("state", "desired", "outcome", "created_by")

    def filter_open(self, queryset: QuerySet[Campaign], name: str, value: bool) -> QuerySet[Campaign]:  # noqa: ARG002
        ended = [state for state in CampaignState if state.terminal]
        return queryset.exclude(state__in=ended) if value else queryset.filter(state__in=ended)


class CampaignViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[Campaign]):
    """Campaigns, newest first."""

    queryset = Campaign.objects.all()
    serializer_class = CampaignSerializer
    filter_backends = [StrictFilterBackend]
    filterset_class = CampaignFilter
    lookup_field = "pk"
    lookup_url_kwarg = "id"
    lookup_value_regex = UUID
    page_ordering = ("-created_at", "-pk")

    @property
    def extra_parameters(self) -> tuple[str, ...]:
        return ("offset",) if self.action == "log" else ()

    def get_queryset(self) -> QuerySet[Campaign]:
        return queries.campaigns()

    def _detail(self, pk: Any) -> dict[str, Any]:
        campaign = queries.campaigns().get(pk=pk)
        stored = {"config": campaign.config, "result": campaign.result, "failures": campaign.failures}
        return {**CampaignSerializer(campaign).data, **stored, **queries.detail(campaign)}

    @extend_schema(responses=CampaignDetailSerializer)
    def retrieve(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002
        return Response(self._detail(self.get_object().pk))

    @extend_schema(request=CampaignInput, responses={201: CampaignDetailSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        """Start a campaign on the deployment's latest revision; 409 while one is open there."""
        given = CampaignInput(data=request.data)
        given.is_valid(raise_exception=True)
        campaign = create_campaign(
            deployment=given.validated_data["deployment"],
            config=given.validated_data.get("config") or CampaignConfig(),
            name=given.validated_data["name"],
            actor=actor_of(request),
        )
        headers = {"Location": f"{request.path}/{campaign.pk}"}
        return Response(self._detail(campaign.pk), status=status.HTTP_201_CREATED, headers=headers)

    @extend_schema(request=None, responses=CampaignDetailSerializer)
    @action(detail=True, methods=["post"])
    @idempotent
    def pause(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002
        """Stop at the next safe point and keep everything; asking twice changes nothing."""
        return self._request(request, Desired.PAUSE)

    @extend_schema(request=None, responses=CampaignDetailSerializer)
    @action(detail=True, methods=["post"])
    @idempotent
    def resume(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002
        """Go on where it was."""
        return self._request(request, Desired.RUN)

    @extend_schema(request=None, responses=CampaignDetailSerializer)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002
        """End it for good; what was measured and registered stays."""
        return self._request(request, Desired.CANCEL)

    def _request(self, request: Request, desired: Desired) -> Response:
        campaign = request_state(campaign=self.get_object(), desired=desired, actor=actor_of(request))
        return Response(self._detail(campaign.pk))

    @extend_schema(responses=ServerSerializer(many=True), filters=False)
    @action(detail=True, pagination_class=None)
    def servers(self, request: Request, id: str) -> Response:  # noqa: A002, ARG002
        """The model servers of the campaign whose logs are there."""
        return Response(ServerSerializer(queries.servers_of(self.get_object()), many=True).data)

    @extend_schema(
        responses=LogSerializer,
        filters=False,
        parameters=[OpenApiParameter("offset", int, description="in bytes; negative counts from the end")],
    )
    @action(detail=True, url_path=r"servers/(?P<slot>[A-Za-z0-9._-]+)/log", pagination_class=None)
    def log(self, request: Request, id: str, slot: str) -> Response:  # noqa: A002, ARG002
        """What a model server wrote, up to 256 KiB from `offset` on (default: the end)."""
        path = queries.server_log(self.get_object(), slot)
        if path is None:
            raise Http404(f"this campaign has no server called {slot!r} with a log")
        text = request.query_params.get("offset", str(-LOG_BYTES))
        if not text.removeprefix("-").isdigit():
            raise serializers.ValidationError({"offset": ["a whole number of bytes is needed here"]})
        with path.open("rb") as f:
            size = f.seek(0, 2)
            offset = int(text) if int(text) >= 0 else max(size + int(text), 0)
            f.seek(min(offset, size))
            data = f.read(LOG_BYTES)
        body = {
            "slot": slot,
            "offset": min(offset, size),
            "next_offset": min(offset, size) + len(data),
            "size": size,
            "text": data.decode(errors="replace"),
        }
        return Response(LogSerializer(body).data)


class _OfCampaign(viewsets.GenericViewSet[Any]):
    """Rows below a campaign."""

    filter_backends = [StrictFilterBackend]

    def get_queryset(self) -> QuerySet[Any]:
        query = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):
            return query.none()
        campaign = self.kwargs["campaign"]
        if not Campaign.objects.filter(pk=campaign).exists():
            raise Http404(f"there is no campaign {campaign}")
        return query.filter(**{self.campaign_path: campaign})

    campaign_path = "campaign"


class StepViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, _OfCampaign):
    """Steps of a campaign, in order."""

    queryset = Step.objects.all()
    serializer_class = StepSerializer
    filterset_fields = ("kind", "state")
    lookup_field = "key"
    lookup_value_regex = "[^/]+"
    page_ordering = "ordinal"


class CandidateFilter(django_filters.FilterSet):  # type: ignore[misc]
    min_speedup = django_filters.NumberFilter(field_name="speedup", lookup_expr="gte")

    class Meta:
        model = Candidate
        fields = ("task", "state", "agent", "digest", "parent", "kind")


class CandidateViewSet(mixins.ListModelMixin, _OfCampaign):
    """Candidates of a campaign, newest first."""

    queryset = Candidate.objects.all()
    serializer_class = CandidateSerializer
    filterset_class = CandidateFilter
    lookup_field = "number"
    lookup_value_regex = r"\d{1,9}"
    page_ordering = "-number"

    @extend_schema(responses=CandidateDetailSerializer)
    def retrieve(self, request: Request, campaign: str, number: str) -> Response:  # noqa: ARG002
        """With its sources and timings."""
        candidate = self.get_object()
        candidate.files = queries.sources(candidate)
        data = CandidateDetailSerializer(candidate).data
        return etags.answer(request, data, etags.etag_of(digest_json(_texts(data))))


class MeasurementViewSet(mixins.ListModelMixin, _OfCampaign):
    """Measurements of a campaign, in the order of its steps."""

    class Filter(django_filters.FilterSet):  # type: ignore[misc]
        step = django_filters.CharFilter(field_name="step__key")

        class Meta:
            model = Measurement
            fields = ("kind", "regime")

    queryset = Measurement.objects.select_related("step")
    serializer_class = MeasurementSerializer
    filterset_class = Filter
    campaign_path = "step__campaign"
    page_ordering = "pk"


def _texts(data: Any) -> Any:
    """The same with every leaf as text, so that any number has a digest."""
    if isinstance(data, dict):
        return {str(key): _texts(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_texts(value) for value in data]
    return str(data)


router.register("campaigns", CampaignViewSet, basename="campaign")
router.register(rf"campaigns/(?P<campaign>{UUID})/steps", StepViewSet, basename="step")
router.register(rf"campaigns/(?P<campaign>{UUID})/candidates", CandidateViewSet, basename="candidate")
router.register(rf"campaigns/(?P<campaign>{UUID})/measurements", MeasurementViewSet, basename="measurement")
