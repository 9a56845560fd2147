"""Filters that refuse what they do not know: a mistyped one would otherwise return everything."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

PAGING = ("limit", "cursor")


class StrictFilterBackend(DjangoFilterBackend):  # type: ignore[misc]
    """django-filter, with unknown query parameters as an error."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset = self.get_filterset_class(view, queryset)
        known = [*(filterset.base_filters if filterset else ()), *PAGING, *getattr(view, "extra_parameters", ())]
        for name in request.query_params:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
                raise ValidationError({name: [f"unknown query parameter; {hint}"]})
        result: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return result
