"""Writes docs/options.md from `towline.config`, the one source of the code, the command line and the page, and the
tables of docs/migrate.md from `towline._migration`.

`--check` (in `make check`) fails when a page differs from its source.
"""

from __future__ import annotations

import dataclasses
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from towline._keywords import RENAMED
from towline._migration import ALL_ROWS, REFUSED_VALUES, VALUES, Row
from towline._options import UNITS, Option, default_text, listed, options_of
from towline.cli.serve_arguments import ACTIONS
from towline.config import GROUPS, ServerConfig

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "options.md"
API = DOCS / "api" / "server.md"
KEYWORDS = DOCS.parent / "python" / "towline" / "_serve_options.py"
MIGRATION = DOCS / "migrate.md"
MARKER = "<!-- The tables below"
NAMES = {"http3": "HTTP/3", "tls": "TLS"}
HEAD = """# Options of `towline serve`

<!-- Written by scripts/options_doc.py from python/towline/config (`make format`); edit the source. -->

Each option is a flag, a variable (`TOWLINE_` and the flag's name in capitals, dashes as underscores), a key of
`[tool.towline.serve]` in pyproject.toml or of the file given with `--config`, and a field of
`towline.ServerConfig`. The command line wins over the environment, the environment over the file, the file
over the default. Sizes are in bytes and times in seconds unless stated otherwise.
"""


def flag(name: str, described: Option) -> str:
    text = described.flag or "--" + name.replace("_", "-")
    return f"{text} / --no-{text[2:]}" if described.switch else text


def default_cell(described: Option, default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    text = default_text(described, default).removeprefix("0o")
    return f"`{text}`" if text else ""


def row(name: str, described: Option, default: Any) -> str:
    flags = "<br>".join(f"`{one}`" for one in (flag(name, described), *described.aliases))
    text = described.help
    if described.choices:
        text += f" ({listed(described.choices)})"
    if described.repeat:
        text += "; repeatable"
    if described.variables:
        text += f"; also from `{'`, `'.join(described.variables)}`"
    cells = (flags, default_cell(described, default), text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def heading(group: str) -> str:
    name, summary = NAMES.get(group, group.capitalize()), GROUPS[group]
    return name if name == summary else f"{name}: {summary}"


def page() -> str:
    parts = [HEAD]
    items = options_of(ServerConfig).items()
    for group, members in groupby(items, key=lambda item: item[1][0].group):
        parts.append(f"\n## {heading(group)}\n\n| option | default | meaning |\n|---|---|---|\n")
        parts.extend(row(name, described, default) for name, (described, default) in members)
    parts.append("\n## Commands\n\n| option | meaning |\n|---|---|\n")
    parts.append(
        "| `--config`<br>`-c` | file with options: TOML, gunicorn's Python, or a file of hypercorn (migrate.md) |\n"
    )
    parts.extend(f"| `--{name.replace('_', '-')}` | {text} |\n" for name, text in ACTIONS.items())
    return "".join(parts)


def counterpart(row: Row) -> str:
    """Our option in place of another server's."""
    if row.to is None:
        return "refused"
    if row.to == "" and row.warns:
        return "ignored"
    if callable(row.to):
        return "by value"
    return f"`{row.to}`" if row.to else "no effect"


def migration() -> str:
    """docs/migrate.md with new tables below the text that is written by hand."""
    text, marker, rest = MIGRATION.read_text().partition(MARKER)
    parts = [text, marker, rest.partition("\n")[0], "\n"]
    for server in ("uvicorn", "gunicorn", "granian", "hypercorn", "daphne", "waitress", "flask"):
        parts.append(
            f"\n## Options of {server}\n\nOptions that are not listed have the same name and meaning here.\n\n"
        )
        parts.append("| option | here | remark |\n|---|---|---|\n")
        rows = [row for row in ALL_ROWS if server in row.servers.split()]
        parts.extend(
            f"| `{row.flag}`{' (*)' if row.named else ''} | {counterpart(row)} | {row.remark} |\n"
            for row in rows
        )
        for (name, value), (ours, owner) in VALUES.items():
            if owner == server:
                parts.append(f"| `{name} {value}` | `{ours}` | |\n")
    parts.append("\n## Values that are refused\n\n| option | reason |\n|---|---|\n")
    parts.extend(f"| `{name} {value}` | {reason} |\n" for (name, value), reason in REFUSED_VALUES.items())
    return "".join(parts)


def keyword_type(name: str, described: Option, annotation: str) -> str:
    """The type of a keyword of `towline.serve`, which also takes what uvicorn takes."""
    if described.switch:
        return "bool | str" if name == "ws" else "bool"
    if described.const is not None:
        return f"bool | {annotation}"
    if name == "log_config":
        return "str | os.PathLike[str] | dict[str, Any] | None"
    if name == "log_level":
        return "str | int"
    if name == "bind":
        return "str | Address | Mapping[str, Any] | Sequence[str | Address | Mapping[str, Any]] | None"
    if name == "headers":
        return "Sequence[tuple[str | bytes, str | bytes]]"
    pairs = annotation.startswith("tuple[tuple[")
    path = (
        " | os.PathLike[str]"
        if described.metavar in ("PATH", "DIR") and name not in ("root_path", "health_path")
        else ""
    )
    if annotation == "tuple[str, ...]":
        return f"str{path} | Sequence[str{path}] | None"
    return "Sequence[tuple[str, str]]" if pairs else annotation.replace("str", f"str{path}", 1)


UVICORN = {
    "http": "str",
    "h11_max_incomplete_event_size": "int | None",
    "reset_contextvars": "bool",
    "ssl_version": "int | None",
    "use_colors": "bool | None",
    "ws_max_queue": "int | None",
    "reload_delay": "float | None",
}
"""Arguments of `uvicorn.run` that Towline does not have under the same name."""


def keywords() -> str:
    """python/towline/_serve_options.py."""
    types = {field.name: str(field.type) for field in dataclasses.fields(ServerConfig)}
    known = options_of(ServerConfig)
    lines = [f"    {name}: {keyword_type(name, known[name][0], types[name])}" for name in known]
    renamed = [f"    {name}: str | Sequence[str] | None" for name in RENAMED]
    others = [f"    {name}: {kind}" for name, kind in UVICORN.items()]
    return "\n".join([KEYWORDS_HEAD, *lines, "    # uvicorn's", *renamed, *others, ""])


KEYWORDS_HEAD = '''"""The types of the arguments of `towline.serve` and `towline.run`.

Written by scripts/options_doc.py from `towline.config` (`make format`); edit the options there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from .config import Address


class ServeOptions(TypedDict, total=False):
    """The options of `ServerConfig`, and those of `uvicorn.run` that map to one."""
'''


def api() -> str:
    """docs/api/server.md with a new table at its end."""
    text, marker, _ = API.read_text().partition(API_MARKER)
    types = {field.name: str(field.type) for field in dataclasses.fields(ServerConfig)}
    parts = [text, marker, "\n| argument | type | default | meaning |\n|---|---|---|---|\n"]
    for name, (described, default) in options_of(ServerConfig).items():
        unit = f" ({UNITS[described.metavar]})" if described.metavar in UNITS else ""
        choices = f": {listed(described.choices)}" if described.choices else ""
        shown = f"`{default_text(described, default) or repr(default)}`"
        cells = (f"`{name}`", f"`{types[name]}`", shown, described.help + choices + unit)
        parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(parts)


API_MARKER = "<!-- Written by scripts/options_doc.py from python/towline/config (`make format`); edit the source. -->\n"


def main() -> int:
    pages = {PAGE: page, MIGRATION: migration, KEYWORDS: keywords, API: api}
    if "--check" not in sys.argv:
        for path, text in pages.items():
            path.write_text(text())
        return 0
    for path, text in pages.items():
        if not path.exists() or path.read_text() != text():
            print(f"{path.name} differs from its source in python/towline: run `make format`")
            return 1
    print("options: the pages and the keywords of `towline.serve` are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
