"""Data with the shapes and sizes of the arena's, for runs without a copy of it: `python make_data.py FOLDER`.

The folder gets `dataset.json`, the 20 files of `static/`, each text with its .gz, and its .br if the package brotli is installed,
and `seed.sql` with PostgreSQL's tables. The same call makes the same data again.
"""

from __future__ import annotations

import gzip
import importlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CATEGORIES = ["electronics", "office", "garden", "kitchen", "music", "sports", "toys", "travel"]
KINDS = ["Basic", "Classic", "Compact", "Deluxe", "Light", "Mini", "Modern", "Solid", "Smart", "Vintage"]
THINGS = ["Bottle", "Cable", "Chair", "Clock", "Lamp", "Mixer", "Radio", "Speaker", "Tent", "Wallet"]
TAGS = ["blue", "cordless", "durable", "foldable", "green", "new", "reduced", "silent", "small", "washable"]
ROWS = 100_000

TEXTS = {
    **{"reset.css": 8192, "layout.css": 25600, "theme.css": 18432, "components.css": 204800},
    **{"utilities.css": 61440, "analytics.js": 12288, "helpers.js": 22528, "app.js": 204800},
    **{"vendor.js": 307200, "router.js": 35840, "header.html": 122880, "footer.html": 56320},
    **{"logo.svg": 15344, "icon-sprite.svg": 71680, "manifest.json": 2883},
}
BINARIES = {
    "regular.woff2": 18432,
    "bold.woff2": 22528,
    "hero.webp": 46080,
    "thumb1.webp": 8192,
    "thumb2.webp": 6144,
}
"""Names and sizes in bytes."""


def make(folder: Path, rows: int = ROWS) -> None:
    chance = random.Random(2026)
    dataset = [
        item(chance, number, f"{chance.choice(KINDS)} {chance.choice(THINGS)}") for number in range(1, 51)
    ]
    (folder / "dataset.json").write_text(json.dumps(dataset, indent=2))
    static = folder / "static"
    static.mkdir(exist_ok=True)
    for name, size in TEXTS.items():
        content = text(chance, size)
        (static / name).write_bytes(content)
        for ending, coded in compressed(content):
            (static / f"{name}.{ending}").write_bytes(coded)
    for name, size in BINARIES.items():
        (static / name).write_bytes(chance.randbytes(size))
    with open(folder / "seed.sql", "w", encoding="ascii") as file:
        file.writelines(seed(chance, rows))


def item(chance: random.Random, number: int, name: str) -> dict[str, Any]:
    return {
        "id": number,
        "name": name,
        "category": chance.choice(CATEGORIES),
        "price": chance.randint(1, 500),
        "quantity": chance.randint(1, 100),
        "active": chance.random() < 0.7,
        "tags": chance.sample(TAGS, chance.randint(2, 4)),
        "rating": {"score": chance.randint(1, 50), "count": chance.randint(1, 500)},
    }


def text(chance: random.Random, size: int) -> bytes:
    """Lines of rules that a coding makes about five times smaller, as it does with real style sheets."""
    words = ["".join(chance.choices("abcdefghilmnoprstu", k=chance.randint(3, 9))) for _ in range(400)]
    lines: list[str] = []
    length = 0
    while length < size:
        name, first, second = chance.choices(words, k=3)
        lines.append(
            f".{name} {{ {first}: {chance.randint(0, 999)}px; {second}: {chance.choice(words)}; }}\n"
        )
        length += len(lines[-1])
    return "".join(lines).encode()[:size]


def compressed(content: bytes) -> Iterator[tuple[str, bytes]]:
    yield "gz", gzip.compress(content, 9, mtime=0)
    try:
        brotli: Any = importlib.import_module("brotli")
    except ImportError:
        return
    yield "br", brotli.compress(content, quality=11)


def seed(chance: random.Random, rows: int) -> Iterator[str]:
    """The tables. Prices have no index, as in the arena."""
    yield """CREATE TABLE items (id integer PRIMARY KEY, name text NOT NULL, category text NOT NULL, price integer NOT NULL,
    quantity integer NOT NULL, active boolean NOT NULL, tags jsonb NOT NULL, rating_score integer NOT NULL,
    rating_count integer NOT NULL);
CREATE TABLE users (id integer PRIMARY KEY, name text NOT NULL, email text NOT NULL, plan text NOT NULL);
INSERT INTO users VALUES (7, 'Ada', 'ada@example.com', 'free'), (42, 'Grace', 'grace@example.com', 'team'),
    (43, 'Edsger', 'edsger@example.com', 'free'), (99, 'Barbara', 'barbara@example.com', 'team');
COPY items FROM stdin;
"""
    for number in range(1, rows + 1):
        made = item(chance, number, f"{chance.choice(KINDS)} {chance.choice(THINGS)} {number}")
        made |= {
            "tags": json.dumps(made["tags"]),
            "active": "t" if made["active"] else "f",
            **made.pop("rating"),
        }
        yield "\t".join(map(str, made.values())) + "\n"
    yield "\\.\nANALYZE items;\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    make(target)
