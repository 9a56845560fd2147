"""Cursor pages: stable while rows are added."""

from rest_framework.pagination import CursorPagination


class Pages(CursorPagination):
    """Newest first; `?limit=` up to 500."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    ordering = "-pk"
