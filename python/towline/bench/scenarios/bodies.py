"""Bodies and series of targets in scenario files.

A body is `text`, `base64`, `repeat` (with `count`), `file`, `fixture` (a name in bench/apps/httparena_data), or a `series`: a template repeated for `first` to
`last` with `{n}` (or `{n:04}`, padded with zeros) as the number, joined by `separator`, between `before` and `after`.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from ..apps.httparena_data import fixture
from .model import Body
from .table import Table

NUMBER = re.compile(r"\{n(?::0(\d{1,2}))?\}")
MAX_MEMBERS = 1_000_000
MAX_BYTES = 1 << 30

KEYS = ("text", "base64", "repeat", "series", "file", "fixture")


def read_body(table: Table, folder: Path | None) -> Body | None:
    """The body of a request or response, None when the table has none."""
    given = [key for key in KEYS if key in table]
    if len(given) > 1:
        raise table.error(f"a body is one of {', '.join(KEYS)}; here are {' and '.join(given)}")
    texts = [table.maybe(key, str) for key in KEYS]
    count = table.at_least("count", 0, None)
    if count is not None and given != ["repeat"]:
        raise table.error("`count` belongs to `repeat`")
    if not given:
        return None
    text = next(text for text in texts if text is not None)
    match given[0]:
        case "base64":
            return Body(_decoded(table, text))
        case "repeat":
            if count is None:
                raise table.error("`repeat` needs a `count`")
            if len(text) * count > MAX_BYTES:
                raise table.error(f"the body is larger than {MAX_BYTES:,} bytes")
            return Body(text.encode(), count)
        case "series":
            return Body(_joined(table, text).encode())
        case "fixture":
            return Body(_fixture(table, text))
        case "file":
            return _file(table, text, folder)
        case _:
            return Body(text.encode())


def numbered(table: Table, template: str) -> list[str]:
    """The members of a series; `template` alone when it has no number and the table no range."""
    first, last = table.maybe("first", int), table.maybe("last", int)
    if first is None and last is None and not NUMBER.search(template):
        return [template]
    if first is None or last is None or not 0 <= last - first < MAX_MEMBERS:
        raise table.error(f"a series with {{n}} needs `first` and `last`, at most {MAX_MEMBERS:,} members")
    return [
        NUMBER.sub(lambda found, n=n: f"{n:0{found[1]}}" if found[1] else f"{n}", template)  # type: ignore[misc]
        for n in range(first, last + 1)
    ]


def _joined(table: Table, template: str) -> str:
    separator, before, after = (table.take(key, str, "") for key in ("separator", "before", "after"))
    return before + separator.join(numbered(table, template)) + after


def _decoded(table: Table, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise table.error(f"`base64`: {error}") from None


def _fixture(table: Table, name: str) -> bytes:
    try:
        return fixture(name)
    except (LookupError, ValueError):
        raise table.error(f"`fixture`: there is no data {name!r}") from None


def _file(table: Table, text: str, folder: Path | None) -> Body:
    path = (folder or Path()) / text
    try:
        with path.open("rb"):
            return Body(path=path.resolve())
    except OSError as error:
        raise table.error(f"cannot read {path}: {error.strerror}") from None
