"""The options of `towline get`, `towline post` etc. They have curl's names where curl has such an option."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .._options import above_zero, option, options_of
from .help import Manual

REQUEST = "request"
RESPONSE = "response"
CONNECTION = "connection"
TLS = "tls"

GROUPS: dict[str, str] = {
    REQUEST: "the request",
    RESPONSE: "output of the response",
    CONNECTION: "connection, redirects and timeouts",
    TLS: "certificates",
}


def _pair(separator: str, example: str) -> kind.Parse:
    def parse(value: str) -> tuple[tuple[str, str], ...]:
        name, found, content = value.partition(separator)
        if not found or not name.strip():
            raise ValueError(f"expected {example}, not {value!r}")
        return ((name.strip(), content.strip() if separator == ":" else content),)

    return parse


def _one(value: str) -> tuple[str, ...]:
    return (value,)


def _resolve(value: str) -> tuple[tuple[str, str], ...]:
    host, _, rest = value.partition(":")
    port, _, address = rest.partition(":")
    if not (host and port.isdigit() and address):
        raise ValueError(f"expected HOST:PORT:ADDRESS, not {value!r}")
    return ((f"{host}:{port}", address.strip("[]")),)


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class CallOptions:
    """One call. Times in seconds; None means "no limit" or "not given"."""

    header: tuple[tuple[str, str], ...] = option(
        (),
        "a header; may be repeated",
        group=REQUEST,
        parse=_pair(":", "NAME:VALUE"),
        metavar="NAME:VALUE",
        aliases=("-H",),
        repeat=True,
    )
    data: tuple[str, ...] = option(
        (),
        "the body; @FILE reads a file, @- standard input; several are joined with &",
        group=REQUEST,
        parse=_one,
        metavar="TEXT|@FILE",
        aliases=("-d",),
        repeat=True,
    )
    json: str | None = option(
        None, "a JSON body, checked before it is sent", group=REQUEST, metavar="TEXT|@FILE"
    )
    form: tuple[tuple[str, str], ...] = option(
        (),
        "a field of a form; NAME=@FILE sends the file (multipart)",
        group=REQUEST,
        parse=_pair("=", "NAME=VALUE"),
        metavar="NAME=VALUE",
        aliases=("-f",),
        repeat=True,
    )
    request: str | None = option(
        None,
        "method, instead of that of the command",
        group=REQUEST,
        metavar="METHOD",
        aliases=("-X",),
    )
    param: tuple[tuple[str, str], ...] = option(
        (),
        "a parameter added to the URL's query",
        group=REQUEST,
        parse=_pair("=", "NAME=VALUE"),
        metavar="NAME=VALUE",
        aliases=("-p",),
        repeat=True,
    )
    user: str | None = option(
        None, "basic authentication", group=REQUEST, metavar="NAME:PASSWORD", aliases=("-u",), secret=True
    )
    output: str | None = option(
        None,
        "write the body to FILE, complete or not at all (-: standard output)",
        group=RESPONSE,
        metavar="FILE",
        aliases=("-o",),
    )
    include: bool = option(False, "print the head before the body", group=RESPONSE, aliases=("-i",))
    verbose: bool = option(
        False, "print both heads on standard error, without secrets", group=RESPONSE, aliases=("-v",)
    )
    stream: bool = option(
        False, "print the body as it arrives, without buffering", group=RESPONSE, aliases=("-N",)
    )
    timings: bool = option(False, "print the timings on standard error", group=RESPONSE)
    raw: bool = option(False, "do not indent JSON in a terminal", group=RESPONSE)
    fail: bool = option(
        False, "treat a status of 400 or above as an error: no body, exit status 22", group=RESPONSE
    )
    silent: bool = option(False, "no progress bar", group=RESPONSE, aliases=("-s",))
    follow: bool = option(False, "follow redirects", group=CONNECTION, aliases=("-L",))
    max_redirects: int = option(
        20, "maximum number of redirects", group=CONNECTION, parse=kind.integer, metavar="N"
    )
    timeout: float | None = option(
        None, "for the whole call", group=CONNECTION, parse=kind.seconds, metavar="SECONDS", check=above_zero
    )
    connect_timeout: float = option(
        5.0,
        "for name resolution, connection and TLS together",
        group=CONNECTION,
        parse=kind.seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    http1: bool = option(
        False, "only HTTP/1.1 (default: HTTP/2 if an https server selects it, else 1.1)", group=CONNECTION
    )
    http2: bool = option(False, "only HTTP/2, with prior knowledge on http", group=CONNECTION)
    http3: bool = option(False, "only HTTP/3", group=CONNECTION)
    proxy: str | None = option(
        None,
        "http, https, socks5 or socks5h proxy (default: from HTTP_PROXY etc.)",
        group=CONNECTION,
        metavar="URL",
        aliases=("-x",),
    )
    unix_socket: str | None = option(None, "connect to this socket", group=CONNECTION, metavar="PATH")
    resolve: tuple[tuple[str, str], ...] = option(
        (),
        "use ADDRESS for the host",
        group=CONNECTION,
        parse=_resolve,
        metavar="HOST:PORT:ADDRESS",
        repeat=True,
    )
    insecure: bool = option(False, "accept any certificate", group=TLS, aliases=("-k",))
    cacert: str | None = option(
        None, "trust these authorities only (PEM, file or directory)", group=TLS, metavar="PATH"
    )
    cert: str | None = option(None, "client certificate (PEM)", group=TLS, metavar="PATH", aliases=("-E",))
    key: str | None = option(None, "its private key, if not in the same file", group=TLS, metavar="PATH")
    # fmt: on

    def __post_init__(self) -> None:
        for name, (described, _) in options_of(type(self)).items():
            if described.check is not None and getattr(self, name) is not None:
                described.check(name.replace("_", "-"), getattr(self, name))


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
        groups=GROUPS,
        common=(*sent, *_SHOWN),
        ending=(
            "URL without a scheme is http://; :8000/path is http://localhost:8000/path. JSON is indented in a",
            "terminal. Exit status: 0; 2 command line; 22 --fail; else curl's (6 DNS, 7 connect, 28 timeout, 60 TLS).",
        ),
        examples=tuple(
            each.format(name=name) for each in (_EXAMPLES_OF_BODY if sent is _BODY else _EXAMPLES)
        ),
    )
