"""The sources of option values: command line, environment, file, default, in this order.

A source is a dict from field names to the values that were given, so that merging is simple and a message can name
the source of a bad value. A value that the command line overrides is not read, and so not checked.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from .._options import Option, options_of
from .._suggest import closest
from ..config import ServerConfig
from ..errors import ConfigError

PREFIX = "TOWLINE_"
# A key of the file, and a variable, without an option.
APP = "app"
OF_THE_BENCH = PREFIX + "BENCH_"
SERVICE = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*|\w+_PORT=(tcp|udp|sctp)://.*"
)
"""Variables of Kubernetes, with their values."""
OTHER_VARIABLES = frozenset(PREFIX + name for name in ("APP", "CONFIG", "TRANSPORT", "STREAM_TRANSPORT"))


def without_services(
    environment: Mapping[str, str], prefixes: Iterable[str], notices: list[str]
) -> dict[str, str]:
    """The variables without those that Kubernetes makes for Services, whose names may begin like ours.

    There is a notice where one has the name of an option: TOWLINE_PORT for a Service called towline.
    """
    options = {prefix + "PORT" for prefix in prefixes}
    found = {}
    for variable, value in environment.items():
        if SERVICE.fullmatch(f"{variable}={value}") is None:
            found[variable] = value
        elif variable in options:
            notices.append(
                f"{variable}={value} is ignored: Kubernetes sets it for a Service of this name "
                "(`enableServiceLinks: false` in the Pod prevents it)"
            )
    return found


def from_environment(
    environment: Mapping[str, str], overridden: Container[str], errors: list[str]
) -> dict[str, Any]:
    """Read our own variables: `TOWLINE_LIMIT_REQUEST_LINE=4096`.

    An empty variable is ignored, and one of an `overridden` field. Messages about bad values go to `errors`.
    """
    found: dict[str, Any] = {}
    if environment.get(PREFIX + "APP"):
        found[APP] = environment[PREFIX + "APP"]
    for name, (option, _) in options_of(ServerConfig).items():
        variable = PREFIX + name.upper()
        if name not in overridden and environment.get(variable):
            with _collected(errors):
                found[name] = _parse_list(option, variable, environment[variable])
    return found


def from_platform(environment: Mapping[str, str], given: Container[str], errors: list[str]) -> dict[str, Any]:
    """Read variables that platforms and other servers share (`WEB_CONCURRENCY`, `PORT`), but for `given` fields."""
    found: dict[str, Any] = {}
    for name, (option, _) in options_of(ServerConfig).items():
        for variable in option.variables:
            if name not in given and environment.get(variable):
                with _collected(errors):
                    found[name] = _parse_list(option, variable, environment[variable])
    return found


@contextlib.contextmanager
def _collected(errors: list[str]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        errors.append(str(error))


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A notice for each variable with our prefix that is not an option, with the name that was probably meant."""
    known = {PREFIX + name.upper() for name in options_of(ServerConfig)} | OTHER_VARIABLES
    notices = []
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in known or variable.startswith(OF_THE_BENCH):
            continue
        close = closest(variable, known)
        hint = f"; did you mean {close}?" if close else ""
        notices.append(f"the variable {variable} is not an option and is ignored{hint}")
    return notices


def from_file(path: str | None, overridden: Container[str], errors: list[str]) -> dict[str, Any]:
    """Read the table `[tool.towline.serve]` of pyproject.toml, or of the file that `--config` names.

    In the latter the keys may also be at the top level. Without `--config`, a pyproject.toml in the
    current directory is read if it has the table.
    """
    if path is None:
        if not os.path.isfile("pyproject.toml"):
            return {}
        return _fields(_table(load("pyproject.toml"), top=False), "pyproject.toml", overridden, errors)
    return _fields(_table(load(path), top=True), path, overridden, errors)


def merge(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Merge sources; the first one with a value takes precedence."""
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        merged.update(source)
    return merged


def parse(option: Option, where: str, value: str) -> Any:
    try:
        return option.parse(value)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _parse_list(option: Option, where: str, value: str) -> Any:
    """Parse a value. The values of a repeatable option are separated by newlines or semicolons."""
    if not option.repeat:
        return parse(option, where, value)
    parts = [part.strip() for part in value.replace("\n", ";").split(";")]
    return tuple(member for part in parts if part for member in parse(option, where, part))


def load(path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as file:
            document: dict[str, Any] = tomllib.load(file)
            return document
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None


def _table(document: dict[str, Any], *, top: bool) -> dict[str, Any]:
    tool = document.get("tool", {})
    table = tool.get("towline", {}).get("serve") if isinstance(tool, dict) else None
    if table is None:
        table = document if top and "tool" not in document else {}
    return dict(table)


def _fields(
    table: Mapping[str, Any], path: str, overridden: Container[str], errors: list[str]
) -> dict[str, Any]:
    known = options_of(ServerConfig)
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = _field_name(key, known)
        if name is None:
            errors.append(f"{path}: unknown option {key!r}{_suggestion(key, known)}")
        elif name not in overridden:
            with _collected(errors):
                found[name] = value if name == APP else _from_toml(known[name][0], f"{path}: {key}", value)
    return found


def _field_name(key: str, known: Mapping[str, tuple[Option, Any]]) -> str | None:
    name = key.replace("-", "_")
    if name in known or name == APP:
        return name
    for field, (option, _) in known.items():
        if f"--{key.replace('_', '-')}" in (option.flag, *option.aliases):
            return field
    return None


def _suggestion(key: str, known: Iterable[str]) -> str:
    close = closest(key.replace("-", "_"), known)
    return f"; did you mean {close.replace('_', '-')!r}?" if close else ""


def _from_toml(option: Option, where: str, value: Any) -> Any:
    """Convert a TOML value. Strings are parsed like flags, so that both forms work."""
    if isinstance(value, str):
        return _parse_list(option, where, value)
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return tuple(member for item in value for member in _members(parse(option, where, item)))
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    separator = next((mark for mark in "=:" if mark in option.metavar), None)
    if isinstance(value, dict) and separator:
        # [tool.towline.serve.mount] "/admin" = "admin:app"
        return tuple(m for k, v in value.items() for m in parse(option, where, f"{k}{separator}{v}"))
    if value is True and option.const is not None:
        return option.const
    if isinstance(value, bool) and not option.switch:
        return parse(option, where, "true" if value else "false")
    return value


def _members(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
