"""The databases of the webhook forwarder: a file of SQLite, or a schema of its own in PostgreSQL.

Neither waits for the disk at a commit (`synchronous = NORMAL`, `synchronous_commit = off`): servers and clients are
measured, and both databases do the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, Protocol

Statement = tuple[str, tuple[Any, ...]]
"""SQL with `?` for each value, and the values."""

TABLE = """
CREATE TABLE webhooks (
    id {integer} PRIMARY KEY, hook TEXT NOT NULL, request_headers TEXT NOT NULL, request_body {bytes} NOT NULL,
    duration {real}, status INTEGER, response_headers TEXT, response_body {bytes}, error TEXT
)
"""


class StoreError(Exception):
    """The database has refused a transaction, which is undone."""


class Database(Protocol):
    """A connection, for one thread."""

    def write(self, statements: Iterable[Statement]) -> None:
        """Runs all statements in one transaction. Raises `StoreError`."""
        ...

    def close(self) -> None: ...


def connect(target: str, schema: str) -> Database:
    """`target`: the path of a file, or `postgresql://...`, where `schema` is created."""
    return (
        PostgreSql(target, schema) if target.startswith(("postgresql://", "postgres://")) else Sqlite(target)
    )


class Sqlite:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(TABLE.format(integer="INTEGER", bytes="BLOB", real="REAL"))

    def write(self, statements: Iterable[Statement]) -> None:
        try:
            self._connection.execute("BEGIN")
            for statement, values in statements:
                self._connection.execute(statement, values)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise StoreError(str(error)) from error

    def close(self) -> None:
        self._connection.close()


class PostgreSql:
    """The statements of a transaction are sent in one pipeline."""

    def __init__(self, url: str, schema: str) -> None:
        import psycopg

        self._error = psycopg.Error
        self._connection: Any = psycopg.connect(url, autocommit=True)
        self._connection.execute(f'CREATE SCHEMA "{schema}"')
        self._connection.execute(f'SET search_path = "{schema}"')
        self._connection.execute("SET synchronous_commit = off")
        self._connection.execute(TABLE.format(integer="BIGINT", bytes="BYTEA", real="DOUBLE PRECISION"))

    def write(self, statements: Iterable[Statement]) -> None:
        try:
            with (
                self._connection.pipeline(),
                self._connection.transaction(),
                self._connection.cursor() as cursor,
            ):
                for statement, values in statements:
                    cursor.execute(statement.replace("?", "%s"), values)
        except self._error as error:
            raise StoreError(str(error)) from error

    def close(self) -> None:
        self._connection.close()
