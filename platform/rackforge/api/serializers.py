"""The base of every serializer: what is not known is refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields it does not know (with the nearest name) and fields that cannot be set."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            writable = [name for name, field in self.fields.items() if not field.read_only]
            errors = {str(name): [self._refusal(str(name), writable)] for name in data if name not in writable}
            if errors:
                raise serializers.ValidationError(errors)
        return super().to_internal_value(data)

    def _refusal(self, name: str, writable: list[str]) -> str:
        if name in self.fields:
            return "this field is read-only; leave it out"
        near = get_close_matches(name, writable, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(writable) or 'none'}"
        return f"unknown field; {hint}"


class ProblemSerializer(serializers.Serializer[Any]):
    """An RFC 9457 problem document."""

    type = serializers.CharField(help_text="what kind of problem; about:blank when the status says it all")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="what happened, where, and what to do")
    instance = serializers.CharField(help_text="the path that was asked for")
    request_id = serializers.CharField(help_text="also in the X-Request-ID header and in the audit")
    errors = serializers.JSONField(required=False, help_text="by field, for invalid input")
