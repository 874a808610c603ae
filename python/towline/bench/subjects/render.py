"""From a definition and the settings of a start to the command line, the environment and the files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .installed import program
from .model import PLACEHOLDER, Server, Variant
from .ports import ANY_HOST, HOST

APPS = Path(__file__).resolve().parent.parent / "apps"
"""Folder of the fixture applications: `asgi.py`, `wsgi.py`."""

PADDING = "TOWLINE_BENCH_PADDING"


class NotSupported(Exception):
    """The definition does not support the scenario; the message is the reason for the skip."""


@dataclass(frozen=True)
class Settings:
    """Settings of a start."""

    interface: str | None = None
    """`asgi` or `wsgi`; None: the first of the definition."""
    app: str | None = None
    """`module:attribute`; None: the fixture application of that interface."""
    app_folder: Path = APPS
    cores: tuple[int, ...] | None = None
    """None: not pinned."""
    protocol: str | None = None
    """`h1`, `h2` or `h3`; None: the first of the definition."""
    tls: tuple[Path, Path] | None = None
    """Certificate and key, PEM."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """`requests_per_connection`, `concurrency`, and other limits of a definition."""
    host: str = HOST
    """Address on which the subject listens."""
    padding_bytes: int = 0
    """Bytes added to the environment, which move the stack: one unlucky layout must not affect every restart."""
    peers_bin: Path | None = None
    """A folder that is searched first for programs."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def reached_at(self) -> str:
        """Address of the bench's own requests."""
        return HOST if self.host == ANY_HOST else self.host


@dataclass(frozen=True)
class Rendered:
    """Everything needed for a start."""

    argv: list[str]
    shown: list[str]
    """The command without this run's port and this machine's paths: for the record."""
    env: dict[str, str]
    cwd: Path
    files: dict[str, str]
    options: dict[str, str]
    interface: str | None
    protocol: str


def render(server: Server, settings: Settings, *, host: str, port: int, folder: Path) -> Rendered:
    """Raises `NotSupported` if the definition lacks what `settings` need."""
    interface = settings.interface or (server.interfaces[0] if server.interfaces else None)
    if server.interfaces and interface not in server.interfaces:
        raise NotSupported(f"{server.name} has no {interface} interface")
    protocol = settings.protocol or server.protocols[0]
    if protocol not in server.protocols:
        raise NotSupported(f"{server.name} does not support {protocol}")
    chosen = _variants(server, settings, interface, protocol)
    given = {
        "python": sys.executable,
        "app": settings.app or f"{interface}:app",
        "app_folder": str(settings.app_folder),
        "interface": interface or "",
        "host": host,
        "port": str(port),
        "folder": str(folder),
    }
    if settings.tls is not None:
        given |= {"cert": str(settings.tls[0]), "key": str(settings.tls[1])}
    values = dict(server.values)
    extra: list[str] = []
    options = dict(server.options)
    for variant, own in chosen:
        values |= {name: _fill(text, {**given, **own}) for name, text in variant.values.items()}
        extra += [_fill(word, {**given, **own}) for word in variant.arguments]
        options |= {name: _fill(text, own) for name, text in variant.options.items()}
    known = {**given, **values}
    words = _words(server, extra)
    environment = {**server.env, **settings.env}
    return Rendered(
        argv=[
            _program(_fill(words[0], known), server, settings),
            *(_fill(word, known) for word in words[1:]),
        ],
        shown=_shown(words, known, settings),
        env={name: _fill(text, known) for name, text in environment.items()}
        | {PADDING: "x" * settings.padding_bytes, "PYTHONPATH": _python_path(settings, environment)},
        cwd=_cwd(server, settings),
        files={name: _fill(text, known) for name, text in server.files.items()},
        options=options,
        interface=interface if server.interfaces else None,
        protocol=protocol,
    )


def shown(server: Server, settings: Settings) -> list[str]:
    """The command line as a record shows it, without a start. Raises `NotSupported`."""
    return render(server, settings, host="127.0.0.1", port=0, folder=Path("FOLDER")).shown


def _variants(
    server: Server, settings: Settings, interface: str | None, protocol: str
) -> list[tuple[Variant, dict[str, str]]]:
    """The chosen variants in the order of their arguments; each with its own placeholders."""
    chosen: list[tuple[Variant, dict[str, str]]] = []
    if interface is not None and interface in server.variants:
        chosen.append((server.variants[interface], {}))
    if protocol in server.variants:
        chosen.append((server.variants[protocol], {}))
    if settings.tls is not None:
        if not server.tls:
            raise NotSupported(f"the definition of {server.name} does not support TLS")
        chosen.append((server.variants["tls"], {}))
    for name, value in settings.limits.items():
        if name not in server.limits:
            raise NotSupported(f"{server.name} has no option for {name.replace('_', ' ')}")
        limit = server.limits[name]
        named = Variant(limit.arguments, limit.values, {**limit.options, name.replace("_", " "): "{value}"})
        chosen.append((named, {"value": str(value)}))
    return chosen


def _words(server: Server, extra: list[str]) -> list[str]:
    """The command with the additions at {arguments}, or at its end."""
    words = list(server.command)
    place = words.index("{arguments}") if "{arguments}" in words else len(words)
    return [*words[:place], *extra, *words[place + 1 :]]


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Braces without a known name are kept: configuration files are full of them."""
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _program(word: str, server: Server, settings: Settings) -> str:
    """The full path if it is found; otherwise the word itself, so that the start reports what is missing."""
    found = program(word, server.base, settings.peers_bin)
    return str(found) if found is not None else word.removeprefix("{bin}/")


def _shown(words: list[str], known: Mapping[str, str], settings: Settings) -> list[str]:
    names = {
        "port": "PORT",
        "folder": "FOLDER",
        "python": "python",
        "cert": "CERT",
        "key": "KEY",
        "app_folder": "APPS",
    }
    shown = [_fill(word, {**known, **names}) for word in words]
    for name in ("folder", "cert", "key", "app_folder"):  # those that were filled in already
        if os.path.isabs(known.get(name, "")):  # a relative path such as "." would match within words
            shown = [word.replace(known[name], names[name]) for word in shown]
    return [re.sub(r"^(\{bin\}|.*)/", "", shown[0]), *(_homeless(word) for word in shown[1:])]


def _homeless(word: str) -> str:
    """A record has no path of one machine."""
    return re.sub(r"(?<![\w.])/(?:[\w.@+-]+/)+", ".../", word)


def _python_path(settings: Settings, env: Mapping[str, str]) -> str:
    before = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    # A subject starts in another folder: relative paths must remain valid.
    kept = [str(Path(one).resolve()) for one in before.split(os.pathsep) if one]
    return os.pathsep.join([str(settings.app_folder), *kept])


def _cwd(server: Server, settings: Settings) -> Path:
    if server.cwd is not None:
        return server.base / server.cwd
    return settings.app_folder if server.interfaces else server.base
