"""The subjects of a comparison, from `--app`, `--command`, `--git` and URLs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..._suggest import closest
from ...errors import ConfigError, UsageError
from ..api import Command
from ..runner.attached import AttachedSubject
from ..runner.servers import Binding, ServerSubject
from ..scenarios import PROTOCOLS
from ..subjects import Server, installed, servers
from ..subjects.attached import Address
from ..subjects.model import Variant
from .options import CompareOptions
from .requests import for_address

NAMED = re.compile(r"([\w.@-]+)=(.+)", re.DOTALL)
"""`NAME=...`; other characters, as in `./a=b`, belong to the value."""
USUAL = {"asgi": ("towline", "uvicorn", "granian"), "wsgi": ("towline", "gunicorn", "granian")}
USUAL_HTTP3 = {"asgi": ("towline", "hypercorn"), "wsgi": ("towline",)}
"""Servers of an application when none are named."""
OWN_PROGRAMS = frozenset({"native"})
"""Definitions with an interface that do not run the application."""
CHECK_TIMEOUT_S = 60.0


Make = Callable[[str, Binding], "ServerSubject | AttachedSubject"]


@dataclass(frozen=True)
class NamedSubject:
    """A subject of the command line; `make` binds it to the requests and the generator, under a name."""

    name: str
    make: Make
    running: bool = False
    """Somebody else started the server."""
    own_target: str | None = None
    """The path and query of its URL, if they are not those of the requests."""
    note: str | None = None
    """A remark for the result."""


def named(text: str) -> tuple[str | None, str]:
    """The name, if one is given, and the value of `[NAME=]VALUE`."""
    found = NAMED.fullmatch(text)
    return (found[1], found[2]) if found else (None, text)


def is_url(text: str) -> bool:
    """Whether an argument is `http://...`, `HOST:PORT...`, `:PORT...`, or one of these after `NAME=`."""
    value = named(text)[1]
    return bool(re.match(r"https?://|[\w.-]*:\d+(?:[/?]|$)|\[[0-9a-fA-F:.]+\]:\d+(?:[/?]|$)", value))


def unique(names: Sequence[str]) -> None:
    """Raises `ConfigError` for two identical names, which could not be told apart in the result."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two subjects are named {name!r}; give each a name of its own: NAME=...")


# --- running servers ------------------------------------------------------------------------------------


def attached(options: CompareOptions) -> list[NamedSubject]:
    """A subject for each URL. Raises `ConfigError` if nothing listens there."""
    over_udp = options.protocol == "h3"
    given = [
        (name, replace(Address.of(_whole_url(url, over_udp)), over_udp=over_udp))
        for name, url in map(named, options.urls)
    ]
    origins = [address.authority for _, address in given]
    found = []
    for name, address in given:
        if options.requests is not None and address.target != "/":
            raise ConfigError(
                f"{address.origin}{address.target}: the paths are those of --requests; give {address.origin}/"
            )
        if over_udp and address.scheme != "https":
            raise ConfigError(f"{address.origin}: HTTP/3 is always over TLS; give a URL of https")
        if why := address.connect():
            raise ConfigError(f"{address.origin}: {why}")
        own_path = options.requests is None and (address.target != "/" or options.path is None)
        own_target = address.target if own_path else None
        # The path is part of the name only where two URLs have the same origin.
        usual = address.authority + (address.target if origins.count(address.authority) > 1 else "")
        make = _attach(address, own_target)
        found.append(NamedSubject(name or usual, make, running=True, own_target=own_target))
    return found


def _whole_url(text: str, secure: bool) -> str:
    if "://" in text:
        return text
    return f"http{'s' if secure else ''}://{'127.0.0.1' if text.startswith(':') else ''}{text}"


def _attach(address: Address, own_target: str | None) -> Make:
    def make(name: str, binding: Binding) -> ServerSubject | AttachedSubject:
        scenario = for_address(binding.scenario, address, own_target)
        return AttachedSubject(name, address, replace(binding, scenario=scenario))

    return make


# --- command lines --------------------------------------------------------------------------------------


def commands(options: CompareOptions, folders: Mapping[str, Path] | None = None) -> list[NamedSubject]:
    """A subject for each command, or for the command in each of `folders`, by name."""
    found = []
    for text in options.command:
        name, line = named(text)
        for own_name, folder in (folders or {name or _program(line): Path.cwd()}).items():
            server = _command(own_name, line, options, folder)
            found.append(NamedSubject(own_name, _start(server, folder)))
    return found


def _program(line: str) -> str:
    """The name of a command that has none: its program, without folders."""
    words = line.split()
    return Path(words[0]).name if words else ""


def _command(name: str, line: str, options: CompareOptions, folder: Path) -> Server:
    if "{port}" not in line:
        raise ConfigError(
            f"command: {name}: write {{port}} where the port belongs, as in './server --port {{port}}' or "
            "'env PORT={port} ./server'; a server with a port of its own is started by you and given as a URL"
        )
    try:
        server = Command(line, ready=options.ready, cwd=folder, start_timeout_s=options.start_timeout).server(
            name
        )
    except (UsageError, ValueError) as error:
        raise ConfigError(
            f"command: {str(error) if str(error).startswith(name) else f'{name}: {error}'}"
        ) from None
    if options.protocol == "h3" and "{cert}" not in line:
        raise ConfigError(
            f"command: {name}: HTTP/3 is always over TLS; write {{cert}} and {{key}} where the PEM files belong"
        )
    server = replace(server, base=folder, protocols=PROTOCOLS, variants={"tls": Variant()})
    if missing := installed(server, options.peers_bin):
        raise ConfigError(f"command: {name}: {missing}")
    return server


def _start(server: Server, folder: Path, *, interface: str | None = None, app: str | None = None) -> Make:
    def make(name: str, binding: Binding) -> ServerSubject | AttachedSubject:
        own = replace(binding, interface=interface)
        return ServerSubject(replace(server, name=name), own, name=name, app=app, app_folder=folder)

    return make


# --- applications ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _App:
    """An application in a folder; `label` is its part of a subject's name."""

    label: str | None
    target: str
    folder: Path


def apps(options: CompareOptions, folders: Mapping[str, Path] | None = None) -> list[NamedSubject]:
    """A subject for each server of each application, or of the application in each of `folders`.

    Imports the application once, in a process of its own, to know its interface. Raises `ConfigError`.
    """
    given = []
    for text in options.app:
        label, target = named(text)
        if folders is not None:
            given += [_App(name, target, folder / options.app_dir) for name, folder in folders.items()]
        else:
            given.append(_App(label, target, options.app_dir.absolute()))
    found = []
    for app in given:
        interface = options.interface or interface_of(app.target, app.folder)
        many = len(given) > 1
        for shown, (server, note) in _servers(options, interface, only_one=many).items():
            if app.label is None:
                name = f"{app.target} {shown}" if many else shown
            else:
                name = f"{app.label} {shown}" if len(options.server) > 1 else app.label
            started = _without_settings(replace(server, start_timeout_s=options.start_timeout))
            found.append(
                NamedSubject(
                    name, _start(started, app.folder, interface=interface, app=app.target), note=note
                )
            )
    return found


def interface_of(target: str, folder: Path) -> str:
    """`asgi` or `wsgi`, as `towline serve --check` determines it. Raises `ConfigError` if it cannot be imported."""
    if not folder.is_dir():
        raise ConfigError(f"app-dir: {folder} is no folder")
    if not re.fullmatch(r"[\w.]+:[\w.]+", target):  # the form that every server takes
        raise ConfigError(f"app: {target!r} is not of the form module:attribute")
    command = [sys.executable, "-m", "towline", "serve", target, "--app-dir", str(folder), "--check"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"app: {target}: its import takes longer than {CHECK_TIMEOUT_S:g} s") from None
    ready = re.search(r"ready to serve \((\w+)\)", done.stdout)
    if done.returncode == 0 and ready is not None:
        return ready[1]
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
    # The message of `serve` is its first line; a traceback ends with the exception.
    first = next((line for line in lines if line.startswith("towline")), lines[-1])
    raise ConfigError(f"app: {re.sub(r'^towline( serve)?: ', '', first)}")


def check_servers(options: CompareOptions) -> None:
    """Raises `ConfigError` for a server that is not known, before anything is started."""
    known = servers(options.servers)
    for name in options.server:
        if not _candidates(name, known):
            usable = [one.name for one in known.values() if _runs_applications(one)]
            families = list(dict.fromkeys(word for one in usable for word in (one.partition("-")[0], one)))
            close = closest(name, families)
            hint = f"; did you mean {close}?" if close else f"; there is {', '.join(families)}"
            raise ConfigError(f"server: no server {name!r} for an application{hint}")


def _servers(
    options: CompareOptions, interface: str, *, only_one: bool
) -> dict[str, tuple[Server, str | None]]:
    """The servers by the names under which they are shown, with a note where a usual one is not installed."""
    known = servers(options.servers)
    usual = (USUAL_HTTP3 if options.protocol == "h3" else USUAL)[interface]
    chosen = options.server or (usual[:1] if only_one else usual)
    found: dict[str, tuple[Server, str | None]] = {}
    for name in chosen:
        able = [one for one in _candidates(name, known) if interface in one.interfaces]
        if not able:
            raise ConfigError(f"server: {name} has no {interface} interface")
        able = [one for one in able if options.protocol in one.protocols]
        if not able:
            raise ConfigError(f"server: {name} does not support {options.protocol}")
        missing = {one.name: installed(one, options.peers_bin) for one in able}
        there = next((one for one in able if missing[one.name] is None), None)
        if there is not None:
            first = missing[able[0].name]
            found[name] = there, f"{name} is {there.title or there.name}: {first}" if first else None
        elif options.server:
            raise ConfigError(f"server: {name}: {missing[able[0].name]}")
    return found


def _without_settings(server: Server) -> Server:
    """Towline without the options in the application's pyproject.toml, which other servers do not read."""
    if server.name != "towline":
        return server
    empty = {"towline.toml": ""}
    return replace(server, env={**server.env, "TOWLINE_CONFIG": "{folder}/towline.toml"}, files=empty)


def _candidates(name: str, known: Mapping[str, Server]) -> list[Server]:
    """The definition of this name, or those of a family: `uvicorn` for `uvicorn-httptools` and `uvicorn-h11`."""
    exact = known.get(name)
    if exact is not None:
        return [exact] if _runs_applications(exact) else []
    return [
        one
        for one in known.values()
        if one.name.startswith(f"{name}-") and _runs_applications(one) and one.scenarios is None
    ]


def _runs_applications(server: Server) -> bool:
    return bool(server.interfaces) and server.name not in OWN_PROGRAMS
