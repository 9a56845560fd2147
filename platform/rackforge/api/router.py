"""The one router. An app adds its view sets in `<app>/api.py`, which `rackforge.api.urls` imports."""

from rest_framework.routers import DefaultRouter


class Router(DefaultRouter):
    include_format_suffixes = False


router = Router(trailing_slash=False)
