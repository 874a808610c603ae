"""The databases of the tests of the webhook forwarder, and the entry for HttpArena with its own."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.programs import executable

from . import arena, postgres

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


@pytest.fixture(scope="session")
def arena_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the entry, made by its own script, with fewer rows."""
    folder = tmp_path_factory.mktemp("arena")
    make = f"import sys; sys.path.insert(0, {str(arena.ENTRY)!r}); import make_data, pathlib"
    subprocess.run(
        [sys.executable, "-c", f"{make}; make_data.make(pathlib.Path('.'), 3000)"], cwd=folder, check=True
    )
    return folder


@pytest.fixture(scope="session")
def arena_database(arena_data: Path, postgres_url: str) -> str:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE httparena")
    url = postgres_url.replace("///postgres?", "///httparena?")
    subprocess.run(
        [executable("psql"), "--quiet", "--dbname", url, "--file", arena_data / "seed.sql"], check=True
    )
    return url


@pytest.fixture(scope="session")
def arena_entry(arena_data: Path, request: pytest.FixtureRequest) -> Iterator[arena.Entry]:
    """The entry, without a database where PostgreSQL is not installed."""
    try:
        url = request.getfixturevalue("arena_database")
    except pytest.skip.Exception:
        url = arena.NO_DATABASE
    with arena.started(arena_data, url) as entry:
        yield entry
