"""Cursor pages: stable while rows are added."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request


class Pages(CursorPagination):
    """Newest first, or as the view's `page_ordering` says; `?limit=` up to 500."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    ordering = "-pk"

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:  # noqa: ARG002
        ordering = getattr(view, "page_ordering", None) or self.ordering
        return (ordering,) if isinstance(ordering, str) else tuple(ordering)
