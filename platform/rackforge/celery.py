"""The Celery application: `celery -A rackforge.celery`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rackforge.settings")
app = Celery("rackforge")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
