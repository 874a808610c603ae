"""Requests and responses of HttpArena's profiles, in the shapes and sizes of the arena; every call makes the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .roadrunner_data import items_of
else:
    try:
        from .roadrunner_data import items_of
    except ImportError:  # servers run it with its folder on the path
        from roadrunner_data import items_of

CODED_BEFORE = ("woff2", "webp")
"""Formats that a coding makes no smaller."""
SIZES = {
    **{"reset.css": 8192, "layout.css": 25600, "theme.css": 18432, "components.css": 204800},
    **{"utilities.css": 61440, "analytics.js": 12288, "helpers.js": 22528, "app.js": 204800},
    **{"vendor.js": 307200, "router.js": 35840, "header.html": 122880, "footer.html": 56320},
    **{"regular.woff2": 18432, "bold.woff2": 22528, "logo.svg": 15344, "icon-sprite.svg": 71680},
    **{"hero.webp": 46080, "thumb1.webp": 8192, "thumb2.webp": 6144, "manifest.json": 2883},
}


def static(name: str) -> bytes:
    """A file: lines of rules, which gzip makes four times smaller, as it does the arena's; or random bytes."""
    size, chance = SIZES[name], random.Random(name)
    if name.endswith(CODED_BEFORE):
        return chance.randbytes(size)
    words = ["".join(chance.choices("abcdefghilmnoprstu", k=chance.randint(3, 9))) for _ in range(400)]
    drawn = iter(chance.choices(words, k=size // 8))
    lines = (
        f".{a} {{ {b}: {len(b) * 97}px; {c}: {a}; }}" for a, b, c in zip(drawn, drawn, drawn, strict=False)
    )
    return "\n".join(lines).ljust(size, ".").encode()[:size]


def sums(first: int, count: int) -> Iterator[bytes]:
    """gRPC's messages `SumReply` with `first` and the numbers after it, each in its frame."""
    for result in range(first, first + count):
        number = bytearray()
        while result > 127:
            number.append(result & 127 | 128)
            result >>= 7
        yield bytes((0, 0, 0, 0, len(number) + 2, 8, *number, result))


@cache
def fixture(name: str) -> bytes:
    """The body of a response by its name in httparena.toml: `json 5 7`, `static app.js`, `sums 3 5000`."""
    match name.split():
        case "json", count, factor:
            return items_of(int(count), int(factor))
        case "sums", first, count:
            return b"".join(sums(int(first), int(count)))
        case "static", file:
            return static(file)
    raise LookupError(name)
