"""The published JSON Schemas, applied."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from rackforge_runtime.manifests import ManifestError
from rackforge_runtime.schemas import load_schema


@lru_cache(maxsize=8)
def _validator(name: str) -> Draft202012Validator:
    schema = load_schema(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check_manifest(value: Mapping[str, Any]) -> None:
    """Raise ManifestError, with the place, unless a value is a manifest of the published schema."""
    check(value, "manifest")


def check(value: Any, name: str) -> None:
    """Raise ManifestError, with the place, unless a value follows one of the published schemas."""
    errors = sorted(_validator(name).iter_errors(value), key=lambda e: [str(p) for p in e.absolute_path])
    if errors:
        first = errors[0]
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first.absolute_path).lstrip(".")
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ManifestError(f"{where or name}: {first.message[:300]}{more}")
