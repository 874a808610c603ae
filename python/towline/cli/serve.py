"""`towline serve module:app`: the configuration from all sources, then the server.

Exit statuses: 0 after a normal stop, 2 for invalid options (of the command line, a variable or a file), 3 if the start
failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import GROUPS, ServerConfig
from ..errors import ConfigError, Error
from . import peer_settings, programs, sources
from .help import Manual
from .option_parser import CommandLineError
from .serve_arguments import ACTIONS, HELP_EXPLAINS, Reading, read
from .targets import located, problem

INVALID, STARTUP_FAILED = 2, 3
ANY_ADDRESS = "0.0.0.0"
MANUAL = Manual(
    command="towline serve",
    summary="Serves an ASGI or WSGI application.",
    examples=(
        "towline serve main:app --reload                  # development",
        "towline serve main:app --workers 4 --bind :8000  # production",
        "towline serve main:create_app --factory",
        "towline serve gunicorn mysite.wsgi -w 4 --check   # the line of another server",
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


def main(arguments: Sequence[str]) -> int:
    """Run the server until it is stopped. Returns the exit status."""
    try:
        line = programs.read(arguments)
        shown = MANUAL.wanted(line.arguments)
        if shown is not None:
            sys.stdout.write(shown)
            return 0
        given = read(line.arguments, line.program)
        actions = {name for name in ACTIONS if given.fields.pop(name, False)}
        os.environ.update(programs.variables(line, os.environ))
        config = merged(line, given, os.environ)
    except (CommandLineError, ConfigError) as error:
        for message in str(error).splitlines():
            sys.stderr.write(f"towline serve: {message}\n")
        if isinstance(error, CommandLineError):
            sys.stderr.write(f"({HELP_EXPLAINS})\n")
        return INVALID
    if "print_config" in actions:
        from .print_config import as_toml

        sys.stdout.write(as_toml(config))
        if "check" not in actions:
            return 0
    try:
        from ..server import check, serve_config

        return check(config) if "check" in actions else serve_config(config)
    except Error as error:
        from ..server.logs import report_failure

        report_failure(str(error), as_json=config.log_format == "json")
        return STARTUP_FAILED


def configure(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig:
    """The configuration from command line, environment and file.

    Raises `CommandLineError` for an invalid command line and `ConfigError` for an invalid value.
    """
    line = programs.read(arguments)
    given = read(line.arguments, line.program)
    for action in ACTIONS:
        given.fields.pop(action, None)
    return merged(line, given, {**environment, **programs.variables(line, environment)})


def merged(line: programs.Line, given: Reading, environment: Mapping[str, str]) -> ServerConfig:
    """The configuration from the fields of the command line and the other sources."""
    command_line, notices = given.fields, given.warnings
    errors: list[str] = []
    environment = sources.without_services(environment, (sources.PREFIX, *peer_settings.PREFIXES), notices)
    path = command_line.pop("config", None) or environment.get(sources.PREFIX + "CONFIG")
    overridden = _overridden(command_line)
    peers = peer_settings.Peers(line.program, given, errors)
    from_peers = peers.from_environment(environment)
    path = path or from_peers.pop("config", None) or peers.usual_file()
    from_file = peers.from_file(path)
    if from_file is None:
        from_file = sources.from_file(path, overridden, errors)
    notices += sources.unknown_variables(environment)
    explicit = sources.merge(sources.from_environment(environment, overridden, errors), from_peers)
    from_platform = sources.from_platform(environment, overridden | _overridden(explicit), errors)
    lower = sources.merge(explicit, from_platform, from_file)
    if "port" in from_platform:
        lower.setdefault("host", ANY_ADDRESS)  # the router of a platform is on another machine
    result = {name: value for name, value in lower.items() if name not in overridden} | command_line
    result = programs.complete(line, result, notices)
    for notice in notices:
        sys.stderr.write(f"towline serve: {notice}\n")
    _resolve(result, given.errors)
    try:
        config = ServerConfig(**result)
    except ConfigError as error:
        errors.append(str(error))
    if given.errors or errors:
        raise (CommandLineError if given.errors else ConfigError)("\n".join([*given.errors, *errors]))
    return config


def _resolve(result: dict[str, Any], errors: list[str]) -> None:
    """Finds the module of an application that is given as a file: `src/main.py:app`."""
    app = result.get(sources.APP)
    is_known = sources.APP in result and errors  # an error hides which word it is
    if not app and not result.get("static") and not is_known:
        errors.append("no application given: towline serve module:app")
    base = result.get("chdir") or "."
    if isinstance(app, str) and (wrong := problem(app, base)):
        errors.append(wrong)
    elif isinstance(app, str):
        directory, result[sources.APP] = located(app, base)
        if directory:
            result.setdefault("app_dir", directory)


def _overridden(command_line: dict[str, Any]) -> set[str]:
    """The fields that the command line gives, and the other ways to name an address, as `bind` for `--port`."""
    ways = {"bind", "uds", "fd"}
    found = set(command_line)
    if found & ways:
        return found | ways | {"host", "port"}
    return found | ways if found & {"host", "port"} else found
