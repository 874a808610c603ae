"""`towline serve module:app`: the command line of the server.

It uses argparse, which is in the standard library and starts fast, with its own help pages: one page with seventy
options is too long.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .._options import Option, options_of
from ..config import ServerConfig
from ..errors import Error
from . import help as pages
from . import sources

STARTUP_FAILED = 3


def main(arguments: Sequence[str]) -> int:
    """Run the server until it is stopped. Returns the exit status."""
    shown = _help_wanted(arguments)
    if shown is not None:
        return shown
    try:
        config = configure(arguments, os.environ)
        from ..server import serve_config

        return serve_config(config)
    except Error as error:
        sys.stderr.write(f"towline: {error}\n")
        return STARTUP_FAILED


def configure(arguments: Sequence[str], environment: Any) -> ServerConfig:
    """The configuration from command line, environment and file.

    Raises `ConfigError` for an invalid value; exits with 2 for an invalid command line.
    """
    parsed, unknown = _parser().parse_known_args(_normalised(arguments))
    if unknown:
        _fail(_unknown(unknown[0]))
    given = vars(parsed)
    path = given.pop("config", None) or environment.get(sources.PREFIX + "CONFIG")
    command_line = _command_line(given)
    merged = sources.merge(command_line, sources.from_environment(environment), sources.from_file(path))
    _addresses_override(merged, command_line)
    if not merged.get(sources.APP) and not merged.get("static"):
        _fail("no application given: towline serve module:app")
    return ServerConfig(**merged)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message}\n(towline serve --help explains the options)")


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"towline serve: {message}\n")
    raise SystemExit(2)


def _unknown(argument: str) -> str:
    known = [
        flag for name, (option, _) in options_of(ServerConfig).items() for flag in pages.flags(name, option)
    ]
    close = difflib.get_close_matches(argument.partition("=")[0], known, n=1)
    hint = f"; did you mean {close[0]}?" if close else " (towline serve --help explains the options)"
    return f"unknown argument {argument!r}{hint}"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="towline serve", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    parser.add_argument("app", nargs="?")
    parser.add_argument("--config", metavar="PATH")
    for name, (option, _) in options_of(ServerConfig).items():
        _add(parser, name, option)
    # In Granian a static mount is a pair of options.
    parser.add_argument("--static-path-route", action="append", default=[])
    parser.add_argument("--static-path-mount", action="append", default=[])
    return parser


def _add(parser: argparse.ArgumentParser, name: str, option: Option) -> None:
    flags = pages.flags(name, option)
    if option.switch:
        parser.add_argument(*flags, dest=name, action=argparse.BooleanOptionalAction)
        return

    def converted(value: str) -> Any:
        try:
            return option.parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    extra: dict[str, Any] = {}
    if option.repeat:
        extra["action"] = "append"
    if option.const is not None:
        extra.update(nargs="?", const=option.const)
    parser.add_argument(*flags, dest=name, type=converted, metavar=option.metavar, **extra)
    if option.const is not None:
        off: Any = () if isinstance(option.const, tuple) else None
        parser.add_argument(f"--no-{flags[0].removeprefix('--')}", dest=name, action="store_const", const=off)


def _normalised(arguments: Sequence[str]) -> list[str]:
    """Handle flags with an optional argument before the application, as in `--access-log module:app`.

    Such a flag takes the next argument only if that cannot be the application.
    """
    optional = {
        flag
        for name, (option, _) in options_of(ServerConfig).items()
        if option.const is not None
        for flag in pages.flags(name, option)
    }
    result: list[str] = []
    for index, argument in enumerate(arguments):
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        if argument in optional and ":" in following:
            name = next(n for n, (o, _) in options_of(ServerConfig).items() if argument in pages.flags(n, o))
            const = options_of(ServerConfig)[name][0].const
            result.append(f"{argument}={','.join(const) if isinstance(const, tuple) else const}")
        else:
            result.append(argument)
    return result


def _command_line(given: dict[str, Any]) -> dict[str, Any]:
    """Convert the result of argparse to fields of the configuration."""
    routes, directories = given.pop("static_path_route"), given.pop("static_path_mount")
    for name, (option, _) in options_of(ServerConfig).items():
        if option.repeat and name in given:
            given[name] = tuple(member for part in given[name] for member in part)
    if len(routes) > len(directories):
        _fail("--static-path-route: needs a --static-path-mount for each")
    if directories:
        routes = routes + ["/static"] * (len(directories) - len(routes))
        given["static"] = (*given.get("static", ()), *zip(routes, directories, strict=True))
    return given


def _addresses_override(merged: dict[str, Any], command_line: dict[str, Any]) -> None:
    """Remove addresses of a file or variable that the command line overrides, as `--port` does with `bind`."""
    ways = ("bind", "uds", "fd")
    if any(name in command_line for name in (*ways, "host", "port")):
        for name in ways:
            if name not in command_line:
                merged.pop(name, None)


def _help_wanted(arguments: Sequence[str]) -> int | None:
    for index, argument in enumerate(arguments):
        if argument == "--":
            return None
        if argument in ("-h", "--help"):
            subject = arguments[index + 1] if index + 1 < len(arguments) else ""
            return _print_help("" if subject.startswith("-") or ":" in subject else subject)
    return None


def _print_help(subject: str) -> int:
    page = pages.group(subject) if subject else pages.overview()
    if page is None:
        _fail(pages.unknown_group(subject))
    sys.stdout.write(page)
    return 0
