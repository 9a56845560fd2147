"""What drf-spectacular cannot see by itself: our tokens, the problem documents, the event stream."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension

from rackforge.api.serializers import ProblemSerializer

EVENT_STREAM = {
    "get": {
        "operationId": "events_stream",
        "description": "Events as they happen, as Server-Sent Events. `id:` is the position to continue from, "
        "`event:` the action, `data:` the event as in the list. `event: hint` says that an object's progress moved; "
        "`event: reset` that too much was missed and everything should be read anew.",
        "parameters": [
            {"in": "header", "name": "Last-Event-ID", "schema": {"type": "string"}},
            {"in": "query", "name": "last_event_id", "schema": {"type": "string"}},
            {"in": "query", "name": "object_type", "schema": {"type": "string"}},
            {"in": "query", "name": "object_id", "schema": {"type": "string"}},
        ],
        "tags": ["events"],
        "security": [{"token": []}, {"cookieAuth": []}],
        "responses": {"200": {"description": "the stream", "content": {"text/event-stream": {}}}},
    }
}


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[misc]
    target_class = "rackforge.accounts.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:  # noqa: ARG002
        return {"type": "http", "scheme": "bearer", "description": "an API token, `rf_...`"}


def problems_and_stream(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Every operation may answer with a problem document; the event stream is no REST framework view."""
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = {
        "type": "object",
        "description": ProblemSerializer.__doc__,
        "properties": {
            name: {
                "type": "integer" if name == "status" else "object" if name == "errors" else "string",
                **({"description": field.help_text} if field.help_text else {}),
            }
            for name, field in ProblemSerializer().fields.items()
        },
        "required": [name for name, field in ProblemSerializer().fields.items() if field.required],
    }
    problem = {
        "description": "what went wrong, as an RFC 9457 problem document",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    result["paths"]["/api/v1/events/stream"] = EVENT_STREAM
    for path in result["paths"].values():
        for operation in path.values():
            operation["responses"].setdefault("default", problem)
    result["paths"] = dict(sorted(result["paths"].items()))
    return result
