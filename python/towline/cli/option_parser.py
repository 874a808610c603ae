"""Options of a configuration class (`_options.py`) on the command line, by argparse. All commands use this.

`OptionParser` is for every command but `serve`, whose options have the forms of other servers, too (`serve_arguments.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from .._options import flags, options_of
from .._suggest import closest


class CommandLineError(Exception):
    """An invalid command line: exit status 2."""


class OptionParser(argparse.ArgumentParser):
    """The parser of the options of `config`; words are added by the command. Raises `CommandLineError`."""

    def __init__(self, prog: str, config: type) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        for name, (option, _) in options_of(config).items():
            spelled = flags(name, option)
            if option.switch:
                self.add_argument(*spelled, dest=name, action="store_true")
                continue
            action = "append" if option.repeat else "store"
            self.add_argument(
                *spelled, dest=name, type=converter(option.parse), metavar=option.metavar, action=action
            )

    def error(self, message: str) -> NoReturn:
        raise CommandLineError(message)


def converter(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The function as a `type=` of argparse, which shows the text of its `ValueError`."""

    def converted(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


def joined(given: dict[str, Any], config: type) -> dict[str, Any]:
    """The values, in which the parts of a repeated option have become one tuple."""
    for name, (option, _) in options_of(config).items():
        if option.repeat and name in given:
            given[name] = tuple(member for part in given[name] for member in part)
    return given


def unknown(argument: str, config: type, otherwise: str = "") -> str:
    """The message for an argument that is none of the options. `otherwise`: its end if none is similar."""
    known = [flag for name, (option, _) in options_of(config).items() for flag in flags(name, option)]
    close = closest(argument.partition("=")[0], known)
    return f"unknown argument {argument!r}" + (f"; did you mean {close}?" if close else otherwise)
