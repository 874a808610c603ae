"""Parsing of the arguments of `towline serve` to fields of `ServerConfig`, by argparse."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from .. import _migration as migration
from .._options import Option, flags, options_of
from ..config import ServerConfig
from .option_parser import CommandLineError, converter, joined, unknown

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


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Fields that the arguments give, `app`, `config` and the actions included. Raises `CommandLineError`."""
    try:
        ours = migration.translate(arguments, switches())
    except migration.Refused as error:
        raise CommandLineError(str(error)) from None
    parsed, others = _parser().parse_known_args(_normalised(ours))
    if others:
        raise CommandLineError(unknown(others[0], ServerConfig, f" ({HELP_EXPLAINS})"))
    return _fields(vars(parsed))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        for flag, hint in migration.HINTS.items():
            if f"argument {flag}:" in message or f"/{flag}:" in message:
                message += f" ({hint})"
        raise CommandLineError(f"{message}\n({HELP_EXPLAINS})")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="towline serve", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("app", nargs="?")
    parser.add_argument("--config", "-c", metavar="PATH")
    for action in ACTIONS:
        parser.add_argument(f"--{action.replace('_', '-')}", dest=action, action="store_true")
    for name, (option, _) in options_of(ServerConfig).items():
        _add(parser, name, option)
    # In Granian a static mount is a pair of options.
    parser.add_argument("--static-path-route", action="append", default=[])
    parser.add_argument("--static-path-mount", action="append", default=[])
    return parser


def _add(parser: argparse.ArgumentParser, name: str, option: Option) -> None:
    spelled = flags(name, option)
    if option.switch:
        parser.add_argument(*spelled, dest=name, action=argparse.BooleanOptionalAction)
        return

    extra: dict[str, Any] = {}
    if option.repeat:
        extra["action"] = "append"
    if option.const is not None:
        extra.update(nargs="?", const=option.const)
    parser.add_argument(*spelled, dest=name, type=converter(option.parse), metavar=option.metavar, **extra)
    if option.const is not None:
        off: Any = () if isinstance(option.const, tuple) else None
        parser.add_argument(
            f"--no-{spelled[0].removeprefix('--')}", dest=name, action="store_const", const=off
        )


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
