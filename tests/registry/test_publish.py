"""Versions are published once and never change; their blobs are there and stay."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from rackforge.audit.models import Event
from rackforge_runtime import signing
from rackforge_runtime.cache import BlobError
from rackforge_runtime.canonical import digest_bytes, digest_json
from rackforge_runtime.manifests import ManifestError
from registry import facade, services
from registry.blobs import blob_store
from registry.keys import trusted_keys
from registry.models import Blob, Version

Make = Callable[..., dict[str, Any]]


def test_publish_signs_and_keeps_manifest_and_signature_as_blobs(make: Make) -> None:
    manifest = make()
    done = facade.publish_version(manifest=manifest, actor="ann")
    assert (done.name, done.version, done.digest, done.created) == (
        "acme/linear",
        "1.0.0",
        digest_json(manifest),
        True,
    )
    row = Version.objects.get()
    statement = signing.verify(
        facade.read_blob(row.signature_digest),
        trusted_keys(),
        predicate_type=signing.MANIFEST,
        subject_digest=done.digest,
    )
    assert statement.subject_name == "acme/linear@1.0.0"
    assert digest_bytes(facade.read_blob(done.digest)) == done.digest
    event = Event.objects.get(action="registry.publish")
    assert (event.actor, event.object_id, event.after) == (
        "ann",
        "acme/linear",
        {"version": "1.0.0", "digest": done.digest},
    )


def test_the_same_again_is_no_change_and_another_under_the_number_is_refused(make: Make) -> None:
    first = facade.publish_version(manifest=make(), actor="ann")
    again = facade.publish_version(manifest=make(), actor="bob")
    assert (again.digest, again.created) == (first.digest, False)
    assert Event.objects.filter(action="registry.publish").count() == 1
    with pytest.raises(services.Conflict, match=f"published as {first.digest}"):
        facade.publish_version(manifest=make(body=b"another"), actor="bob")
    assert Version.objects.get().published_by == "ann"


def test_a_name_keeps_its_operator(make: Make) -> None:
    facade.publish_version(manifest=make(), actor="ann")
    with pytest.raises(services.Conflict, match="choose another name"):
        facade.publish_version(manifest=make(version="2.0.0", op="rms_norm", kind="vllm.ir-provider"), actor="ann")


def test_blobs_must_be_there_and_of_the_size_the_manifest_says(make: Make) -> None:
    manifest = make()
    absent = "sha256:" + "0" * 64
    manifest["variants"][0]["files"][0]["digest"] = absent
    with pytest.raises(BlobError, match=f"upload first: {absent}"):
        facade.publish_version(manifest=manifest, actor="ann")
    manifest = make()
    manifest["variants"][0]["files"][0]["size"] = 5
    with pytest.raises(BlobError, match="the blob has 6 bytes, not 5"):
        facade.publish_version(manifest=manifest, actor="ann")
    assert not Version.objects.exists()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"version": "1.0"}, "version"),
        ({"name": "Linear"}, "name"),
        ({"kind": "vllm.magic"}, "kind"),
        ({"colour": "red"}, "manifest"),
        ({"license": ""}, "license"),
        ({"variants": []}, "variants"),
    ],
)
def test_the_schema_says_where_a_manifest_is_wrong(make: Make, change: dict[str, Any], where: str) -> None:
    with pytest.raises(ManifestError, match=f"^{where}: "):
        facade.publish_version(manifest=make() | change, actor="ann")


@pytest.mark.parametrize("path", ["../kernel.so", "/etc/passwd", "a/../../b", "a\\b", ""])
def test_a_file_cannot_leave_its_folder(make: Make, path: str) -> None:
    manifest = make()
    manifest["variants"][0]["files"][0]["path"] = manifest["variants"][0]["entry"] = path
    with pytest.raises(ManifestError, match=r"files\[0\]\.path"):
        facade.publish_version(manifest=manifest, actor="ann")


def test_a_publishers_own_signature_must_be_of_a_trusted_key(make: Make) -> None:
    manifest, key = make(), signing.SigningKey.generate()
    envelope = key.sign(
        subject_name="acme/linear@1.0.0",
        subject_digest=digest_json(manifest),
        predicate_type=signing.MANIFEST,
        predicate={},
    )
    with pytest.raises(signing.SignatureError, match="no pinned key among them"):
        facade.publish_version(manifest=manifest, actor="ann", signature=envelope)
    services.add_key(key=key.public, name="acme", actor="root")
    facade.publish_version(manifest=manifest, actor="ann", signature=envelope)
    services.retire_key(keyid=key.public.keyid, actor="root")
    with pytest.raises(signing.SignatureError, match="no pinned key among them"):
        facade.publish_version(manifest=make(version="1.0.1"), actor="ann", signature=envelope)


def test_the_database_refuses_to_change_or_delete_what_is_published(make: Make) -> None:
    facade.publish_version(manifest=make(), actor="ann")
    for attempt in (
        lambda: Version.objects.update(digest="sha256:" + "1" * 64),
        lambda: Version.objects.update(manifest={"a": 1}),
        lambda: Version.objects.all()._raw_delete("default"),  # type: ignore[attr-defined]
    ):
        with pytest.raises(DatabaseError, match="never"), transaction.atomic():
            attempt()
    row = Version.objects.get()
    services.revoke(version=row, actor="ann", reason="wrong sums")
    with pytest.raises(DatabaseError, match="stays revoked"), transaction.atomic():
        Version.objects.update(revoked=False)


def test_a_blob_that_is_not_what_it_says_is_refused_and_leaves_nothing(db: None) -> None:
    wrong = "sha256:" + "2" * 64
    with pytest.raises(BlobError, match="the content is"):
        services.put_blob(digest=wrong, chunks=[b"x"])
    assert not blob_store().has(wrong)
    assert not Blob.objects.filter(digest=wrong).exists()
    right = digest_bytes(b"short")
    with pytest.raises(BlobError, match="3 of 5 bytes"):
        services.put_blob(digest=right, chunks=[b"sho"], size=5)


def test_garbage_is_what_nothing_names(make: Make) -> None:
    done = facade.publish_version(manifest=make(), actor="ann")
    upload = services.put_blob(digest=digest_bytes(b"never published"), chunks=[b"never published"])
    fresh = services.put_blob(digest=digest_bytes(b"just now"), chunks=[b"just now"])
    Blob.objects.exclude(digest=fresh.digest).update(created_at=timezone.now() - dt.timedelta(days=3), kept=False)
    kept = facade.put_blob(b"a campaign's evidence")
    assert services.collect_garbage() == 1
    assert not blob_store().has(upload.digest)
    named = set(Version.objects.get(digest=done.digest).named_blobs.values_list("blob_id", flat=True))
    assert len(named) == 4  # the object, the verdict, the manifest and its signature
    for digest in (*named, fresh.digest, kept):
        assert blob_store().has(digest)


def test_next_version_follows_what_changed(make: Make) -> None:
    assert facade.next_version(make()) == "1.0.0"
    facade.publish_version(manifest=make(), actor="ann")
    assert facade.next_version(make(body=b"faster")) == "1.0.1"
    wider = {"backend": "cpu", "isa": "avx2", "shapes": [{"N": 64, "K": 64}]}
    assert facade.next_version(make(selector=wider)) == "1.1.0"
    assert facade.next_version(make(abi="python")) == "2.0.0"


@pytest.mark.parametrize(
    "ordered", [["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-rc.2", "1.0.0-rc.10", "1.0.0", "1.10.0"]]
)
def test_versions_sort_as_semver_says(make: Make, ordered: list[str]) -> None:
    for version in reversed(ordered):
        facade.publish_version(manifest=make(version=version), actor="ann")
    rows = Version.objects.order_by("order").values_list("version", flat=True)
    assert list(rows) == ordered
