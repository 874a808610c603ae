"""The webhooks that the application has stored, as the bench reads them from its database."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConfigError
from ..runner.protocol import Failed

SQLITE = "sqlite"
QUERY = (
    "SELECT count(*), count(duration), count(*) FILTER (WHERE status = 200 AND response_body = request_body),"
    " min(coalesce(error, CASE WHEN status <> 200 THEN 'status ' || status END)) FROM webhooks WHERE id > "
)


@dataclass(frozen=True)
class Account:
    """Webhooks in the database after a given one."""

    stored: int = 0
    concluded: int = 0
    """Forwarded, or given up."""
    forwarded: int = 0
    """Forwarded, with the original bytes in the response of the responder."""
    first_error: str | None = None


class Accounts:
    """The database of one start of the application: a file in its folder, or a schema of its own in PostgreSQL."""

    def __init__(self, database: str) -> None:
        self._url = None if database == SQLITE else database
        self._schema = f"webhooks_{uuid.uuid4().hex[:12]}"

    def environment(self) -> dict[str, str]:
        """Variables of the application; `{folder}` is its folder."""
        target = self._url or "{folder}/webhooks.sqlite"
        return {"WEBHOOKS_DATABASE": target, "WEBHOOKS_SCHEMA": self._schema}

    def after(self, number: int, folder: Path) -> Account:
        """Read while the application continues to write. Raises `Failed`."""
        if self._url is None:
            try:
                path = f"file:{folder / 'webhooks.sqlite'}?mode=ro"
                with closing(sqlite3.connect(path, uri=True, timeout=10)) as connection:
                    return Account(*connection.execute(f"{QUERY}?", (number,)).fetchone())
            except sqlite3.Error as error:
                raise Failed(f"its database cannot be read: {error}", None) from None
        import psycopg

        try:
            with psycopg.connect(self._url, autocommit=True) as reader:
                reader.execute(f'SET search_path = "{self._schema}"')
                row: Any = reader.execute(f"{QUERY}%s", (number,)).fetchone()
                return Account(*row)
        except psycopg.Error as error:
            raise Failed(f"its database cannot be read: {error}", None) from None

    def drop(self) -> None:
        """Removes the schema. A server that is gone has nothing to remove."""
        if self._url is None:
            return
        import psycopg

        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(f'DROP SCHEMA IF EXISTS "{self._schema}" CASCADE')
        except psycopg.Error:
            return


def check_database(database: str) -> None:
    """Connects once. Raises `ConfigError` with what to do."""
    if database == SQLITE:
        return
    if find_spec("psycopg") is None:
        raise ConfigError("--database: PostgreSQL needs psycopg: pip install 'psycopg[binary]'")
    import psycopg

    try:
        psycopg.connect(database, connect_timeout=5).close()
    except psycopg.Error as error:
        raise ConfigError(f"--database: cannot connect: {str(error).strip()}") from None


def checked_url(text: str) -> str:
    """`sqlite`, or a URL of PostgreSQL without a password: the options are part of the record."""
    if text == SQLITE:
        return text
    url = urlsplit(text)
    if url.scheme not in ("postgresql", "postgres"):
        raise ValueError(f"{text!r} is neither sqlite nor postgresql://...")
    if url.password is not None or "password=" in url.query:
        raise ValueError("a password is not part of the URL: set PGPASSWORD, or use a password file")
    return text
