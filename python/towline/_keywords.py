"""Keyword arguments of `towline.serve` and `towline.run`: ours, and those of `uvicorn.run`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from . import _migration as migration
from . import _options as kind
from ._options import Option, options_of
from ._suggest import closest
from ._values import LOG_LEVELS, cert_reqs
from .config import ServerConfig
from .errors import ConfigError

OPTIONAL = (kind.optional_integer, kind.optional_seconds)
"""Parsers of options for which None is a value; for others it means the default, as in uvicorn."""
# uvicorn's plural names of repeatable options.
RENAMED = {
    "reload_dirs": "reload_dir",
    "reload_includes": "reload_include",
    "reload_excludes": "reload_exclude",
}
PEER_VALUES = migration.VALUES.keys() | migration.REFUSED_VALUES.keys()
WITHOUT_FLAG = {"ssl_context_factory": "TLS is configured by files: ssl_certfile and the other ssl options"}


def fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ServerConfig` for keyword arguments. Raises `ConfigError`, naming the argument."""
    known = options_of(ServerConfig)
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = RENAMED.get(name, name)
        flag = f"--{own.replace('_', '-')}"
        if own not in known:
            found.update(_of_peer(name, flag, value))
        elif isinstance(value, (str, bool)) and (
            flag in migration.ROWS or (flag, str(value).lower()) in PEER_VALUES
        ):
            found.update(_parsed(f"{flag}={value}", name))
        elif value is not None or known[own][1] is None or known[own][0].parse in OPTIONAL:
            try:
                found[own] = _adapted(known[own][0], value)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
    return found


def _adapted(option: Option, value: Any) -> Any:
    """A value in the types that uvicorn takes: paths, numbers as text, True for a path or list, None for the default,
    text headers, numbers of the modules ssl and logging."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):
        return option.parse(value.lower() if option.choices else value)
    if option.parse is cert_reqs and isinstance(value, int):
        return option.parse(str(int(value)))
    if "critical" in option.choices and isinstance(value, int):
        return next((name for name, level in LOG_LEVELS.items() if level >= value), "critical")
    if option.const is not None and isinstance(value, bool):
        off: Any = () if isinstance(option.const, tuple) else option.off
        return option.const if value else off
    if option.flag == "--header" and isinstance(value, (list, tuple)):
        return tuple(tuple(_latin(part) for part in pair) for pair in value)
    if option.repeat and isinstance(value, (list, tuple)):
        return tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in value)
    return value


def _latin(part: Any) -> Any:
    return part.encode("latin-1") if isinstance(part, str) else part


def _of_peer(name: str, flag: str, value: Any) -> dict[str, Any]:
    """An argument that is an option of another server only."""
    if name in WITHOUT_FLAG:
        if value is not None:
            raise ConfigError(f"{name}: {WITHOUT_FLAG[name]}")
        return {}
    if flag not in migration.ROWS:
        close = closest(name, options_of(ServerConfig))
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"{name}: there is no such option{hint}")
    row = migration.ROWS[flag]
    if value is None or (not row.takes_value and value is False):
        return {}
    return _parsed(f"{flag}={value}" if row.takes_value else flag, name)


def _parsed(argument: str, name: str) -> dict[str, Any]:
    """An argument of the command line as fields."""
    by_flag = {
        option.flag or f"--{field.replace('_', '-')}": (field, option)
        for field, (option, _) in options_of(ServerConfig).items()
    }
    found: dict[str, Any] = {}
    try:
        translation = migration.translate([argument])
        for line in translation.errors:
            raise ConfigError(f"{name}: {line.removeprefix(argument.partition('=')[0]).lstrip(': ')}")
        for line in translation.warnings:
            warnings.warn(f"{name}: {line.partition(': ')[2]}", stacklevel=5)
        for ours in translation.arguments:
            flag, has_value, value = ours.partition("=")
            negative = flag.startswith("--no-") and flag not in by_flag
            field, option = by_flag[f"--{flag.removeprefix('--no-')}" if negative else flag]
            found[field] = option.parse(value) if has_value else not negative
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    return found
