from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "rackforge.api"
    label = "api"
