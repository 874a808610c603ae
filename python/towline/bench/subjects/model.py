"""The model of a server subject, read from TOML: the built-in servers.toml and users' files of the same form."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..._suggest import closest
from ...errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUILT_IN = Path(__file__).with_name("servers.toml")

INTERFACES = ("asgi", "wsgi")
PROTOCOLS = ("h1", "h2", "h3")
CHOICES = (*INTERFACES, *PROTOCOLS, "tls")
"""Choices that may add to a command."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
GIVEN = frozenset(
    {
        "python",
        "bin",
        "app",
        "app_folder",
        "interface",
        "host",
        "port",
        "cert",
        "key",
        "folder",
        "arguments",
        "value",
    }
)
"""Placeholders of all definitions; `values` adds a definition's own."""


class ServersFileError(ConfigError):
    """A file of subjects is invalid; one line says where and why."""


@dataclass(frozen=True)
class Variant:
    """Additions of a choice (an interface, a protocol, TLS, a limit) to the definition."""

    arguments: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    """Other values of placeholders."""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready:
    """The request that must succeed before the subject counts as started."""

    path: str = "/"
    status: int | None = None
    """None: any below 500."""


@dataclass(frozen=True)
class Server:
    """One definition. The command has placeholders: see docs/subjects.md."""

    name: str
    command: tuple[str, ...]
    title: str = ""
    interfaces: tuple[str, ...] = ()
    """Interfaces of the fixture application that it runs; empty: it has its own, or none."""
    scenarios: tuple[str, ...] | None = None
    """Scenarios that it supports; None: all of its interfaces."""
    protocols: tuple[str, ...] = ("h1",)
    """`h2`: in plain text by prior knowledge and, with TLS, by ALPN. `h3`: with TLS, on the same port of UDP; the
    readiness request uses TCP."""
    packages: tuple[str, ...] = ()
    """Python distributions it needs; their versions are recorded."""
    optional: tuple[str, ...] = ()
    """Distributions whose versions are recorded if they are installed."""
    version: tuple[str, ...] = ()
    """A command that prints the version of a program that is not a Python package."""
    port: int | None = None
    """A fixed port; None: a free one for each start."""
    ready: Ready = Ready()
    start_timeout_s: float = 20.0
    grace_s: float = 5.0
    """From SIGTERM to SIGKILL."""
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into {folder} before the start, with their placeholders filled in."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that differ from the subject's own defaults, and why."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Additions by choice: `asgi`, `wsgi`, `h1`, `h2`, `h3`, `tls`."""
    limits: Mapping[str, Variant] = field(default_factory=dict)
    """By the limit's name; {value} is the figure. Limits that are missing are not supported."""
    base: Path = BUILT_IN.parent
    """Folder of its file: a relative `cwd` and `./program` start there."""

    @property
    def tls(self) -> bool:
        return "tls" in self.variants

    def interface_for(self, wanted: tuple[str, ...]) -> str | None:
        """The first of its interfaces that the scenario has; None if it runs no fixture application."""
        return next((one for one in self.interfaces if one in wanted), None)

    def cannot(
        self,
        scenario: str,
        interfaces: tuple[str, ...] = INTERFACES,
        protocols: tuple[str, ...] = ("h1",),
        limits: Mapping[str, int] | None = None,
        *,
        tls: bool = False,
    ) -> str | None:
        """Why this scenario is skipped for this subject; None when it can run."""
        if self.interfaces and self.interface_for(interfaces) is None:
            return f"has no {' or '.join(interfaces)} interface"
        if self.scenarios is not None and scenario not in self.scenarios:
            return "its configuration does not support this scenario"
        if not set(protocols) & set(self.protocols):
            return f"does not support {' or '.join(protocols)}"
        if tls and not self.tls:
            return "its definition does not support TLS"
        for limit in limits or {}:
            if limit not in self.limits:
                return f"has no option for {limit.replace('_', ' ')}"
        return None


def servers(extra: Path | None = None) -> dict[str, Server]:
    """The built-in definitions, then those of `extra`, which may replace them by name."""
    found = load_servers(BUILT_IN)
    if extra is not None:
        found |= load_servers(extra)
    return found


def load_servers(path: Path) -> dict[str, Server]:
    """The definitions of one file. Raises `ServersFileError`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ServersFileError(f"{path.name}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ServersFileError(f"{path.name}: not TOML: {str(error).splitlines()[0]}") from None
    if not tables:
        raise ServersFileError(f"{path.name}: no subject in it; write [name] and command = ...")
    built_in = tables if path == BUILT_IN else tomllib.loads(BUILT_IN.read_text(encoding="utf-8"))
    return {name: _server(path, name, _whole(path, name, table, built_in)) for name, table in tables.items()}


# --- one table ------------------------------------------------------------------------------------------

KEYS = {one.name for one in fields(Server)} - {"name", "variants", "base"} | {*CHOICES}


def _whole(path: Path, name: str, table: Any, built_in: dict[str, Any]) -> Any:
    """The table with the keys of the built-in server that `like` names, where it has none of its own."""
    if not isinstance(table, dict) or "like" not in table:
        return table
    own = dict(table)
    if (like := own.pop("like")) not in built_in:
        raise ServersFileError(f"{path.name}: [{name}]: like: there is no built-in server {like!r}")
    return {**built_in[like], **own}


def _server(path: Path, name: str, table: Any) -> Server:
    def wrong(what: str) -> ServersFileError:
        return ServersFileError(f"{path.name}: [{name}]: {what}")

    if not isinstance(table, dict):
        raise wrong("is no table; a subject is [name] with command = ... below it")
    for key in table.keys() - KEYS:
        near = closest(key, {*KEYS, "like"})
        raise wrong(f"unknown key {key!r}" + (f"; did you mean {near!r}?" if near else ""))
    if "command" not in table:
        raise wrong("has no command")
    try:
        server = Server(name, base=path.parent.resolve(), **_values(table))
    except (TypeError, ValueError) as error:
        raise wrong(str(error)) from None
    for problem in _problems(server):
        raise wrong(problem)
    return server


def _values(table: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "variants": {key: _variant(key, table[key]) for key in CHOICES if key in table},
        "limits": {key: _variant(key, one) for key, one in _table("limits", table.get("limits", {})).items()},
    }
    for key in table.keys() - {*CHOICES, "limits"}:
        found[key] = _READERS.get(key, _text)(key, table[key])
    return found


def _variant(key: str, given: Any) -> Variant:
    if isinstance(given, list):
        return Variant(_words(key, given))
    table = _table(key, given)
    if unknown := table.keys() - {"arguments", "values", "options"}:
        raise ValueError(f"{key}: unknown key {sorted(unknown)[0]!r}; it takes arguments, values, options")
    return Variant(
        _words(key, table.get("arguments", [])),
        _texts(key, table.get("values", {})),
        _texts(key, table.get("options", {})),
    )


def _table(key: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{key} must be a table")
    return given


def _words(key: str, given: Any) -> tuple[str, ...]:
    """A list, or a command line, which is not run by a shell."""
    if isinstance(given, str):
        given = shlex.split(given)
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"{key} must be a string or a list of strings")
    return tuple(given)


def _texts(key: str, given: Any) -> dict[str, str]:
    found = _table(key, given)
    for name, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"{key}.{name} must be a string")
    return found


def _files(key: str, given: Any) -> dict[str, str]:
    """A text, or { repeat = "x", count = N } for a large one."""
    found = {}
    for name, value in _table(key, given).items():
        if isinstance(value, dict) and value.keys() == {"repeat", "count"} and type(value["count"]) is int:
            if value["count"] * len(_text(name, value["repeat"])) > 64 << 20:
                raise ValueError(f"{key}.{name} is larger than 64 MiB")
            value = value["repeat"] * value["count"]
        found[name] = value
    return _texts(key, found)


def _text(key: str, given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{key} must be a string")
    return given


def _seconds(key: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= 600:
        raise ValueError(f"{key} must be a number of seconds up to 600")
    return float(given)


def _port(key: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given < 65536:
        raise ValueError(f"{key} must be a number from 1 to 65535; leave it out for a free one")
    return given


def _ready(key: str, given: Any) -> Ready:
    if isinstance(given, str):
        given = {"path": given}
    table = _table(key, given)
    path, status = table.get("path", "/"), table.get("status")
    if unknown := table.keys() - {"path", "status"}:
        raise ValueError(f"{key}: unknown key {sorted(unknown)[0]!r}; it takes path and status")
    if not isinstance(path, str) or not re.fullmatch(r"/[!-~]*", path):
        raise ValueError(f"{key} must be a path that starts with /, percent-encoded")
    if status is not None and (type(status) is not int or not 200 <= status <= 599):
        raise ValueError(f"{key}.status must be a status from 200 to 599")
    return Ready(path, status)


_READERS = {
    **dict.fromkeys(
        ("command", "interfaces", "scenarios", "protocols", "packages", "optional", "version"), _words
    ),
    **dict.fromkeys(("env", "values", "options"), _texts),
    "files": _files,
    **dict.fromkeys(("start_timeout_s", "grace_s"), _seconds),
    "port": _port,
    "ready": _ready,
}


def _problems(server: Server) -> Iterator[str]:
    if not server.command:
        yield "command is empty"
    for interface in server.interfaces:
        if interface not in INTERFACES:
            yield f"interface {interface!r} is none of {', '.join(INTERFACES)}"
    for protocol in server.protocols:
        if protocol not in PROTOCOLS:
            yield f"protocol {protocol!r} is none of {', '.join(PROTOCOLS)}"
    if not server.protocols:
        yield "protocols is empty"
    for name in server.files:
        if Path(name).name != name:
            yield f"files: {name!r} must be a plain name: it is written into {{folder}}"
    variants = [*server.variants.values(), *server.limits.values()]
    texts = [*server.command, *server.env.values(), *(word for one in variants for word in one.arguments)]
    used = {word for text in texts for word in PLACEHOLDER.findall(text)}
    for word in sorted(used - GIVEN - server.values.keys()):
        yield f"unknown placeholder {{{word}}}; there are {', '.join(sorted(GIVEN | server.values.keys()))}"
    if (
        server.port is None
        and not used & {"port"}
        and not any("{port}" in one for one in server.files.values())
    ):
        yield "no listen address: use {port} in command or env, or give port = NUMBER"
    if "app" in used and not server.interfaces:
        yield '{app} is the fixture application: give interfaces = ["asgi"] or ["wsgi"]'
