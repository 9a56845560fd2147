from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "rackforge.api"
    label = "api"

    def ready(self) -> None:
        from rackforge.api import schema  # noqa: F401 - registers our token scheme for OpenAPI
