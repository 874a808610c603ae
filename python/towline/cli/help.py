"""The output of `towline COMMAND --help`: an overview on one screen, and one page per group."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._options import Option, default_text, flags, options_of
from .._suggest import closest
from .option_parser import CommandLineError

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

    def wanted(self, arguments: Sequence[str]) -> str | None:
        """The page that `--help [GROUP]` among the arguments asks for; None without it. Raises `CommandLineError`."""
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        at = next((at for at, word in enumerate(ours) if word in ("-h", "--help")), None)
        if at is None:
            return None
        subject = ours[at + 1] if at + 1 < len(ours) else ""
        if not subject or subject.startswith("-") or any(sign in subject for sign in ".:/"):
            return self.overview()
        page = self.group(subject)
        if page is None:
            raise CommandLineError(self.unknown_group(subject))
        return page

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
    import shutil

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


def _entry(name: str, option: Option, default: Any) -> Iterable[str]:
    spelled = flags(name, option)
    shown = spelled[0]
    if option.switch and default is True:
        shown = f"--no-{shown.removeprefix('--')}"
    elif not option.switch:
        shown += f" [{option.metavar}]" if option.const is not None else f" {option.metavar}"
    help_text = option.help
    if option.switch and default is True:
        help_text = f"disable {help_text}"
    if len(spelled) > 1:
        help_text += f" (also {', '.join(spelled[1:])})"
    help_text += _default(option, default)
    wrapped = textwrap.wrap(help_text, width() - _COLUMN)
    left = f"  {shown}"
    if len(left) >= _COLUMN - 1:
        return [left, *(" " * _COLUMN + line for line in wrapped)]
    return [f"{left:<{_COLUMN}}{wrapped[0]}", *(" " * _COLUMN + line for line in wrapped[1:])]


def _default(option: Option, default: Any) -> str:
    if option.switch or "(default: " in option.help:
        return ""
    text = default_text(option, default)
    return f" [{text}]" if text and len(text) <= 40 else ""
