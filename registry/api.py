"""The registry over REST: kernels, versions, channels, blobs, resolve, keys, the kill switch."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import IO, Any, ClassVar

import django_filters
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Count, QuerySet
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import re_path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import exceptions, mixins, parsers, serializers, status, viewsets
from rest_framework.permissions import AllowAny, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from rackforge.accounts.models import Role
from rackforge.accounts.permissions import actor_of
from rackforge.api import etags
from rackforge.api.filters import StrictFilterBackend
from rackforge.api.idempotency import idempotent
from rackforge.api.problems import Problem, conflict, invalid, translate
from rackforge.api.router import router
from rackforge.api.serializers import StrictSerializer
from rackforge_runtime.cache import BlobError
from rackforge_runtime.manifests import ManifestError
from rackforge_runtime.schemas import NAMES, load_schema
from rackforge_runtime.signing import KeyFileError, SignatureError
from rackforge_runtime.signing import PublicKey as PinnedKey
from registry import queries, services
from registry.blobs import blob_store
from registry.keys import signing_key, trusted_keys
from registry.models import Blob, Kernel, PublicKey, Pull, Version
from registry.resolving import FactsError

NAME = r"[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*"
_INLINE = 1 << 20  # blobs up to this many bytes are answered whole


def _blob_problem(error: Exception) -> exceptions.APIException:
    reason = error.reason if isinstance(error, BlobError) else "missing"
    code = status.HTTP_404_NOT_FOUND if reason == "missing" else status.HTTP_422_UNPROCESSABLE_ENTITY
    return Problem(status_code=code, title=f"Blob {reason}", detail=str(error), reason=reason)


translate(ManifestError, invalid)
translate(FactsError, invalid)
translate(BlobError, _blob_problem)
translate(services.Conflict, conflict)
translate(services.Stale, lambda error: etags.stale() if not str(error) else Problem(
    status_code=status.HTTP_412_PRECONDITION_FAILED, title="Changed meanwhile", detail=str(error)))  # fmt: skip
translate(services.NotThere, lambda error: exceptions.NotFound(str(error)))
translate(services.NotAllowed, conflict)
translate(KeyFileError, invalid)
translate(
    SignatureError,
    lambda error: Problem(
        status_code=status.HTTP_422_UNPROCESSABLE_ENTITY, title="Signature refused", detail=str(error)
    ),
)


class ChannelSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    version = serializers.CharField(source="version.version")
    digest = serializers.CharField(source="version.digest")
    sequence = serializers.IntegerField(help_text="of the last move; its ETag")


class KernelSerializer(serializers.Serializer[Kernel]):
    """A kernel with its channels."""

    name = serializers.CharField()
    kind = serializers.CharField()
    op = serializers.CharField()
    created_at = serializers.DateTimeField()
    version_count = serializers.IntegerField()
    channels = ChannelSerializer(many=True)


class VersionSerializer(serializers.Serializer[Version]):
    """A version as lists show it."""

    name = serializers.CharField(source="kernel.name")
    version = serializers.CharField()
    digest = serializers.CharField()
    signature_digest = serializers.CharField()
    published_by = serializers.CharField()
    published_at = serializers.DateTimeField()
    yanked = serializers.BooleanField()
    revoked = serializers.BooleanField()


class EventSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    reason = serializers.CharField()
    actor = serializers.CharField()
    at = serializers.DateTimeField()


class VersionDetailSerializer(VersionSerializer):
    """A version with its manifest and what happened to it."""

    manifest = serializers.JSONField()
    events = EventSerializer(many=True)
    channels = serializers.SerializerMethodField()

    def get_channels(self, version: Version) -> list[str]:
        return sorted(version.kernel.channels.filter(version=version).values_list("name", flat=True))


class ChannelEventSerializer(serializers.Serializer[Any]):
    channel = serializers.CharField()
    sequence = serializers.IntegerField()
    before = serializers.CharField(source="before.version", allow_null=True, default=None)
    after = serializers.CharField(source="after.version")
    rollback = serializers.BooleanField()
    reason = serializers.CharField()
    actor = serializers.CharField()
    at = serializers.DateTimeField()


class PublishInput(StrictSerializer):
    """A manifest, and the publisher's own signature where there is one."""

    manifest = serializers.JSONField(help_text="as the manifest schema says")
    signature = serializers.JSONField(required=False, allow_null=True, help_text="DSSE envelope; without it we sign")


class ReasonInput(StrictSerializer):
    reason = serializers.CharField(max_length=1000)


class MoveInput(StrictSerializer):
    version = serializers.CharField(help_text="version, digest, or the name of another channel")
    reason = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")


class ResolveInput(StrictSerializer):
    """What a host is and what it wants."""

    facts = serializers.JSONField(help_text="backend, isa or arch, cu_num, torch, triton, vllm, rocm, dtype, ...")
    channel = serializers.RegexField(r"^[a-z][a-z0-9-]{0,48}$", default="stable")
    pins = serializers.ListField(
        child=serializers.RegexField(rf"^{NAME}@\S+$"), default=list, help_text="namespace/kernel@version"
    )
    host = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")
    trace = serializers.BooleanField(default=False, help_text="list every version left out, with its reason")


class VerdictSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    version = serializers.CharField()
    variant = serializers.CharField()
    accepted = serializers.BooleanField()
    reason = serializers.CharField()


class ResolveSerializer(serializers.Serializer[Any]):
    """A signed lock and why it is what it is."""

    lock = serializers.JSONField(help_text="DSSE envelope of an in-toto statement; the predicate is the lock")
    lock_digest = serializers.CharField()
    generation = serializers.IntegerField()
    trace = VerdictSerializer(many=True)
    left_out = serializers.JSONField(help_text="versions their channel does not point to")
    warnings = serializers.ListField(child=serializers.CharField())


class SwitchInput(StrictSerializer):
    disabled = serializers.ListField(
        child=serializers.CharField(max_length=200), help_text="operators no host may replace; * is all"
    )
    reason = serializers.CharField(max_length=1000)


class KeySerializer(serializers.Serializer[Any]):
    keyid = serializers.CharField()
    public = serializers.CharField()
    name = serializers.CharField()
    signs_now = serializers.BooleanField()
    added_at = serializers.DateTimeField(allow_null=True)
    retired_at = serializers.DateTimeField(allow_null=True)


class KeyInput(StrictSerializer):
    keyid = serializers.CharField()
    public = serializers.CharField()
    name = serializers.CharField(max_length=100)


class PullSerializer(serializers.Serializer[Pull]):
    id = serializers.UUIDField()
    host = serializers.CharField()
    channel = serializers.CharField()
    pins = serializers.ListField(child=serializers.CharField())
    lock_digest = serializers.CharField()
    generation = serializers.IntegerField()
    kernels = serializers.ListField(child=serializers.CharField())
    facts = serializers.JSONField()
    actor = serializers.CharField()
    at = serializers.DateTimeField()


class KernelFilter(django_filters.FilterSet):  # type: ignore[misc]
    search = django_filters.CharFilter(field_name="name", lookup_expr="icontains")

    class Meta:
        model = Kernel
        fields: ClassVar[list[str]] = ["kind", "op"]


class KernelViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[Kernel]):
    """Kernels and their channels."""

    serializer_class = KernelSerializer
    filter_backends = [StrictFilterBackend]
    filterset_class = KernelFilter
    lookup_field = "name"
    lookup_value_regex = NAME
    page_ordering = "name"

    def get_queryset(self) -> QuerySet[Kernel]:
        return Kernel.objects.annotate(version_count=Count("versions")).prefetch_related("channels__version")


class VersionViewSet(viewsets.GenericViewSet[Version]):
    """Versions of a kernel: immutable, yanked or revoked, never deleted."""

    serializer_class = VersionSerializer
    filter_backends = []
    page_ordering = "-order"
    roles = {"revoke": Role.APPROVER}

    @extend_schema(responses=VersionSerializer(many=True))
    def list(self, request: Request, name: str) -> Response:  # noqa: ARG002
        kernel = queries.get_kernel(name)
        rows = self.paginate_queryset(kernel.versions.select_related("kernel"))
        return self.get_paginated_response(VersionSerializer(rows, many=True).data)

    @extend_schema(request=PublishInput, responses={200: VersionDetailSerializer, 201: VersionDetailSerializer})
    @idempotent
    def create(self, request: Request, name: str) -> Response:
        """Publish: 201, 200 for what is there already, 409 where the number is another's."""
        given = PublishInput(data=request.data)
        given.is_valid(raise_exception=True)
        manifest = given.validated_data["manifest"]
        if not isinstance(manifest, dict) or manifest.get("name") != name:
            raise ManifestError(f"manifest.name: is not {name}, the kernel of this address")
        done = services.publish_version(
            manifest=manifest, signature=given.validated_data.get("signature"), actor=actor_of(request)
        )
        code = status.HTTP_201_CREATED if done.created else status.HTTP_200_OK
        return Response(
            VersionDetailSerializer(done.version).data,
            status=code,
            headers={"ETag": etags.etag_of(done.version.digest)},
        )

    @extend_schema(responses=VersionDetailSerializer)
    def retrieve(self, request: Request, name: str, version: str) -> Response:  # noqa: ARG002
        """By number, by digest, or by the name of a channel."""
        row = queries.get_version(name, version)
        headers = {"ETag": etags.etag_of(row.digest)}
        if row.yanked:
            reason = queries.reasons_of(row).get("yank", "")
            headers["Warning"] = f'299 - "yanked: {reason}"'.encode("ascii", "replace").decode()
        return Response(VersionDetailSerializer(row).data, headers=headers)

    @extend_schema(request=ReasonInput, responses=VersionDetailSerializer)
    def yank(self, request: Request, name: str, version: str) -> Response:
        return self._mark(services.yank, request, name, version)

    @extend_schema(request=ReasonInput, responses=VersionDetailSerializer)
    def unyank(self, request: Request, name: str, version: str) -> Response:
        return self._mark(services.unyank, request, name, version)

    @extend_schema(request=ReasonInput, responses=VersionDetailSerializer)
    def revoke(self, request: Request, name: str, version: str) -> Response:
        return self._mark(services.revoke, request, name, version)

    def _mark(self, change: Callable[..., Version], request: Request, name: str, version: str) -> Response:
        given = ReasonInput(data=request.data)
        given.is_valid(raise_exception=True)
        row = change(
            version=queries.get_version(name, version),
            actor=actor_of(request),
            reason=given.validated_data["reason"],
        )
        return Response(VersionDetailSerializer(row).data)

    @extend_schema(
        parameters=[OpenApiParameter("a", required=True), OpenApiParameter("b", required=True)],
        responses=OpenApiTypes.OBJECT,
    )
    def diff(self, request: Request, name: str) -> Response:
        """What two versions differ in."""
        missing = [k for k in ("a", "b") if not request.query_params.get(k)]
        if missing:
            raise exceptions.ValidationError({missing[0]: ["name a version"]})
        a, b = (queries.get_version(name, request.query_params[k]) for k in ("a", "b"))
        return Response(queries.diff(a, b))


class ChannelViewSet(viewsets.GenericViewSet[Any]):
    """Channels move; every move is kept."""

    serializer_class = ChannelSerializer
    filter_backends = []
    roles = {"move": Role.OPERATOR, "rollback": Role.OPERATOR}

    @extend_schema(responses=ChannelEventSerializer(many=True))
    def history(self, request: Request, name: str, channel: str) -> Response:  # noqa: ARG002
        kernel = queries.get_kernel(name)
        rows = kernel.channel_events.filter(channel=channel).select_related("before", "after").order_by("-sequence")
        return Response(ChannelEventSerializer(rows, many=True).data)

    @extend_schema(request=MoveInput, responses=ChannelSerializer)
    def move(self, request: Request, name: str, channel: str) -> Response:
        """Promote. With If-Match (the sequence's ETag) only if nobody moved it since; else 412."""
        given = MoveInput(data=request.data)
        given.is_valid(raise_exception=True)
        row = services.move_channel(
            kernel=queries.get_kernel(name),
            channel=channel,
            version=queries.get_version(name, given.validated_data["version"]),
            actor=actor_of(request),
            reason=given.validated_data["reason"],
            expected=_expected(request),
        )
        return Response(ChannelSerializer(row).data, headers={"ETag": etags.etag_of(row.sequence)})

    @extend_schema(request=ReasonInput, responses=ChannelSerializer)
    def rollback(self, request: Request, name: str, channel: str) -> Response:
        """Back to what it pointed to before."""
        given = ReasonInput(data=request.data)
        given.is_valid(raise_exception=True)
        row = services.roll_back(
            kernel=queries.get_kernel(name),
            channel=channel,
            actor=actor_of(request),
            reason=given.validated_data["reason"],
            expected=_expected(request),
        )
        return Response(ChannelSerializer(row).data, headers={"ETag": etags.etag_of(row.sequence)})


def _expected(request: Request) -> int | None:
    """The sequence an If-Match header names; None without one. `If-None-Match: *` asks for a new channel."""
    if request.headers.get("If-None-Match", "").strip() == "*":
        return 0
    header = request.headers.get("If-Match")
    if header is None or header.strip() == "*":
        return None
    text = header.strip().strip('"').removeprefix("v")
    return int(text) if text.isdigit() else -1


class RawParser(parsers.BaseParser):
    """Hands the body on unread."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:  # noqa: ARG002
        return stream


class BlobViewSet(viewsets.ViewSet):
    """Content by digest."""

    parser_classes = [RawParser]

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, 304: None})
    def retrieve(self, request: Request, digest: str) -> HttpResponseBase:
        etag = etags.etag_of(digest)
        if etags.not_modified(request, etag):
            return HttpResponse(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": etag})
        row = Blob.objects.filter(digest=digest).first()
        if row is None:
            raise BlobError("missing", f"no blob {digest}")
        headers = {
            "ETag": etag,
            "Content-Length": str(row.size),
            "Cache-Control": "private, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": "attachment",
        }
        kind = "application/octet-stream"
        if request.method == "HEAD":
            return HttpResponse(content_type=kind, headers=headers)
        stack = contextlib.ExitStack()
        f = stack.enter_context(blob_store().open(digest))
        if row.size <= _INLINE:
            with stack:
                return HttpResponse(f.read(), content_type=kind, headers=headers)
        body: Any = (
            _pieces_async(f, stack) if isinstance(request._request, ASGIRequest) else _pieces(f, stack)  # noqa: SLF001
        )
        return StreamingHttpResponse(body, content_type=kind, headers=headers)

    @extend_schema(
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={200: OpenApiResponse(description="it was there"), 201: OpenApiResponse(description="stored")},
    )
    def update(self, request: Request, digest: str) -> Response:
        """Upload, verified while it is written: 422 where the content is not what the digest says."""
        there = Blob.objects.filter(digest=digest).exists() and blob_store().has(digest)
        length = request.headers.get("Content-Length", "")
        row = services.put_blob(digest=digest, chunks=_body(request), size=int(length) if length.isdigit() else None)
        code = status.HTTP_200_OK if there else status.HTTP_201_CREATED
        return Response({"digest": digest, "size": row.size}, status=code, headers={"ETag": etags.etag_of(digest)})


def _body(request: Request) -> Iterator[bytes]:
    stream = request.stream
    while stream is not None and (chunk := stream.read(1 << 18)):
        yield chunk


def _pieces(f: IO[bytes], stack: contextlib.ExitStack) -> Iterator[bytes]:
    with stack:
        while chunk := f.read(1 << 18):
            yield chunk


async def _pieces_async(f: IO[bytes], stack: contextlib.ExitStack) -> AsyncIterator[bytes]:
    with stack:
        while chunk := await sync_to_async(f.read, thread_sensitive=False)(1 << 18):
            yield chunk


class ResolveViewSet(viewsets.ViewSet):
    """What a host gets."""

    roles = {"create": Role.VIEWER}

    @extend_schema(request=ResolveInput, responses={200: ResolveSerializer, 304: None})
    def create(self, request: Request) -> Response:
        """The signed lock for some facts, with a verdict on every variant. If-None-Match answers 304."""
        given = ResolveInput(data=request.data)
        given.is_valid(raise_exception=True)
        asked = given.validated_data
        found = queries.resolve_for(
            facts=asked["facts"], channel=asked["channel"], pins=asked["pins"], trace=asked["trace"]
        )
        etag = etags.etag_of(found.etag)
        if etags.not_modified(request, etag):
            return Response(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": etag})
        Pull.objects.create(
            host=asked["host"],
            channel=asked["channel"],
            pins=asked["pins"],
            facts=asked["facts"],
            lock_digest=found.lock.digest,
            generation=found.lock.generation,
            kernels=[f"{e.name}@{e.version}#{e.variant}" for e in found.lock.entries],
            actor=actor_of(request),
        )
        body = {
            "lock": found.envelope,
            "lock_digest": found.lock.digest,
            "generation": found.lock.generation,
            "trace": [v.to_json() for v in found.resolution.trace],
            "left_out": found.left_out,
            "warnings": list(found.resolution.warnings),
        }
        return Response(body, headers={"ETag": etag})


class SwitchViewSet(viewsets.ViewSet):
    """The fleet's kill switch, and what is revoked."""

    roles = {"update": Role.APPROVER}

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def retrieve(self, request: Request) -> Response:  # noqa: ARG002
        """A signed statement (DSSE); hosts honour it whatever lock they have."""
        return Response(queries.kill_switch())

    @extend_schema(request=SwitchInput, responses=OpenApiTypes.OBJECT)
    def update(self, request: Request) -> Response:
        given = SwitchInput(data=request.data)
        given.is_valid(raise_exception=True)
        services.set_disabled(
            ops=given.validated_data["disabled"], reason=given.validated_data["reason"], actor=actor_of(request)
        )
        return Response(queries.kill_switch())


class KeyViewSet(viewsets.ViewSet):
    """Public keys. Pinning one is the host's decision: compare the keyid over another way first."""

    roles = {"create": Role.ADMIN, "destroy": Role.ADMIN, "rotate": Role.ADMIN}

    @extend_schema(responses=KeySerializer(many=True))
    def list(self, request: Request) -> Response:  # noqa: ARG002
        own = signing_key().public
        rows = {
            row.keyid: {
                "keyid": row.keyid,
                "public": row.public,
                "name": row.name,
                "signs_now": row.keyid == own.keyid,
                "added_at": row.added_at,
                "retired_at": row.retired_at,
            }
            for row in PublicKey.objects.order_by("added_at")
        }
        for key in trusted_keys():
            rows.setdefault(
                key.keyid,
                {
                    "keyid": key.keyid,
                    "public": key.value,
                    "name": "registry",
                    "signs_now": key == own,
                    "added_at": None,
                    "retired_at": None,
                },
            )
        return Response(KeySerializer(list(rows.values()), many=True).data)

    @extend_schema(request=KeyInput, responses={201: OpenApiTypes.OBJECT})
    def create(self, request: Request) -> Response:
        """Take a publisher's signatures from now on."""
        given = KeyInput(data=request.data)
        given.is_valid(raise_exception=True)
        data = given.validated_data
        key = PinnedKey.from_json({**data, "keytype": "ed25519", "scheme": "ed25519"})
        services.add_key(key=key, name=data["name"], actor=actor_of(request))
        return Response(key.to_json(), status=status.HTTP_201_CREATED)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, keyid: str) -> Response:
        """Retire a key: nothing is deleted, its signatures are no longer taken."""
        services.retire_key(keyid=keyid, actor=actor_of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=None, responses=OpenApiTypes.OBJECT)
    def rotate(self, request: Request) -> Response:
        """Sign with a new key from now on."""
        return Response(services.rotate_key(actor=actor_of(request)).to_json())


class PullFilter(django_filters.FilterSet):  # type: ignore[misc]
    class Meta:
        model = Pull
        fields: ClassVar[list[str]] = ["host", "channel", "lock_digest"]


class PullViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet[Pull]):
    """Which host got which lock."""

    queryset = Pull.objects.all()
    serializer_class = PullSerializer
    filter_backends = [StrictFilterBackend]
    filterset_class = PullFilter
    page_ordering = "-at"


class SchemaViewSet(viewsets.ViewSet):
    """The published JSON Schemas."""

    permission_classes: ClassVar[list[type[BasePermission]]] = [AllowAny]

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def retrieve(self, request: Request, name: str) -> Response:  # noqa: ARG002
        if name not in NAMES:
            raise exceptions.NotFound(f"no schema {name!r}: there are {', '.join(NAMES)}")
        return Response(load_schema(name))


router.register("kernels", KernelViewSet, basename="kernel")
router.register("pulls", PullViewSet, basename="pull")

_VERSION = rf"^kernels/(?P<name>{NAME})/versions/(?P<version>[^/]+)"
_CHANNEL = rf"^kernels/(?P<name>{NAME})/channels/(?P<channel>[a-z][a-z0-9-]{{0,48}})"
_BLOB = r"^blobs/(?P<digest>sha256:[0-9a-f]{64})$"
urlpatterns = [
    re_path(rf"^kernels/(?P<name>{NAME})/versions$", VersionViewSet.as_view({"get": "list", "post": "create"})),
    re_path(rf"^kernels/(?P<name>{NAME})/diff$", VersionViewSet.as_view({"get": "diff"})),
    re_path(rf"{_VERSION}$", VersionViewSet.as_view({"get": "retrieve"})),
    re_path(rf"{_VERSION}/yank$", VersionViewSet.as_view({"post": "yank"})),
    re_path(rf"{_VERSION}/unyank$", VersionViewSet.as_view({"post": "unyank"})),
    re_path(rf"{_VERSION}/revoke$", VersionViewSet.as_view({"post": "revoke"})),
    re_path(rf"{_CHANNEL}$", ChannelViewSet.as_view({"get": "history", "put": "move"})),
    re_path(rf"{_CHANNEL}/rollback$", ChannelViewSet.as_view({"post": "rollback"})),
    re_path(_BLOB, BlobViewSet.as_view({"get": "retrieve", "head": "retrieve", "put": "update"})),
    re_path(r"^resolve$", ResolveViewSet.as_view({"post": "create"})),
    re_path(r"^switch$", SwitchViewSet.as_view({"get": "retrieve", "put": "update"})),
    re_path(r"^keys$", KeyViewSet.as_view({"get": "list", "post": "create"})),
    re_path(r"^keys/rotate$", KeyViewSet.as_view({"post": "rotate"})),
    re_path(r"^keys/(?P<keyid>[0-9a-f]{64})$", KeyViewSet.as_view({"delete": "destroy"})),
    re_path(r"^schemas/(?P<name>[a-z]+)$", SchemaViewSet.as_view({"get": "retrieve"})),
]
