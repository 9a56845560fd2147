"""All addresses: pages at the root, the API below /api/v1/."""

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

from rackforge.api.views import health

urlpatterns = [
    path("healthz", health, name="health"),
    path("api/v1/openapi.json", SpectacularAPIView.as_view(), name="openapi"),
    path("api/v1/", include("rackforge.api.urls")),
    path("", include("frontend.urls")),
]
