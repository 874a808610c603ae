"""The store of accepted webhooks: one thread writes, and what arrives during a write is in its next transaction.

The event loop never waits for a disk. A webhook is durable when `accept` returns; concurrent webhooks share an
fsync (group
commit). SQLite here, PostgreSQL in `postgres`; both are used through `Database`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

MOST_AT_ONCE = 2000  # operations in one transaction
LOCK_TIMEOUT_S = 30.0  # seconds that a starting forwarder waits for the one before it to end

Headers = list[tuple[str, str]]


class StoreError(Exception):
    """The transaction failed; nothing of it is stored."""


@dataclass(frozen=True)
class Webhook:
    """A webhook as accepted. `attempts`: number of failed forwards."""

    id: int
    hook: str
    received_at: float
    headers: Headers
    body: bytes
    attempts: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt. `due` is the time of the next attempt, None if it is final."""

    id: int
    attempts: int
    duration: float
    due: float | None = None
    status: int | None = None
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    error: str | None = None

    @property
    def state(self) -> str:
        if self.due is not None:
            return "accepted"
        return "forwarded" if self.error is None else "given up"


class Database(Protocol):
    """One connection, used by one thread. `write` is one durable transaction."""

    def write(self, accepted: list[Webhook], outcomes: list[Outcome]) -> None: ...
    def last_id(self) -> int: ...
    def fresh(self, after: int, limit: int) -> list[Webhook]: ...
    def due(self, now: float, limit: int) -> list[Webhook]: ...
    def next_due(self) -> float | None: ...
    def counts(self) -> dict[str, int]: ...
    def close(self) -> None: ...


def connect(url: str) -> Database:
    """`postgresql://...`, or a path for SQLite (with or without `sqlite:` before it)."""
    if url.startswith(("postgresql:", "postgres:")):
        from .postgres import Postgres

        return Postgres(url)
    return Sqlite(Path(url.removeprefix("sqlite:")))


@dataclass
class _Operation:
    """An operation for the thread: a webhook, an outcome or a query; `done` gets its result."""

    done: asyncio.Future[Any]
    accepted: Webhook | None = None
    outcome: Outcome | None = None
    query: Callable[[Database], Any] | None = None
    result: Any = None
    error: Exception | None = None


class Store:
    """The database of one forwarder, for its event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._operations: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._last_id = 0
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Raises if the database is not available."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[int] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="store")
        self._thread.start()
        self._last_id = await opened

    async def close(self) -> None:
        """Writes all pending operations first."""
        if self._thread is not None:
            self._operations.put(None)
            await self._loop.run_in_executor(None, self._thread.join)

    async def accept(self, hook: str, headers: Headers, body: bytes) -> int:
        """Returns the webhook's id when it is durable. One process owns the database, so it assigns the ids."""
        self._last_id += 1
        webhook = Webhook(self._last_id, hook, time.time(), headers, body)
        await self._do(_Operation(self._loop.create_future(), accepted=webhook))
        return webhook.id

    async def record(self, outcome: Outcome) -> None:
        await self._do(_Operation(self._loop.create_future(), outcome=outcome))

    async def query(self, function: Callable[[Database], Any]) -> Any:
        return await self._do(_Operation(self._loop.create_future(), query=function))

    async def _do(self, operation: _Operation) -> Any:
        self._operations.put(operation)
        return await operation.done

    # --- on the thread ----------------------------------------------------------------------------------

    def _run(self, opened: asyncio.Future[int]) -> None:
        database: Database | None = None
        try:
            database = connect(self._url)
            first = database.last_id()
        except Exception as error:
            self._loop.call_soon_threadsafe(opened.set_exception, error)
            return
        self._loop.call_soon_threadsafe(opened.set_result, first)
        going = True
        while going:
            operations, going = self._next_operations()
            database = self._perform(database, operations)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the results
                self._loop.call_soon_threadsafe(_complete, operations)
        if database is not None:
            database.close()

    def _next_operations(self) -> tuple[list[_Operation], bool]:
        """Takes all waiting operations, at least one; also returns whether there will be more."""
        operations: list[_Operation] = []
        operation = self._operations.get()
        while operation is not None:
            operations.append(operation)
            if len(operations) == MOST_AT_ONCE:
                return operations, True
            try:
                operation = self._operations.get_nowait()
            except queue.Empty:
                return operations, True
        return operations, False

    def _perform(self, database: Database | None, operations: list[_Operation]) -> Database | None:
        """Writes first, so that queries see the writes. A failed connection is reopened the next time."""
        writes = [operation for operation in operations if operation.query is None]
        try:
            if database is None:
                database = connect(self._url)
            if writes:
                accepted = [operation.accepted for operation in writes if operation.accepted is not None]
                outcomes = [operation.outcome for operation in writes if operation.outcome is not None]
                database.write(accepted, outcomes)
            writes = []
            for operation in operations:
                if operation.query is not None:
                    operation.result = operation.query(database)
        except Exception as error:
            for operation in operations:
                if operation.query is not None or operation in writes:
                    operation.error = StoreError(f"{type(error).__name__}: {error}")
            if database is not None:
                with contextlib.suppress(Exception):
                    database.close()
            return None
        return database


def _complete(operations: list[_Operation]) -> None:
    for operation in operations:
        if operation.done.done():
            continue  # the waiting task was cancelled
        if operation.error is not None:
            operation.done.set_exception(operation.error)
        else:
            operation.done.set_result(operation.result)


_SCHEMA = """
CREATE TABLE IF NOT EXISTS webhooks (
    id INTEGER PRIMARY KEY,
    hook TEXT NOT NULL,
    received_at REAL NOT NULL,
    request_headers TEXT NOT NULL,
    request_body BLOB NOT NULL,
    state TEXT NOT NULL DEFAULT 'accepted',
    attempts INTEGER NOT NULL DEFAULT 0,
    due REAL,
    duration REAL,
    status INTEGER,
    response_headers TEXT,
    response_body BLOB,
    error TEXT
);
CREATE INDEX IF NOT EXISTS webhooks_fresh ON webhooks (id) WHERE state = 'accepted' AND attempts = 0;
CREATE INDEX IF NOT EXISTS webhooks_due ON webhooks (due) WHERE state = 'accepted' AND attempts > 0;
"""
_COLUMNS = "id, hook, received_at, request_headers, request_body, attempts"


class Sqlite:
    """A file, its write-ahead log, and a lock that keeps a second forwarder out."""

    def __init__(self, path: Path) -> None:
        self._lock = _locked(path.with_name(path.name + ".lock"))
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        self._connection.execute("PRAGMA journal_mode = WAL")
        # In WAL mode NORMAL would sync at checkpoints only, and lose accepted webhooks in a power failure.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)

    def write(self, accepted: list[Webhook], outcomes: list[Outcome]) -> None:
        execute, execute_many = self._connection.execute, self._connection.executemany
        execute("BEGIN IMMEDIATE")
        try:
            execute_many(
                "INSERT INTO webhooks (id, hook, received_at, request_headers, request_body) VALUES (?, ?, ?, ?, ?)",
                [(it.id, it.hook, it.received_at, json.dumps(it.headers), it.body) for it in accepted],
            )
            execute_many(
                "UPDATE webhooks SET state = ?, attempts = ?, due = ?, duration = ?, status = ?,"
                " response_headers = ?, response_body = ?, error = ? WHERE id = ?",
                [outcome_row(outcome) for outcome in outcomes],
            )
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def last_id(self) -> int:
        return int(self._connection.execute("SELECT coalesce(max(id), 0) FROM webhooks").fetchone()[0])

    def fresh(self, after: int, limit: int) -> list[Webhook]:
        return self._webhooks("attempts = 0 AND id > ? ORDER BY id LIMIT ?", after, limit)

    def due(self, now: float, limit: int) -> list[Webhook]:
        return self._webhooks("attempts > 0 AND due <= ? ORDER BY due LIMIT ?", now, limit)

    def next_due(self) -> float | None:
        query = "SELECT min(due) FROM webhooks WHERE state = 'accepted' AND attempts > 0"
        due: float | None = self._connection.execute(query).fetchone()[0]
        return due

    def counts(self) -> dict[str, int]:
        return dict(
            self._connection.execute("SELECT state, count(*) FROM webhooks GROUP BY state").fetchall()
        )

    def close(self) -> None:
        self._connection.close()
        self._lock.close()

    def _webhooks(self, condition: str, *values: Any) -> list[Webhook]:
        query = f"SELECT {_COLUMNS} FROM webhooks WHERE state = 'accepted' AND {condition}"
        return [webhook_of(row) for row in self._connection.execute(query, values)]


def outcome_row(outcome: Outcome) -> tuple[Any, ...]:
    """In the order of the UPDATE above."""
    return (
        outcome.state,
        outcome.attempts,
        outcome.due,
        outcome.duration,
        outcome.status,
        json.dumps(outcome.headers),
        outcome.body,
        outcome.error,
        outcome.id,
    )


def webhook_of(row: Any) -> Webhook:
    """From a row of `_COLUMNS`."""
    number, hook, received_at, headers, body, attempts = row
    pairs = [(name, value) for name, value in json.loads(headers)]
    return Webhook(number, hook, received_at, pairs, bytes(body), attempts)


def _locked(path: Path) -> Any:
    """An open file with a lock, which ends with the process."""
    file = path.open("w")
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() > deadline:
                file.close()
                raise RuntimeError(f"another forwarder has this database: {path} is locked") from None
            time.sleep(0.05)
