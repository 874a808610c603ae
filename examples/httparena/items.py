"""The arena's tables in PostgreSQL, and the cache in front of them in `towline.state`, which all workers share."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import asyncpg
import msgspec
import towline.state

UNAVAILABLE = (
    *(OSError, asyncio.TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError),
    *(asyncpg.InsufficientResourcesError, asyncpg.OperatorInterventionError),
)
"""Errors of a database that is away, starts, stops or has no connection left."""
INVALID = (ValueError, msgspec.DecodeError, asyncpg.DataError)
"""Errors of a request: no number, other JSON than expected, a number beyond its column's."""

COLUMNS = "id, name, category, price, quantity, active, tags, rating_score, rating_count"
BY_PRICE = f"SELECT {COLUMNS} FROM items WHERE price BETWEEN $1 AND $2 LIMIT $3"
BY_CATEGORY = f"SELECT {COLUMNS} FROM items WHERE category = $1 ORDER BY id LIMIT $2 OFFSET $3"
BY_ID = f"SELECT {COLUMNS} FROM items WHERE id = $1"
CREATE = f"""INSERT INTO items ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, true, '[]', 0, 0)
    ON CONFLICT (id) DO UPDATE SET name = $2, category = $3, price = $4, quantity = $5"""
UPDATE = "UPDATE items SET name = $2, price = $3, quantity = $4 WHERE id = $1"
USER = "SELECT id, name, email, plan FROM users WHERE id = $1"

pool: asyncpg.Pool[Any]
cache: towline.state.AsyncState[bytes]


class Rating(msgspec.Struct, gc=False):
    score: int
    count: int


class Item(msgspec.Struct):
    id: int
    name: str
    category: str
    price: int
    quantity: int
    active: bool
    tags: Any
    rating: Rating


class PricedItem(Item):
    """An item of the dataset in a response, with its price times its quantity times a factor of the request."""

    total: int


class ChangedItem(msgspec.Struct):
    name: str
    price: int
    quantity: int


class NewItem(msgspec.Struct):
    id: int
    name: str
    category: str
    price: int
    quantity: int


async def open_all() -> None:
    """Open the cache, and the pool, which connects at the first query: the server starts without the database too."""
    global pool, cache
    cache = towline.state.open_async(codec="bytes")
    workers = len(os.sched_getaffinity(0))  # as `workers = "auto"` in towline.toml
    # PostgreSQL reserves three connections for its administrator.
    connections = int(os.environ.get("DATABASE_MAX_CONN", "256")) - 3
    pool = await asyncpg.create_pool(
        os.environ.get("DATABASE_URL", "postgres://localhost:5432/benchmark"),
        min_size=0,
        max_size=max(connections // workers, 1),
        timeout=10,
        command_timeout=30,
        reset=keep_session,
    )


async def keep_session(connection: Any) -> None:
    """Reset nothing between requests, which change no setting of a session. asyncpg's own reset is a round trip."""


async def close_all() -> None:
    await pool.close()
    await cache.close()


async def by_price(lowest: int, highest: int, limit: int) -> list[Item]:
    return [as_item(row) for row in await pool.fetch(BY_PRICE, lowest, highest, limit)]


async def by_category(category: str, page: int, limit: int) -> list[Item]:
    return [as_item(row) for row in await pool.fetch(BY_CATEGORY, category, limit, (page - 1) * limit)]


async def by_id(number: int) -> Item | None:
    row = await pool.fetchrow(BY_ID, number)
    return None if row is None else as_item(row)


async def user(number: int) -> dict[str, Any] | None:
    row = await pool.fetchrow(USER, number)
    return None if row is None else dict(row)


async def create(item: NewItem) -> None:
    """Insert an item, or replace the one with its number."""
    await pool.execute(CREATE, *msgspec.structs.astuple(item))
    await cache.delete(f"item:{item.id}")


async def update(number: int, item: ChangedItem) -> bool:
    """Change an item; whether it exists."""
    done: str = await pool.execute(UPDATE, number, *msgspec.structs.astuple(item))
    await cache.delete(f"item:{number}")
    return done != "UPDATE 0"


def as_item(row: Any) -> Item:
    number, name, category, price, quantity, active, tags, score, count = row
    # The tags are JSON already.
    return Item(number, name, category, price, quantity, active, msgspec.Raw(tags), Rating(score, count))
