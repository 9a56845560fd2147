"""HTTP routes of the server that tell the truth about what runs in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rackforge_runtime.activity import ENV_STATE, metrics, report


class ActivityEndpoint:
    """`GET /rackforge/activity` (JSON) and `GET /rackforge/metrics` (Prometheus)."""

    name = "rackforge"
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        from starlette.responses import JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route

        def body() -> dict[str, Any] | None:
            state = os.environ.get(ENV_STATE)
            return report(Path(state)) if state else None

        def activity(_request: Any) -> Response:
            found = body()
            if found is None:
                return JSONResponse({"detail": f"{ENV_STATE} is not set: start through `rackforge serve`"}, 503)
            return JSONResponse(found)

        def prometheus(_request: Any) -> Response:
            found = body()
            if found is None:
                return PlainTextResponse(f"# {ENV_STATE} is not set\n", 503)
            return PlainTextResponse(metrics(found), media_type="text/plain; version=0.0.4")

        app.router.routes.append(Route("/rackforge/activity", activity, methods=["GET"]))
        app.router.routes.append(Route("/rackforge/metrics", prometheus, methods=["GET"]))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing: the routes read files."""
