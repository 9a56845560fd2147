"""Everything below /api/v1/."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from django.apps import apps
from django.urls import include, path
from django.urls.resolvers import URLPattern, URLResolver

from rackforge.api.router import router

# Importing an app's `api` module registers its view sets; paths outside the router stand in `urlpatterns`.
urlpatterns: list[URLPattern | URLResolver] = []
for _config in apps.get_app_configs():
    if find_spec(f"{_config.name}.api") is None or _config.name == "rackforge":
        continue
    _module = importlib.import_module(f"{_config.name}.api")
    urlpatterns += getattr(_module, "urlpatterns", [])
urlpatterns.append(path("", include(router.urls)))
