"""What a registry version says of itself: its operator, its variants, and what each variant is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from rackforge_runtime.canonical import check_digest, digest_json

SCHEMA_VERSION = 1
ARTIFACT_TYPE = "application/vnd.rackforge.kernel.v1+json"
KINDS = (
    "vllm.linear",
    "vllm.ir-provider",
    "vllm.customop",
    "torch.library-override",
    "vllm.triton-override",
    "vllm.attention-backend",
    "vllm.tuned-config",
    "tunableop.csv",
    "aiter.tuned-csv",
    "vllm.launch-config",
)
# Kinds that are environment variables and files, set before Python starts, and no code of ours in the server.
ENVIRONMENT_KINDS = frozenset(("vllm.tuned-config", "tunableop.csv", "aiter.tuned-csv", "vllm.launch-config"))
NAME_RE = re.compile(r"^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?/[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?$")
SEMVER_RE = re.compile(
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?$"
)
ID_RE = re.compile(r"^[a-z0-9][a-z0-9._-]{0,99}$")

Range = tuple[int, int | None]
"""Closed interval; None: no upper end."""


class ManifestError(ValueError):
    """Not a manifest; the text says where and what is wrong."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a variant, by content."""

    path: str
    digest: str
    size: int

    @classmethod
    def parse(cls, data: Any, where: str) -> File:
        path = _text(data, "path", where)
        pure = PurePosixPath(path)
        if pure.is_absolute() or not pure.parts or any(p in ("..", ".") for p in path.split("/")) or "\\" in path:
            raise ManifestError(f"{where}.path: {path!r} leaves its folder")
        size = data.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ManifestError(f"{where}.size: must be a number of bytes")
        return cls(path, _digest(data, "digest", where), size)

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True)
class Variant:
    """One build of a version and the envelope it is for. `selector` is as in the manifest."""

    id: str
    selector: Mapping[str, Any]
    entry: str
    files: tuple[File, ...]

    @property
    def shapes(self) -> tuple[Mapping[str, Range], ...]:
        """Boxes of axis ranges; empty: any shape."""
        return tuple({axis: as_range(v) for axis, v in box.items()} for box in self.selector.get("shapes", ()))

    def file(self, path: str) -> File:
        for f in self.files:
            if f.path == path:
                return f
        raise ManifestError(f"variant {self.id}: no file {path!r}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed manifest. `raw` is the JSON value it was made from, and its digest the identity."""

    name: str
    version: str
    kind: str
    target: str
    abi: str
    variants: tuple[Variant, ...]
    raw: Mapping[str, Any]

    @property
    def digest(self) -> str:
        return digest_json(self.raw)

    @property
    def blobs(self) -> frozenset[str]:
        """Every digest the manifest names: files, evidence and the task's definition."""
        found = {f.digest for v in self.variants for f in v.files}
        found |= {e["digest"] for e in self.raw.get("evidence", ())}
        if self.raw.get("definition"):
            found.add(self.raw["definition"])
        return frozenset(found)

    def variant(self, name: str) -> Variant:
        for v in self.variants:
            if v.id == name:
                return v
        raise ManifestError(f"{self.name} {self.version} has no variant {name!r}")

    @classmethod
    def parse(cls, data: Any) -> Manifest:
        """Check the structure (the published JSON Schema's rules that code depends on); ManifestError says where."""
        if not isinstance(data, Mapping):
            raise ManifestError("a manifest is a JSON object")
        if data.get("schemaVersion") != SCHEMA_VERSION:
            raise ManifestError(f"schemaVersion: {data.get('schemaVersion')!r} is not {SCHEMA_VERSION}")
        name, version, kind = (_text(data, k, "") for k in ("name", "version", "kind"))
        if not NAME_RE.match(name):
            raise ManifestError(f"name: {name!r} is not namespace/kernel in lower case")
        if not SEMVER_RE.match(version):
            raise ManifestError(f"version: {version!r} is not a semantic version")
        if kind not in KINDS:
            raise ManifestError(f"kind: {kind!r} is not one of {', '.join(KINDS)}")
        target = data.get("target")
        if not isinstance(target, Mapping):
            raise ManifestError("target: must be an object with op and abi")
        listed = data.get("variants")
        if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
            raise ManifestError("variants: at least one is needed")
        variants = tuple(_variant(v, f"variants[{i}]") for i, v in enumerate(listed))
        if len({v.id for v in variants}) != len(variants):
            raise ManifestError("variants: an id occurs twice")
        for i, e in enumerate(data.get("evidence", ())):
            _digest(e, "digest", f"evidence[{i}]")
        return cls(
            name, version, kind, _text(target, "op", "target"), _text(target, "abi", "target"), variants, dict(data)
        )


def as_range(value: Any) -> Range:
    """5 -> (5, 5); {"min": 1, "max": 8} -> (1, 8); {"min": 1} -> (1, None)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, Mapping):
        low, high = value.get("min", 0), value.get("max")
        if isinstance(low, int) and (high is None or (isinstance(high, int) and low <= high)):
            return low, high
    raise ManifestError(f"{value!r} is neither a length nor a range of lengths")


def inside(value: int, allowed: Range) -> bool:
    return value >= allowed[0] and (allowed[1] is None or value <= allowed[1])


def semver_key(version: str) -> tuple[Any, ...]:
    """Sort key in semver's order: 1.0.0-rc.1 < 1.0.0-rc.2 < 1.0.0."""
    found = SEMVER_RE.match(version)
    if not found:
        raise ManifestError(f"{version!r} is not a semantic version")
    pre = found.group(4)
    parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".")) if pre else ()
    return (int(found[1]), int(found[2]), int(found[3]), not pre, parts)


def _variant(data: Any, where: str) -> Variant:
    name = _text(data, "id", where)
    if not ID_RE.match(name):
        raise ManifestError(f"{where}.id: {name!r} may hold lower-case letters, digits, '.', '_' and '-'")
    selector = data.get("selector")
    if not isinstance(selector, Mapping):
        raise ManifestError(f"{where}.selector: must be an object")
    files = tuple(File.parse(f, f"{where}.files[{i}]") for i, f in enumerate(data.get("files", ())))
    if len({f.path for f in files}) != len(files):
        raise ManifestError(f"{where}.files: a path occurs twice")
    variant = Variant(name, dict(selector), str(data.get("entry", "")), files)
    for i, box in enumerate(selector.get("shapes", ())):
        if not isinstance(box, Mapping):
            raise ManifestError(f"{where}.selector.shapes[{i}]: must map axes to lengths or ranges")
        for axis, value in box.items():
            try:
                as_range(value)
            except ManifestError as error:
                raise ManifestError(f"{where}.selector.shapes[{i}].{axis}: {error}") from error
    if files and variant.entry not in {f.path for f in files}:
        raise ManifestError(f"{where}.entry: {variant.entry!r} is not among its files")
    return variant


def _text(data: Any, key: str, where: str) -> str:
    value = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(value, str) or not value:
        raise ManifestError(f"{where + '.' if where else ''}{key}: missing")
    return value


def _digest(data: Any, key: str, where: str) -> str:
    try:
        return check_digest(_text(data, key, where))
    except ManifestError:
        raise
    except ValueError as error:
        raise ManifestError(f"{where}.{key}: {error}") from error
