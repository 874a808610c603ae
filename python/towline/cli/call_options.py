"""The options of `towline get`, `towline post` etc. They have curl's names where curl has such an option."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .._options import Section, check_values, each, groups_of, number, option, period
from .help import Manual


def _pair(separator: str, example: str) -> kind.Parse:
    def parse(value: str) -> tuple[tuple[str, str], ...]:
        name, found, content = value.partition(separator)
        if not found or not name.strip():
            raise ValueError(f"expected {example}, not {value!r}")
        return ((name.strip(), content.strip() if separator == ":" else content),)

    return parse


def _resolve(value: str) -> tuple[tuple[str, str], ...]:
    host, _, rest = value.partition(":")
    port, _, address = rest.partition(":")
    if not (host and port.isdigit() and address):
        raise ValueError(f"expected HOST:PORT:ADDRESS, not {value!r}")
    return ((f"{host}:{port}", address.strip("[]")),)


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True)
class RequestOptions(Section, group="request", summary="the request"):
    header: tuple[tuple[str, str], ...] = option(
        (), "header to send; may be repeated", parse=_pair(":", "NAME:VALUE"), metavar="NAME:VALUE", aliases=("-H",),
        repeat=True)
    data: tuple[str, ...] = each(
        (), "the body; @FILE reads a file, @- standard input; several are joined with &", metavar="TEXT|@FILE",
        aliases=("-d",))
    json: str | None = option(None, "a JSON body, checked before it is sent", metavar="TEXT|@FILE")
    form: tuple[tuple[str, str], ...] = option(
        (), "a field of a form; NAME=@FILE sends the file (multipart)", parse=_pair("=", "NAME=VALUE"),
        metavar="NAME=VALUE", aliases=("-f",), repeat=True)
    request: str | None = option(
        None, "method to use instead of the command's", metavar="METHOD", aliases=("-X",))
    param: tuple[tuple[str, str], ...] = option(
        (), "parameter to add to the query of the URL", parse=_pair("=", "NAME=VALUE"), metavar="NAME=VALUE",
        aliases=("-p",), repeat=True)
    user: str | None = option(
        None, "basic authentication", metavar="NAME:PASSWORD", aliases=("-u",), secret=True)


@dataclasses.dataclass(frozen=True)
class ResponseOptions(Section, group="response", summary="output of the response"):
    output: str | None = option(
        None, "write the body to FILE, complete or not at all (-: standard output)", metavar="FILE",
        aliases=("-o",))
    include: bool = option(False, "print the head before the body", aliases=("-i",))
    verbose: bool = option(False, "print both heads on standard error, without secrets", aliases=("-v",))
    stream: bool = option(False, "print the body as it arrives, without buffering", aliases=("-N",))
    timings: bool = option(False, "print the timings on standard error")
    raw: bool = option(False, "do not indent JSON in a terminal")
    fail: bool = option(False, "treat a status of 400 or above as an error: no body, exit status 22")
    silent: bool = option(False, "show no progress bar", aliases=("-s",))


@dataclasses.dataclass(frozen=True)
class ConnectionOptions(Section, group="connection", summary="connection, redirects and timeouts"):
    follow: bool = option(False, "follow redirects", aliases=("-L",))
    max_redirects: int = number(20, "maximum number of redirects", least=None)
    timeout: float | None = period(None, "time for the whole call")
    connect_timeout: float = period(5.0, "time for name resolution, connection and TLS together")
    http1: bool = option(False, "only HTTP/1.1 (default: HTTP/2 if an https server selects it, else 1.1)")
    http2: bool = option(False, "only HTTP/2, with prior knowledge on http")
    http3: bool = option(False, "only HTTP/3")
    proxy: str | None = option(
        None, "http, https, socks5 or socks5h proxy (default: from HTTP_PROXY and the like)", metavar="URL",
        aliases=("-x",))
    unix_socket: str | None = option(None, "connect to this socket", metavar="PATH")
    resolve: tuple[tuple[str, str], ...] = option(
        (), "connect to ADDRESS for the host", parse=_resolve, metavar="HOST:PORT:ADDRESS", repeat=True)


@dataclasses.dataclass(frozen=True)
class TlsOptions(Section, group="tls", summary="certificates"):
    insecure: bool = option(False, "accept any certificate", aliases=("-k",))
    cacert: str | None = option(None, "trust these authorities only (PEM, file or directory)", metavar="PATH")
    cert: str | None = option(None, "client certificate (PEM)", metavar="PATH", aliases=("-E",))
    key: str | None = option(None, "private key of the certificate, if not in the same file", metavar="PATH")

# fmt: on


@dataclasses.dataclass(frozen=True)
class CallOptions(TlsOptions, ConnectionOptions, ResponseOptions, RequestOptions):
    """One call. Times are in seconds; None means "no limit" or "not given"."""

    def __post_init__(self) -> None:
        check_values(self)


_BODY = ("header", "data", "json", "form", "user")
_SHOWN = ("output", "include", "verbose", "stream", "timings", "follow", "timeout", "insecure")


_EXAMPLES = (
    "towline {name} https://example.org/items.json",
    "towline {name} -L --timings -H 'accept: text/html' example.org",
)
_EXAMPLES_OF_BODY = (
    'towline {name} --json \'{{"name": "x"}}\' :8000/items',
    "towline {name} -f title=x -f upload=@photo.jpg :8000/",
)


def manual(method: str) -> Manual:
    """The help pages of a command: all have the same options, the common ones differ."""
    name = method.lower()
    sent = _BODY if method in ("POST", "PUT", "PATCH") else ("header", "param", "user")
    return Manual(
        command=f"towline {name}",
        usage=f"towline {name} [OPTIONS] URL",
        config=CallOptions,
        groups=groups_of(CallOptions),
        common=(*sent, *_SHOWN),
        ending=(
            "URL without a scheme is http://; :8000/path is http://localhost:8000/path. JSON is indented in a",
            "terminal. Exit status: 0; 2 command line; 22 --fail; else curl's (6 DNS, 7 connect, 28 timeout, 60 TLS).",
        ),
        examples=tuple(
            each.format(name=name) for each in (_EXAMPLES_OF_BODY if sent is _BODY else _EXAMPLES)
        ),
    )
