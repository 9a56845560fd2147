"""All addresses: pages at the root, the API below /api/v1/."""

from django.urls import include, path
from drf_spectacular.views import SpectacularJSONAPIView

from rackforge.api.views import health

handler400 = "rackforge.api.views.bad_request"
handler403 = "rackforge.api.views.forbidden"
handler404 = "rackforge.api.views.not_found"
handler500 = "rackforge.api.views.failed"

urlpatterns = [
    path("healthz", health, name="health"),
    path("api/v1/openapi.json", SpectacularJSONAPIView.as_view(), name="openapi"),
    path("api/v1/", include("rackforge.api.urls")),
    path("", include("frontend.urls")),
]
