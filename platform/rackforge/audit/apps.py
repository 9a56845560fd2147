from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "rackforge.audit"
    label = "audit"
