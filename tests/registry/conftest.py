"""Manifests and a clean registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rackforge_runtime.canonical import digest_bytes
from rackforge_runtime.staging import make_manifest
from registry import facade, queries

Make = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Generations go back with the test database; what was computed for them must go too."""
    queries.clear_caches()
    yield
    queries.clear_caches()


@pytest.fixture
def make(db: None) -> Make:
    """A manifest whose blobs are in the store."""

    def build(
        name: str = "acme/linear",
        version: str = "1.0.0",
        *,
        body: bytes = b"object",
        arch: str = "avx2",
        selector: dict[str, Any] | None = None,
        evidence: list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        digest = facade.put_blob(body)
        proof = facade.put_blob(b"verdict")
        return make_manifest(
            name=name,
            version=version,
            kind=more.pop("kind", "vllm.linear"),
            op=more.pop("op", "cpu_unquantized_gemm"),
            abi=more.pop("abi", "rackforge-c-1"),
            variants=[
                {
                    "id": f"cpu-{arch}",
                    "selector": selector if selector is not None else {"backend": "cpu", "isa": arch},
                    "entry": "kernel.so",
                    "files": [{"path": "kernel.so", "digest": digest, "size": len(body)}],
                }
            ],
            evidence=evidence if evidence is not None else [{"type": "correctness", "digest": proof, "arch": arch}],
            **more,
        )

    return build


@pytest.fixture
def published(make: Make) -> Callable[..., facade.PublishedVersion]:
    """Publish a manifest of `make` and point a channel at it."""

    def build(*args: Any, channel: str | None = "stable", **kwargs: Any) -> facade.PublishedVersion:
        done = facade.publish_version(manifest=make(*args, **kwargs), actor="ann")
        if channel:
            facade.promote(name=done.name, channel=channel, version=done.version, actor="ann")
        return done

    return build


FACTS: dict[str, Any] = {
    "backend": "cpu",
    "isa": ["avx512_bf16", "avx512", "avx2", "generic"],
    "vllm": "0.32.0",
    "torch": "2.13.0",
    "dtype": "bfloat16",
}


@pytest.fixture
def facts() -> dict[str, Any]:
    return dict(FACTS)


def digest_of(data: bytes) -> str:
    return digest_bytes(data)
