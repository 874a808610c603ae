"""The output of `towline COMMAND --help`: an overview on one screen, and one page per group."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._options import Option, options_of
from .._suggest import closest
from ..config import GROUPS, ServerConfig

_COLUMN = 34


@dataclass(frozen=True)
class Manual:
    """The help pages of one command. `common`: the options in the overview; `examples`: command lines."""

    command: str
    usage: str
    config: type
    groups: Mapping[str, str]
    common: tuple[str, ...]
    ending: tuple[str, ...]
    summary: str = ""
    examples: tuple[str, ...] = ()

    def overview(self) -> str:
        """The usage line, the common options and the names of the groups."""
        known = options_of(self.config)
        lines = [f"usage: {self.usage}"]
        if self.summary:
            lines += ["", *paragraph(self.summary)]
        lines += [*examples(self.examples), "", "common options:"]
        for name in self.common:
            lines += _entry(name, *known[name])
        lines += ["", f"more options ({self.command} --help GROUP, or all):"]
        for name, summary in self.groups.items():
            lines += row(name, summary, 15)
        return "\n".join([*lines, "", *paragraph(" ".join(self.ending)), ""])

    def group(self, name: str) -> str | None:
        """The options of one group, or of all; None if there is no such group."""
        if name == "all":
            return "\n".join(self._group(each) for each in self.groups)
        return self._group(name) if name in self.groups else None

    def unknown_group(self, name: str) -> str:
        close = closest(name, self.groups)
        hint = f"; did you mean {close!r}?" if close else ""
        return f"no group {name!r}{hint}; there are {', '.join(self.groups)} and all"

    def _group(self, name: str) -> str:
        lines = [f"{name}: {self.groups[name]}"]
        for field, (option, default) in options_of(self.config).items():
            if option.group == name:
                lines += _entry(field, option, default)
        return "\n".join([*lines, ""])


def width() -> int:
    """Columns of a page: those of the terminal, at least 60."""
    return max(shutil.get_terminal_size().columns, 60)


def paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, width(), break_on_hyphens=False)


def examples(commands: Iterable[str]) -> list[str]:
    """A section of examples, which can be copied; none without examples."""
    shown = [f"  {command}" for command in commands]
    return ["", "examples:", *shown] if shown else []


def row(left: str, right: str, column: int) -> list[str]:
    """Two columns, the right one wrapped."""
    first, *rest = textwrap.wrap(right, width() - column, break_on_hyphens=False) or [""]
    return [f"{'  ' + left:<{column}}{first}", *(" " * column + line for line in rest)]


SERVE = Manual(
    command="towline serve",
    summary="Serves an ASGI or WSGI application.",
    examples=(
        "towline serve main:app --reload                  # development",
        "towline serve main:app --workers 4 --bind :8000  # production",
        "towline serve main:create_app --factory",
        "towline serve mysite.wsgi:application --check",
    ),
    usage="towline serve [OPTIONS] module:app",
    config=ServerConfig,
    groups=GROUPS,
    common=(
        "bind",
        "host",
        "port",
        "workers",
        "threads",
        "reload",
        "access_log",
    ),
    ending=(
        "Each option is also a variable (TOWLINE_LOG_LEVEL) and a key of [tool.towline.serve] in pyproject.toml or of",
        "the file given with --config. --check reads everything and binds nothing; --print-config prints the options.",
        "Exit status: 0; 2 invalid options; 3 the start failed.",
    ),
)
overview, group, unknown_group = SERVE.overview, SERVE.group, SERVE.unknown_group


def flags(name: str, option: Option) -> list[str]:
    """The flag first, then its aliases."""
    return [option.flag or "--" + name.replace("_", "-"), *option.aliases]


def _entry(name: str, option: Option, default: Any) -> Iterable[str]:
    spelled = flags(name, option)
    shown = spelled[0]
    if option.switch and default is True:
        shown = f"--no-{shown.removeprefix('--')}"
    elif not option.switch:
        shown += f" [{option.metavar}]" if option.const is not None else f" {option.metavar}"
    help_text = option.help
    if option.switch and default is True:
        help_text = f"disable: {help_text}"
    if len(spelled) > 1:
        help_text += f" (also {', '.join(spelled[1:])})"
    help_text += _default(option, default)
    wrapped = textwrap.wrap(help_text, width() - _COLUMN)
    left = f"  {shown}"
    if len(left) >= _COLUMN - 1:
        return [left, *(" " * _COLUMN + line for line in wrapped)]
    return [f"{left:<{_COLUMN}}{wrapped[0]}", *(" " * _COLUMN + line for line in wrapped[1:])]


def _default(option: Option, default: Any) -> str:
    if option.switch or default in (None, (), "") or "(default: " in option.help:
        return ""
    if isinstance(default, tuple):
        default = ",".join(default)
    if isinstance(default, float):
        default = f"{default:g}"
    return "" if len(str(default)) > 40 else f" [{default}]"
