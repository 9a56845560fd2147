from django.apps import AppConfig


class OptimizerConfig(AppConfig):
    name = "optimizer"
