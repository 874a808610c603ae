"""HttpArena's profiles with a database, on a PostgreSQL of their own: `python -m benches.httparena_database [OPTIONS]`.

    PYTHONPATH=FOLDER python -m benches.httparena_database -S towline,uvicorn-httptools --no-control

FOLDER has asyncpg, msgspec and protobuf for the servers' Python. OPTIONS are those of `towline bench servers`; `-s` chooses among
arena-async-db, arena-api-4, arena-api-16, arena-crud, arena-gateway-64 and arena-gateway-h3. Every server serves the application of
examples/httparena, with the data that its make_data.py makes. In the gateways a server has the static files itself
(benches/httparena.toml), and no proxy stands before it; each start ends with the tables as they were left: crud is measured last.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.examples.postgres import server

ROOT = Path(__file__).parent.parent
ENTRY = ROOT / "examples" / "httparena"
COLUMNS = "id, name, category, price, quantity, active, tags::text, rating_score, rating_count"
JSON = ["Content-Type: application/json"]
ROWS = 50_000
"""Rows of the values that gcannon draws for {RAND:1:50000} and counts for {SEQ:100001}."""

Request = dict[str, Any]


def request(target: str, body: str | None = None, method: str = "GET", **expect: Any) -> Request:
    """As in the arena's requests/*.raw. Without an expected `text` any body passes."""
    fields = ["Host: localhost:8080"]
    if body is not None:
        fields += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    wanted = {"status": 200, "fields": JSON, **({} if "text" in expect else {"any_body": True}), **expect}
    sent = {} if body is None else {"body": {"text": body}}
    return {"method": method, "target": target, "fields": fields, **sent, "expect": wanted}


def by_price(database: str, limit: int) -> str:
    """The response of async-db: JSON without spaces, but for the tags, which PostgreSQL writes."""
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            f"SELECT {COLUMNS} FROM items WHERE price BETWEEN 10 AND 50 LIMIT {limit}"  # type: ignore[arg-type]
        ).fetchall()
    return f'{{"items":[{",".join(map(item, rows))}],"count":{len(rows)}}}'


def item(row: Sequence[Any]) -> str:
    number, name, category, price, quantity, active, tags, score, count = row
    return (
        f'{{"id":{number},"name":"{name}","category":"{category}","price":{price},"quantity":{quantity},'
        f'"active":{json.dumps(active)},"tags":{tags},"rating":{{"score":{score},"count":{count}}}}}'
    )


def dataset(folder: Path, count: int, factor: int = 1) -> str:
    items = json.loads((folder / "dataset.json").read_text())[:count]
    found = [{**one, "total": one["price"] * one["quantity"] * factor} for one in items]
    return json.dumps({"items": found, "count": count}, separators=(",", ":"))


def crud() -> list[Request]:
    """Gets, updates, a list and a create. gcannon writes numbers in the width of the greatest."""
    changed = '{"name":"Updated Product","category":"test","price":200,"quantity":25}'
    created = '{"id":{{sq}},"name":"New Product","category":"test","price":150,"quantity":30}'
    return [
        request("/crud/items", created, "POST", status=201),
        *[request("/crud/items/{{id}}")] * 15,
        request("/crud/items?category=office&page={{pg}}&limit=10"),
        *[request("/crud/items/{{id}}", changed, "PUT")] * 3,
    ]


def gateway(folder: Path, found: dict[int, str]) -> list[Request]:
    """The 20 URIs of gateway-64-uris.txt."""
    coded = {"fields": [], "coding": "gzip"}
    names = ("reset.css", "components.css", "app.js", "vendor.js", "header.html")
    static = [request(f"/static/{name}", **coded, fixture=f"static {name}") for name in names]
    static.append(request("/static/hero.webp", fields=[], fixture="static hero.webp"))
    sums = [(1, 1), (13, 42), (100, 7), (250, 500)]
    requests = [
        *static,
        *(request(f"/baseline2?a={a}&b={b}", fields=[], text=str(a + b)) for a, b in sums),
        *(request(f"/json/{n}", text=dataset(folder, n)) for n in (1, 5, 10, 15, 25, 40, 50)),
        *(request(f"/async-db?min=10&max=50&limit={n}", text=found[n]) for n in (10, 25, 50)),
    ]
    fields = ["Host: localhost:8443", "User-Agent: h2load nghttp2/1.59.0"]
    for one in requests:
        one["fields"] = [*fields, "Accept-Encoding: br;q=1, gzip;q=0.8"]
        if "fixture" in one["expect"]:
            one["expect"].pop("any_body")
    return requests


def scenarios(folder: Path, database: str) -> Iterable[dict[str, Any]]:
    found = {n: by_price(database, n) for n in (5, 10, 20, 25, 35, 50)}

    def query(limit: int) -> Request:
        return request(f"/async-db?min=10&max=50&limit={limit}", text=found[limit])

    baseline = request("/baseline11?a=13&b=42", text="55", fields=[])
    api = [
        *[baseline] * 3,
        *[request("/json/50?m=1", text=dataset(folder, 50))] * 3,
        *[query(50)] * 2,
    ]
    limited = {"mix": "per_connection", "says_close": False, "app": "main:app", "timeout_s": 30}
    over_tls = {"app": "main:app", "timeout_s": 30, "tls": True, "streams": 32}
    over_tls["request"] = gateway(folder, found)
    yield {
        **{"name": "arena-async-db", "connections": 1024, "requests_per_connection": 25},
        **limited,
        "request": [query(limit) for limit in (5, 10, 20, 35, 50)],
    }
    for name, connections in (("arena-api-4", 256), ("arena-api-16", 1024)):
        yield {
            "name": name,
            "connections": connections,
            "requests_per_connection": 5,
            **limited,
            "request": api,
        }
    yield {"name": "arena-gateway-64", "protocols": ["h2"], "connections": 512, **over_tls}
    yield {"name": "arena-gateway-h3", "protocols": ["h3"], "connections": 64, **over_tls}
    yield {
        **{"name": "arena-crud", "connections": 4096, "requests_per_connection": 200, "data": "rows.csv"},
        **limited,
        "request": crud(),
    }


def toml(value: Any) -> str:
    """A value of TOML. JSON's strings, numbers and lists are TOML's as well."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def write(folder: Path, database: str) -> Path:
    chance = random.Random(1)
    rows = [f"{chance.randint(1, 50_000):05},{100_001 + n},{chance.randint(1, 10):02}\n" for n in range(ROWS)]
    (folder / "rows.csv").write_text("id,sq,pg\n" + "".join(rows))
    lines = ['[section]\nname = "HttpArena"\n']
    for one in scenarios(folder, database):
        given = {**one, "interfaces": ["asgi"]}
        lines.append("\n[[scenario]]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in given.items()))
    path = folder / "database.toml"
    path.write_text("".join(lines))
    return path


def main() -> int:
    options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name, server("max_connections=256", "fsync=off") as database:
        folder = Path(name)
        subprocess.run([sys.executable, ENTRY / "make_data.py", folder], check=True)
        subprocess.run(["psql", "--quiet", "--dbname", database, "--file", folder / "seed.sql"], check=True)
        paths = (ENTRY, os.environ.get("PYTHONPATH", ""), ROOT / "python")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "DATASET_PATH": str(folder / "dataset.json"),
            "DATABASE_URL": database,
        }
        command = [
            sys.executable,
            "-m",
            "towline",
            "bench",
            "servers",
            "--scenarios",
            write(folder, database),
        ]
        return subprocess.run([*command, *options], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
