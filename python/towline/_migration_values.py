"""Values of other servers' options in our spelling (`_migration.py` has the options)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

YEAR = 365 * 86400
CLOSE_AT_ONCE = "0.001"
MIB = 1024 * 1024


class Refused(Exception):
    """The option has no counterpart, and the service would be another one without it; the message has the reason."""


class Ignored(Exception):
    """The value has no counterpart, and the service can do without it; the message has the reason."""


Replace = Callable[[str], "str | tuple[str, ...]"]


def only(*values: str, otherwise: str, error: type[Exception] = Refused) -> Replace:
    """Takes these words, which change nothing here; another one is refused, or ignored."""

    def convert(value: str) -> str:
        if {*value.lower().replace(",", " ").split()} <= {*values}:
            return ""
        raise error(f"{value}: {otherwise}")

    return convert


def worker_class(value: str) -> str:
    name = value.rpartition(".")[2].removesuffix("Worker").lower()
    if any(part in value.lower() for part in ("gevent", "eventlet")):
        raise Refused(
            f"{value}: nothing is monkey-patched here: greenlets of the application would not run, and its code would meet "
            "threads; if it uses neither, give --threads N instead"
        )
    if name == "trio" or any(part in value.lower() for part in ("tornado", "aiohttp")):
        raise Refused(f"{value}: the application must be ASGI on asyncio, or WSGI")
    if name in ("sync", "gthread", "thread"):
        return "--interface=wsgi"
    if name in ("uvicorn", "uvicornh11", "asgi"):
        return "--interface=asgi"
    if name in ("asyncio", "uvloop"):
        return f"--loop={name}"
    raise Ignored(f"{value}: the interface is detected; what the class sets must be given as options")


def loop(value: str) -> str:
    if value in ("auto", "asyncio", "uvloop"):
        return f"--loop={value}"
    if value == "none":
        return "--loop=asyncio"
    raise Ignored(f"{value}: there is asyncio and uvloop; uvloop is used if it is installed")


def tls_version(value: str) -> str:
    known = {
        **dict.fromkeys(("2", "16", "17", "tls", "tls_server", "sslv23"), ""),
        "tlsv1_2": "1.2",
        "5": "1.2",
    }
    name = value.strip().lower().removeprefix("protocol_")
    if name not in known:
        raise Ignored(f"{value}: there is TLS 1.2 and 1.3 only; --ssl-min-version chooses the oldest")
    return f"--ssl-min-version={known[name]}" if known[name] else ""


def milliseconds(flag: str) -> Callable[[str], str]:
    def convert(value: str) -> str:
        try:
            return f"{flag}={int(value) / 1000:g}"
        except ValueError:
            raise Refused(f"expected milliseconds, not {value!r}") from None

    return convert


def http_protocols(value: str) -> str:
    versions = {name.strip() for name in value.lower().split(",")}
    if not versions <= {"h1", "h2"}:
        raise Refused(f"{value}: there is h1 and h2")
    return "" if len(versions) == 2 else "--no-http2" if versions == {"h1"} else "--no-http1"


HTTP_VALUES = {"auto": "", "1": "--no-http2", "2": "--no-http1", "h11": "--no-http2"}
HTTP_VALUES |= dict.fromkeys(("httptools", "zttp"), "--no-http2")


def http(value: str) -> str:
    if value not in HTTP_VALUES:
        raise Refused(f"{value}: each version has a switch: --http1, --http2, --http3 (--no-http1, ...)")
    return HTTP_VALUES[value]


def ciphers(value: str) -> str:
    if re.search(r"[+!@]", value) or value.upper() in ("TLSV1", "TLSV1.2", "DEFAULT", "ALL", "HIGH"):
        raise Ignored(
            f"{value}: groups of suites are not read; every suite here is forward-secret and authenticated"
        )
    return f"--ssl-ciphers={value}"


def root_path(value: str) -> str:
    path = value.strip("/")
    return f"--root-path=/{path}" if path else "--root-path="


def keep_alive(value: str) -> str:
    # There 0 closes a connection after its response.
    return f"--timeout-keep-alive={CLOSE_AT_ONCE if value.strip() in ('0', '0.0') else value}"


def request_line(value: str) -> str:
    # gunicorn's 0 means no limit.
    return f"--limit-request-line={MIB if value.strip() == '0' else value}"


def field_size(value: str) -> tuple[str, ...]:
    size = str(MIB) if value.strip() == "0" else value
    # All lines together must have room for the longest one.
    room = [f"--limit-request-head={int(size) + 32768}"] if size.isdigit() and int(size) > 16384 else []
    return (f"--limit-request-field-size={size}", *room)


def access_log_format(value: str) -> str:
    if re.search(r"%\((addr|time|dt_ms|method|path|query_string|protocol|scheme|status)\)", value):
        raise Ignored("the atoms are those of gunicorn (docs: observability.md), not of granian")
    return f"--access-log-format={value}"


def reload_files(value: str) -> tuple[str, ...]:
    found = ["--reload-include=*.py", "--reload-dir=."]
    for path in filter(None, value.split(os.pathsep)):
        folder, name = os.path.split(path)
        found += [f"--reload-include={name}", f"--reload-dir={folder or '.'}"]
    return tuple(found)


def endpoint(value: str) -> str:
    """An endpoint of Twisted: `tcp:8000:interface=0.0.0.0`, `ssl:443:privateKey=..:certKey=..`, `unix:/path`, `fd:...`"""
    kind, *parts = [part.replace("\0", ":") for part in value.replace("\\:", "\0").split(":")]
    named = dict(part.split("=", 1) for part in parts if "=" in part)
    first = next((part for part in parts if "=" not in part), named.get("port", named.get("address", "")))
    if kind == "unix":
        return f"--bind=unix:{first}"
    if kind not in ("tcp", "tcp6", "ssl") or named.keys() & {"extraCertChain", "caCertsDir"}:
        raise Refused(
            f"{value}: expected tcp:PORT, unix:PATH, or ssl:PORT:privateKey=PATH:certKey=PATH with the chain"
        )
    host = named.get("interface", "::" if kind == "tcp6" else "0.0.0.0")
    address = f"[{host}]:{first}" if ":" in host else f"{host}:{first}"
    key = named.get("privateKey", "server.pem")
    files = f"?certfile={named.get('certKey', key)}&keyfile={key}"
    return f"--bind=https://{address}{files}" if kind == "ssl" else f"--bind={address}"


def proxy_fields(value: str) -> str:
    names = {*value.replace(",", " ").lower().split()}
    found = [kind for kind in ("host", "port") if f"x-forwarded-{kind}" in names]
    if names == {"forwarded"}:
        return "--forwarded-headers=forwarded,host"
    if names <= {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port"}:
        return f"--forwarded-headers={','.join(['x-forwarded', *found])}"
    raise Refused(f"{value}: X-Forwarded-For, -Proto, -Host and -Port, or Forwarded")


def flask_cert(value: str) -> str:
    if value == "adhoc":
        raise Refused("adhoc: make a certificate for development (mkcert), and give its file")
    return f"--ssl-certfile={value}"


def unix_mode(value: str) -> str:
    is_octal = re.fullmatch("(0o)?[0-7]+", value)
    return f"--uds-permissions={0o777 & ~int(value, 8):o}" if is_octal else f"--umask={value}"
