"""`towline serve module:app`: the configuration from all sources, then the server.

Exit statuses: 0 after a normal stop, 2 for invalid options (of the command line, a variable or a file), 3 if the start
failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from ..config import GROUPS, ServerConfig
from ..errors import ConfigError, Error
from . import peer_settings, sources
from .help import Manual
from .option_parser import CommandLineError
from .serve_arguments import ACTIONS, parse
from .targets import problem

INVALID, STARTUP_FAILED = 2, 3
ANY_ADDRESS = "0.0.0.0"
MANUAL = Manual(
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


def main(arguments: Sequence[str]) -> int:
    """Run the server until it is stopped. Returns the exit status."""
    try:
        shown = MANUAL.wanted(arguments)
        if shown is not None:
            sys.stdout.write(shown)
            return 0
        given = parse(arguments)
        actions = {name for name in ACTIONS if given.pop(name, False)}
        config = merged(given, os.environ)
    except (CommandLineError, ConfigError) as error:
        sys.stderr.write(f"towline serve: {error}\n")
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
        sys.stderr.write(f"towline: {error}\n")
        return STARTUP_FAILED


def configure(arguments: Sequence[str], environment: Any) -> ServerConfig:
    """The configuration from command line, environment and file.

    Raises `CommandLineError` for an invalid command line and `ConfigError` for an invalid value.
    """
    given = parse(arguments)
    for action in ACTIONS:
        given.pop(action, None)
    return merged(given, environment)


def merged(command_line: dict[str, Any], environment: Any) -> ServerConfig:
    """The configuration from the fields of the command line and the other sources."""
    notices: list[str] = []
    environment = sources.without_services(environment, (sources.PREFIX, *peer_settings.PREFIXES), notices)
    path = command_line.pop("config", None) or environment.get(sources.PREFIX + "CONFIG")
    overridden = _overridden(command_line)
    from_peers = peer_settings.from_environment(environment, notices)
    path = path or from_peers.pop("config", None)
    if peer_settings.is_python(path):
        from_file = peer_settings.from_python(path, notices)
    else:
        from_file = sources.from_file(path, overridden)
    notices += sources.unknown_variables(environment)
    explicit = sources.merge(sources.from_environment(environment, overridden), from_peers)
    from_platform = sources.from_platform(environment, overridden | _overridden(explicit))
    lower = sources.merge(explicit, from_platform, from_file)
    if "port" in from_platform:
        lower.setdefault("host", ANY_ADDRESS)  # the router of a platform is on another machine
    result = {name: value for name, value in lower.items() if name not in overridden} | command_line
    for notice in notices:
        sys.stderr.write(f"towline serve: {notice}\n")
    app = result.get(sources.APP)
    if not app and not result.get("static"):
        raise CommandLineError("no application given: towline serve module:app")
    if isinstance(app, str) and (wrong := problem(app)):
        raise CommandLineError(wrong)
    return ServerConfig(**result)


def _overridden(command_line: dict[str, Any]) -> set[str]:
    """The fields that the command line gives, and the other ways to name an address, as `bind` for `--port`."""
    ways = {"bind", "uds", "fd"}
    found = set(command_line)
    if found & ways:
        return found | ways | {"host", "port"}
    return found | ways if found & {"host", "port"} else found
