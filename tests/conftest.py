"""Fixtures of every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> Iterator[None]:
    """Start the embedded PostgreSQL when the first test asks for a database."""
    from rackforge import config, embedded

    started = config.load()
    if started.embedded_database:
        embedded.start_postgres(started)
    yield
    embedded.stop(started)
