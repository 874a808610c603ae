"""The store of the webhook forwarder: durable before `accept` returns, with shared transactions, on each database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.webhooks import postgres, store
from examples.webhooks.store import Outcome, Store, StoreError
from tests.support.databases import rows

HEADERS = [("content-type", "application/json"), ("x-odd", "\x80ÿ")]


async def opened(database: str) -> Store:
    kept = Store(database)
    await kept.open()
    return kept


def test_accepted_webhooks_are_durable(database: str) -> None:
    async def main() -> None:
        kept = await opened(database)
        number = await kept.accept("a/b", HEADERS, b"\0body")
        ((body,),) = rows(database, f"SELECT request_body FROM webhooks WHERE id = {number}")
        assert bytes(body) == b"\0body"
        (webhook,) = await kept.query(lambda database: database.fresh(0, 10))
        assert (webhook.hook, webhook.headers, webhook.body, webhook.attempts) == (
            "a/b",
            HEADERS,
            b"\0body",
            0,
        )
        await kept.close()

    asyncio.run(main())


@dataclass
class Write:
    """A transaction: how many webhooks it took, and on which thread."""

    accepted: int
    thread: threading.Thread


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[Write]:
    seen: list[Write] = []
    for kind in (store.Sqlite, postgres.Postgres):
        write = kind.write

        def counted(self: Any, accepted: Any, outcomes: Any, write: Any = write) -> None:
            seen.append(Write(len(accepted), threading.current_thread()))
            write(self, accepted, outcomes)

        monkeypatch.setattr(kind, "write", counted)
    return seen


def test_concurrent_webhooks_share_a_transaction(database: str, transactions: list[Write]) -> None:
    async def main() -> list[int]:
        kept = await opened(database)
        numbers = await asyncio.gather(*(kept.accept("x", [], b"%d" % n) for n in range(3000)))
        await kept.close()
        return numbers

    numbers = asyncio.run(main())
    assert numbers == list(range(1, 3001))
    assert sum(write.accepted for write in transactions) == 3000
    assert len(transactions) < 100
    assert rows(database, "SELECT count(*) FROM webhooks") == [(3000,)]


def test_the_loop_never_waits_for_the_database(database: str, transactions: list[Write]) -> None:
    async def main() -> threading.Thread:
        kept = await opened(database)
        work = asyncio.gather(*(kept.accept("x", [], bytes(1000)) for _ in range(3000)))
        await work
        thread = await kept.query(lambda database: threading.current_thread())
        await kept.close()
        return thread

    thread = asyncio.run(main())
    assert {write.thread for write in transactions} == {thread}
    assert thread is not threading.current_thread()
    assert max(write.accepted for write in transactions) <= store.MOST_AT_ONCE


def test_outcomes(database: str) -> None:
    async def main() -> None:
        kept = await opened(database)
        for _ in range(4):
            await kept.accept("x", [], b"")
        now = time.time()
        await kept.record(Outcome(1, 1, 0.5, None, 204, [("a", "b")], b"answer"))
        await kept.record(Outcome(2, 1, 0.5, now + 60, error="down \0"))
        await kept.record(Outcome(3, 7, 0.5, None, 503, error="the destination answered 503"))
        query = kept.query
        assert [it.id for it in await query(lambda database: database.fresh(0, 10))] == [4]
        assert await query(lambda database: database.due(now, 10)) == []
        assert [(it.id, it.attempts) for it in await query(lambda database: database.due(now + 61, 10))] == [
            (2, 1)
        ]
        assert await query(lambda database: database.next_due()) == pytest.approx(now + 60)
        assert await query(lambda database: database.counts()) == {
            "forwarded": 1,
            "accepted": 2,
            "given up": 1,
        }
        await kept.close()

    asyncio.run(main())


def test_closing_writes_all_and_opening_continues(database: str) -> None:
    async def main() -> None:
        kept = await opened(database)
        waiting = [asyncio.ensure_future(kept.accept("x", [], b"")) for _ in range(100)]
        await asyncio.sleep(0)
        await kept.close()
        assert await asyncio.gather(*waiting) == list(range(1, 101))
        again = await opened(database)
        assert await again.accept("x", [], b"") == 101
        await again.close()

    asyncio.run(main())


def test_a_second_forwarder_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store, postgres):
        monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.2)

    async def main() -> None:
        first = await opened(database)
        with pytest.raises(RuntimeError, match="another forwarder has this database"):
            await opened(database)
        await first.close()
        await (await opened(database)).close()

    asyncio.run(main())


def test_a_lost_connection_is_reopened(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose() -> None:
        if "://" in database:
            with psycopg.connect(database, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                )
            return
        write = store.Sqlite.write

        def failing(*_: Any) -> None:
            monkeypatch.setattr(store.Sqlite, "write", write)
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(store.Sqlite, "write", failing)

    async def main() -> None:
        kept = await opened(database)
        await kept.accept("x", [], b"")
        lose()
        with pytest.raises(StoreError):
            await kept.accept("x", [], b"")
        await kept.accept("x", [], b"")
        assert sum((await kept.query(lambda database: database.counts())).values()) == 2
        await kept.close()

    asyncio.run(main())


def test_an_unavailable_database(tmp_path: Path) -> None:
    for url in (f"{tmp_path}/no/folder/webhooks.sqlite", f"postgresql:///x?host={tmp_path}"):
        with pytest.raises(Exception, match=r"No such file|connection"):
            asyncio.run(opened(url))
