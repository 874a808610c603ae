"""nginx, HAProxy and Caddy in front of a server, with the files of deploy/."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.programs import executable, free_port, listening

DEPLOY = Path(__file__).parents[2] / "deploy"
DEPLOYED_SOCKET = "/run/app/http.sock"
"""The application's socket in every file of deploy/."""


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """The text with each first string replaced, which must occur."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def _nginx(setup: Setup, upstream: str, port: int, folder: Path) -> list[str]:
    site = replaced(
        setup.text, (f"unix:{DEPLOYED_SOCKET}", upstream), ("listen 80;", f"listen 127.0.0.1:{port};")
    )
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    # A request that the proxy repeats would hide that the server has lost it.
    config.write_text(f"""
        {"user root;" if os.getuid() == 0 else ""}
        daemon off; pid {folder}/nginx.pid; error_log stderr;
        events {{ worker_connections 1024; }}
        http {{ access_log off; proxy_next_upstream off; {temporary} {site} }}""")
    return [executable("nginx"), "-e", "stderr", "-p", str(folder), "-c", str(config)]


def _haproxy(setup: Setup, upstream: str, port: int, folder: Path) -> list[str]:
    address = upstream.replace("unix:", "unix@")
    config = folder / "haproxy.cfg"
    bind = "bind :443" if "bind :443" in setup.text else "bind :80"
    config.write_text(
        replaced(setup.text, (f"unix@{DEPLOYED_SOCKET}", address), (bind, f"bind 127.0.0.1:{port}"))
    )
    return [executable("haproxy"), "-db", "-f", str(config)]


def _caddy(setup: Setup, upstream: str, port: int, folder: Path) -> list[str]:
    address = upstream.replace("unix:", "unix/")
    config = folder / "Caddyfile"
    config.write_text(
        "{\n\tadmin off\n\tauto_https off\n}\n"
        + replaced(
            setup.text, (f"unix/{DEPLOYED_SOCKET}", address), (":80 {", f":{port} {{\n\tbind 127.0.0.1")
        )
    )
    return [executable("caddy"), "run", "--adapter", "caddyfile", "--config", str(config)]


@dataclasses.dataclass(frozen=True)
class Setup:
    """A file of deploy/, with the change that its comment offers, and the options of a server behind it."""

    file: str
    command: Callable[[Setup, str, int, Path], list[str]]
    change: tuple[str, str] = ("", "")
    server_options: tuple[str, ...] = ()
    http_version: str = "1.1"
    """Between the proxy and the server."""
    is_go_http2: bool = False
    """Go's HTTP/2 client passes no WebSockets, and fails a request with a body that it repeats after GOAWAY."""

    @property
    def text(self) -> str:
        return replaced((DEPLOY / self.file).read_text(), self.change)

    @contextlib.contextmanager
    def running(self, upstream: str, folder: Path) -> Iterator[int]:
        """The proxy's port. `upstream`: `unix:PATH` or `HOST:PORT`."""
        port = free_port()
        command = self.command(self, upstream, port, folder)
        with listening(command, port, folder):
            yield port


PROXY_PROTOCOL = ("--proxy-protocol",)
SETUPS = {
    "nginx": Setup("nginx/app.conf", _nginx),
    "haproxy": Setup("haproxy/http.cfg", _haproxy),
    "haproxy-h2c": Setup(
        "haproxy/http.cfg",
        _haproxy,
        (f"unix@{DEPLOYED_SOCKET}", f"unix@{DEPLOYED_SOCKET} proto h2"),
        http_version="2",
    ),
    "haproxy-proxy-v1": Setup(
        "haproxy/tcp.cfg", _haproxy, (" send-proxy-v2 ", " send-proxy "), server_options=PROXY_PROTOCOL
    ),
    "haproxy-proxy-v2": Setup("haproxy/tcp.cfg", _haproxy, server_options=PROXY_PROTOCOL),
    "caddy": Setup("caddy/Caddyfile", _caddy),
    "caddy-h2c": Setup(
        "caddy/Caddyfile",
        _caddy,
        ("keepalive 60s", "keepalive 60s\n\t\t\tversions h2c"),
        http_version="2",
        is_go_http2=True,
    ),
}
