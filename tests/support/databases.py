"""Queries to a database from outside the program under test."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg


def rows(database: str, query: str) -> list[Any]:
    """Rows as read on another connection."""
    connection: Any = psycopg.connect(database) if "://" in database else sqlite3.connect(database)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()
