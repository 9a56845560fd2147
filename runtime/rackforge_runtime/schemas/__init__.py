"""JSON Schemas (2020-12) of what hosts and registries exchange; files of this package."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

NAMES = ("activity", "lock", "manifest", "switch")


@lru_cache(maxsize=len(NAMES))
def load_schema(name: str) -> dict[str, Any]:
    """A schema by its name; KeyError for one there is not."""
    if name not in NAMES:
        raise KeyError(f"no schema {name!r}: there are {', '.join(NAMES)}")
    text = files(__package__).joinpath(f"{name}.schema.json").read_text()
    value: dict[str, Any] = json.loads(text)
    return value
