"""The databases of the tests of the webhook forwarder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from . import postgres

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of this test's own."""
    if request.param == "sqlite":
        return str(tmp_path / "webhooks.sqlite")
    url: str = request.getfixturevalue("postgres_url")
    name = f"webhooks_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return url.replace("///postgres?", f"///{name}?")
