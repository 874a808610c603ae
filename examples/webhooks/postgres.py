"""The store in PostgreSQL, through psycopg 3 (`pip install "psycopg[binary]"`)."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg

from .store import _COLUMNS, LOCK_TIMEOUT_S, Outcome, Webhook, outcome_row, webhook_of

_LOCK = 0x72656C6179  # "webhooks", as the key of an advisory lock
_SCHEMA = """
CREATE TABLE IF NOT EXISTS webhooks (
    id bigint PRIMARY KEY,
    hook text NOT NULL,
    received_at double precision NOT NULL,
    request_headers text NOT NULL,
    request_body bytea NOT NULL,
    state text NOT NULL DEFAULT 'accepted',
    attempts integer NOT NULL DEFAULT 0,
    due double precision,
    duration double precision,
    status integer,
    response_headers text,
    response_body bytea,
    error text
);
CREATE INDEX IF NOT EXISTS webhooks_fresh ON webhooks (id) WHERE state = 'accepted' AND attempts = 0;
CREATE INDEX IF NOT EXISTS webhooks_due ON webhooks (due) WHERE state = 'accepted' AND attempts > 0;
"""
_INSERT = (
    "INSERT INTO webhooks (id, hook, received_at, request_headers, request_body) VALUES (%s, %s, %s, %s, %s)"
    # A commit whose confirmation was lost with the connection may have succeeded.
    " ON CONFLICT (id) DO NOTHING"
)
_UPDATE = (
    "UPDATE webhooks SET state = %s, attempts = %s, due = %s, duration = %s, status = %s,"
    " response_headers = %s, response_body = %s, error = %s WHERE id = %s"
)


class Postgres:
    """One connection; an advisory lock of its session keeps a second forwarder out."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        try:
            self._lock()
            self._connection.execute(_SCHEMA)
        except BaseException:
            self._connection.close()
            raise

    def write(self, accepted: list[Webhook], outcomes: list[Outcome]) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            # A database may be configured to confirm commits before they are durable; this one must not be.
            cursor.execute("SET LOCAL synchronous_commit = on")
            if accepted:
                rows = [(it.id, it.hook, it.received_at, json.dumps(it.headers), it.body) for it in accepted]
                cursor.executemany(_INSERT, rows)
            if outcomes:
                cursor.executemany(_UPDATE, [_without_nul(outcome_row(outcome)) for outcome in outcomes])

    def last_id(self) -> int:
        return int(self._one("SELECT coalesce(max(id), 0) FROM webhooks"))

    def fresh(self, after: int, limit: int) -> list[Webhook]:
        return self._webhooks("attempts = 0 AND id > %s ORDER BY id LIMIT %s", after, limit)

    def due(self, now: float, limit: int) -> list[Webhook]:
        return self._webhooks("attempts > 0 AND due <= %s ORDER BY due LIMIT %s", now, limit)

    def next_due(self) -> float | None:
        due: float | None = self._one(
            "SELECT min(due) FROM webhooks WHERE state = 'accepted' AND attempts > 0"
        )
        return due

    def counts(self) -> dict[str, int]:
        return dict(
            self._connection.execute("SELECT state, count(*) FROM webhooks GROUP BY state").fetchall()
        )

    def close(self) -> None:
        self._connection.close()

    def _lock(self) -> None:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not self._one(f"SELECT pg_try_advisory_lock({_LOCK})"):
            if time.monotonic() > deadline:
                raise RuntimeError("another forwarder has this database: its advisory lock is taken")
            time.sleep(0.05)

    def _one(self, query: str) -> Any:
        rows: list[Any] = self._connection.execute(query.encode()).fetchall()
        return rows[0][0]

    def _webhooks(self, condition: str, *values: Any) -> list[Webhook]:
        query = f"SELECT {_COLUMNS} FROM webhooks WHERE state = 'accepted' AND {condition}"
        return [webhook_of(row) for row in self._connection.execute(query.encode(), values)]


def _without_nul(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """PostgreSQL's text type has no NUL."""
    return tuple(value.replace("\0", "\\0") if isinstance(value, str) else value for value in row)
