"""Writes docs/options.md from `towline.config`, the one source of the code, the command line and the page.

`--check` (in `make check`) fails when the page differs from the options.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from towline._options import Option, options_of
from towline.config import GROUPS, ServerConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"
HEAD = """# Options of `towline serve`

<!-- Written by scripts/options_doc.py from python/towline/config.py (`make format`); edit the source. -->

Each option is a flag, a variable (`TOWLINE_` and the flag's name in capitals, dashes as underscores), a key of
`[tool.towline.serve]` in pyproject.toml or of the file given with `--config`, and a field of
`towline.ServerConfig`. The command line wins over the environment, the environment over the file, the file
over the default. Sizes are in bytes and times in seconds unless stated otherwise.
"""


def flag(name: str, described: Option) -> str:
    text = described.flag or "--" + name.replace("_", "-")
    return f"{text} / --no-{text[2:]}" if described.switch else text


def shown(default: Any) -> str:
    match default:
        case None | () | "":
            return ""
        case bool():
            return "on" if default else "off"
        case tuple():
            return f"`{','.join(default)}`"
        case float():
            return f"`{default:g}`"
        case _:
            return f"`{default}`"


def row(name: str, described: Option, default: Any) -> str:
    flags = "<br>".join(f"`{one}`" for one in (flag(name, described), *described.aliases))
    text = described.help
    if described.choices:
        text += f" ({', '.join(described.choices)})"
    if described.repeat:
        text += "; repeatable"
    if described.variables:
        text += f"; also from `{'`, `'.join(described.variables)}`"
    cells = (flags, shown(default), text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def page() -> str:
    parts = [HEAD]
    items = options_of(ServerConfig).items()
    for group, members in groupby(items, key=lambda item: item[1][0].group):
        parts.append(
            f"\n## {group.capitalize()}: {GROUPS[group]}\n\n| option | default | meaning |\n|---|---|---|\n"
        )
        parts.extend(row(name, described, default) for name, (described, default) in members)
    return "".join(parts)


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if not PAGE.exists() or PAGE.read_text() != page():
        print("docs/options.md differs from python/towline/config.py: run `make format`")
        return 1
    print("options: docs/options.md is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
