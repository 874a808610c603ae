"""Parsing of the arguments of `towline serve` to fields of `ServerConfig`, by argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from .. import _migration as migration
from .._options import Option, flags, options_of
from ..config import ServerConfig
from .option_parser import CommandLineError, joined, unknown

ACTIONS = {
    "check": "read everything, import the application, bind nothing; then exit",
    "print_config": "print the effective options as a file for --config; then exit",
}
"""Options of the command that are not options of the server."""
HELP_EXPLAINS = "towline serve --help explains the options"


def switches() -> frozenset[str]:
    """Flags without a value."""
    return frozenset(
        flag
        for name, (option, _) in options_of(ServerConfig).items()
        if option.switch
        for flag in flags(name, option)
    )


class Reading(NamedTuple):
    """The fields that arguments give, `app`, `config` and the actions included, lines about the others, and the rows of
    other servers' options that were used."""

    fields: dict[str, Any]
    warnings: list[str]
    errors: list[str]
    rows: list[migration.Row]


def read(arguments: Sequence[str], program: str = "") -> Reading:
    """Every bad option is in `errors`, so that one start shows them all. `program`: the server whose line this is."""
    ours = migration.translate(arguments, switches(), program)
    errors = ours.errors
    try:
        parsed, others = _parser(errors).parse_known_args(_normalised(ours.arguments))
        fields = {name: value for name, value in _fields(vars(parsed)).items() if value is not _BAD}
    except CommandLineError as error:
        return Reading({"app": None}, ours.warnings, [*errors, str(error)], ours.rows)
    unknowns = [other for other in others if other.startswith("-")] or others
    errors += [unknown(each, ServerConfig) for each in unknowns]
    return Reading(fields, ours.warnings, [*dict.fromkeys(errors)], ours.rows)


def parse(arguments: Sequence[str], program: str = "") -> dict[str, Any]:
    """The fields of `read`. Raises `CommandLineError`."""
    found = read(arguments, program)
    if found.errors:
        raise CommandLineError("\n".join(found.errors))
    return found.fields


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandLineError(message)


def _parser(errors: list[str]) -> argparse.ArgumentParser:
    """Messages about values go to `errors`."""
    parser = _Parser(
        prog="towline serve",
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        # Each add_argument() makes one, which asks the terminal for its width if it is not given.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=80),
    )
    parser.add_argument("app", nargs="?")
    parser.add_argument("--config", "-c", metavar="PATH")
    for action in ACTIONS:
        parser.add_argument(f"--{action.replace('_', '-')}", dest=action, action="store_true")
    for name, (option, _) in options_of(ServerConfig).items():
        _add(parser, name, option, errors)
    # In Granian a static mount is a pair of options.
    parser.add_argument("--static-path-route", action="append", default=[])
    parser.add_argument("--static-path-mount", action="append", default=[])
    return parser


def _add(parser: argparse.ArgumentParser, name: str, option: Option, errors: list[str]) -> None:
    spelled = flags(name, option)
    if option.switch:
        parser.add_argument(*spelled, dest=name, action=argparse.BooleanOptionalAction)
        return

    extra: dict[str, Any] = {}
    if option.repeat:
        extra["action"] = "append"
    if option.const is not None:
        extra.update(nargs="?", const=option.const)
    kind = _converter(option, "/".join(spelled), errors)
    parser.add_argument(*spelled, dest=name, type=kind, metavar=option.metavar, **extra)
    if option.const is not None:
        off: Any = () if isinstance(option.const, tuple) else option.off
        parser.add_argument(
            f"--no-{spelled[0].removeprefix('--')}", dest=name, action="store_const", const=off
        )


def _converter(option: Option, spelled: str, errors: list[str]) -> Callable[[str], Any]:
    def convert(value: str) -> Any:
        try:
            return option.parse(value)
        except ValueError as error:
            hint = next(
                (f" ({text})" for flag, text in migration.HINTS.items() if flag in spelled.split("/")), ""
            )
            errors.append(f"argument {spelled}: {error}{hint}")
            return _BAD

    return convert


class _Bad(tuple[()]):
    """Stands for a value that cannot be read."""


_BAD = _Bad()


def _normalised(arguments: Sequence[str]) -> list[str]:
    """Handle flags with an optional argument before the application, as in `--access-log module:app`.

    Such a flag takes the next argument only if that cannot be the application.
    """
    optional = {
        flag
        for name, (option, _) in options_of(ServerConfig).items()
        if option.const is not None
        for flag in flags(name, option)
    }
    result: list[str] = []
    for index, argument in enumerate(arguments):
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        if argument in optional and ":" in following:
            name = next(n for n, (o, _) in options_of(ServerConfig).items() if argument in flags(n, o))
            const = options_of(ServerConfig)[name][0].const
            result.append(f"{argument}={','.join(const) if isinstance(const, tuple) else const}")
        else:
            result.append(argument)
    return result


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """Convert the result of argparse to fields of the configuration."""
    routes, directories = given.pop("static_path_route"), given.pop("static_path_mount")
    given = joined(given, ServerConfig)
    if len(routes) > len(directories):
        raise CommandLineError("--static-path-route: needs a --static-path-mount for each")
    if directories:
        routes = routes + ["/static"] * (len(directories) - len(routes))
        given["static"] = (*given.get("static", ()), *zip(routes, directories, strict=True))
    return given
