"""Writes docs/options.md from `towline.config`, the one source of the code, the command line and the page, and the
tables of docs/migrate.md from `towline._migration`.

`--check` (in `make check`) fails when a page differs from its source.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from towline._migration import REFUSED_VALUES, ROWS, VALUES, Row, explained
from towline._options import Option, listed, options_of
from towline.cli.command_line import ACTIONS
from towline.config import GROUPS, ServerConfig

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "options.md"
MIGRATION = DOCS / "migrate.md"
MARKER = "<!-- The tables below"
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


def default_text(default: Any) -> str:
    match default:
        case None | () | "":
            return ""
        case bool():
            return "on" if default else "off"
        case tuple():
            return f"`{','.join(default)}`"
        case float():
            return f"`{default:g}`"
        case 0o666:
            return "`666`"
        case _:
            return f"`{default}`"


def row(name: str, described: Option, default: Any) -> str:
    flags = "<br>".join(f"`{one}`" for one in (flag(name, described), *described.aliases))
    text = described.help
    if described.choices:
        text += f" ({listed(described.choices)})"
    if described.repeat:
        text += "; repeatable"
    if described.variables:
        text += f"; also from `{'`, `'.join(described.variables)}`"
    cells = (flags, default_text(default), text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def page() -> str:
    parts = [HEAD]
    items = options_of(ServerConfig).items()
    for group, members in groupby(items, key=lambda item: item[1][0].group):
        parts.append(
            f"\n## {group.capitalize()}: {GROUPS[group]}\n\n| option | default | meaning |\n|---|---|---|\n"
        )
        parts.extend(row(name, described, default) for name, (described, default) in members)
    parts.append("\n## Commands\n\n| option | meaning |\n|---|---|\n")
    parts.append("| `--config`<br>`-c` | file with options: TOML, or gunicorn's Python (migrate.md) |\n")
    parts.extend(f"| `--{name.replace('_', '-')}` | {text} |\n" for name, text in ACTIONS.items())
    return "".join(parts)


def counterpart(row: Row) -> str:
    """Our option in place of another server's."""
    if row.to is None:
        return "none"
    if callable(row.to):
        return "by value"
    return f"`{row.to}`" if row.to else "no effect"


def migration() -> str:
    """docs/migrate.md with new tables below the text that is written by hand."""
    text, marker, rest = MIGRATION.read_text().partition(MARKER)
    parts = [text, marker, rest.partition("\n")[0], "\n"]
    for server in ("uvicorn", "gunicorn", "granian", "hypercorn"):
        parts.append(
            f"\n## Options of {server}\n\nThose that are not listed have the same name and meaning here.\n\n"
        )
        parts.append("| option | here | remark |\n|---|---|---|\n")
        rows = [row for row in ROWS.values() if server in row.servers.split()]
        parts.extend(f"| `{row.flag}` | {counterpart(row)} | {explained(row)} |\n" for row in rows)
        for (name, value), (ours, owner) in VALUES.items():
            if owner == server:
                parts.append(f"| `{name} {value}` | `{ours}` | |\n")
    parts.append("\n## Values that are refused\n\n| option | reason |\n|---|---|\n")
    parts.extend(f"| `{name} {value}` | {reason} |\n" for (name, value), reason in REFUSED_VALUES.items())
    return "".join(parts)


def main() -> int:
    pages = {PAGE: page, MIGRATION: migration}
    if "--check" not in sys.argv:
        for path, text in pages.items():
            path.write_text(text())
        return 0
    for path, text in pages.items():
        if not path.exists() or path.read_text() != text():
            print(f"docs/{path.name} differs from its source in python/towline: run `make format`")
            return 1
    print("options: docs/options.md and docs/migrate.md are up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
