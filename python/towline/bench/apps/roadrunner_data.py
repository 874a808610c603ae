"""The bodies that `asgi` and `wsgi` send for the scenarios of Roadrunner."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

DOCUMENT = (
    b'{"id":"01J8X9Z3K7QFRBQ4PCVE5K8RNH","status":"ok",'
    b'"data":{"name":"roadrunner","version":2,"flags":["alpha","beta"]}}'
)
RECORD = b'{"id":"01J8X9Z3K7QFRBQ4PCVE5K8RNH","name":"item","status":"active","tags":["a","b","c"]}'
RECORDS = gzip.compress(b"[" + b",".join([RECORD] * 180) + b"]", mtime=0)
ITEMS: list[dict[str, Any]] = [
    {
        "id": n,
        "name": f"Item {n}",
        "category": "electronics",
        "price": 10,
        "quantity": n,
        "active": True,
        "tags": ["sale", "new", "popular"],
        "rating": {"score": 42, "count": n},
    }
    for n in range(1, 51)
]
EVENTS = [*(b"event: tick\ndata: %d\n\n" % n for n in range(1, 101)), b": end\n\n"]
STATIC = (Path(__file__).parent / "static/hello.txt").read_bytes()


def items_of(count: int, factor: int) -> bytes:
    """The first `count` items, each with a total."""
    found = [{**item, "total": item["price"] * item["quantity"] * factor} for item in ITEMS[:count]]
    return json.dumps({"items": found, "count": len(found)}, separators=(",", ":")).encode()
