"""The options of `towline get`, `post` and their like. Names are curl's where curl has one."""

from __future__ import annotations

import dataclasses

from .. import _options as kind
from .._options import above_zero, option, options_of
from .help import Manual

REQUEST = "request"
ANSWER = "answer"
CONNECTION = "connection"
TLS = "tls"

GROUPS: dict[str, str] = {
    REQUEST: "what is sent",
    ANSWER: "what is shown and kept of the answer",
    CONNECTION: "how it gets there, and how long it may take",
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


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """One call. Times in seconds; None means "no limit" or "not given"."""

    header: tuple[tuple[str, str], ...] = option(
        (), "a field of the request; repeat it for more", group=REQUEST,
        parse=_pair(":", "NAME:VALUE"), metavar="NAME:VALUE", aliases=("-H",), repeat=True,
    )  # fmt: skip
    data: tuple[str, ...] = option(
        (), "the body; @FILE: what the file holds, @-: standard input; several are joined with &", group=REQUEST,
        parse=_one, metavar="TEXT|@FILE", aliases=("-d",), repeat=True,
    )  # fmt: skip
    json: str | None = option(
        None, "a JSON body, checked before it is sent", group=REQUEST, metavar="TEXT|@FILE"
    )
    form: tuple[tuple[str, str], ...] = option(
        (), "a field of a form; NAME=@FILE sends the file (multipart)", group=REQUEST,
        parse=_pair("=", "NAME=VALUE"), metavar="NAME=VALUE", aliases=("-f",), repeat=True,
    )  # fmt: skip
    param: tuple[tuple[str, str], ...] = option(
        (), "a parameter added to the URL's query", group=REQUEST,
        parse=_pair("=", "NAME=VALUE"), metavar="NAME=VALUE", aliases=("-p",), repeat=True,
    )  # fmt: skip
    user: str | None = option(
        None, "basic authentication", group=REQUEST, metavar="NAME:PASSWORD", aliases=("-u",), secret=True
    )
    output: str | None = option(
        None, "write the body to FILE, complete or not at all (-: standard output)", group=ANSWER,
        metavar="FILE", aliases=("-o",),
    )  # fmt: skip
    include: bool = option(False, "show the head before the body", group=ANSWER, aliases=("-i",))
    verbose: bool = option(
        False, "show both heads on standard error, without secrets", group=ANSWER, aliases=("-v",)
    )
    stream: bool = option(
        False, "show each piece, line or event the moment it comes", group=ANSWER, aliases=("-N",)
    )
    timings: bool = option(False, "show where the time went, on standard error", group=ANSWER)
    raw: bool = option(False, "JSON as it came, also in a terminal", group=ANSWER)
    fail: bool = option(
        False, "an answer of 400 and above is an error: no body, exit status 22", group=ANSWER
    )
    silent: bool = option(False, "no progress bar", group=ANSWER, aliases=("-s",))
    follow: bool = option(False, "follow redirects", group=CONNECTION, aliases=("-L",))
    max_redirects: int = option(
        20, "redirects followed in a row", group=CONNECTION, parse=kind.integer, metavar="N"
    )
    timeout: float | None = option(
        None, "for the whole call", group=CONNECTION, parse=kind.seconds, metavar="SECONDS", check=above_zero
    )
    connect_timeout: float = option(
        5.0, "for names, connection and TLS together", group=CONNECTION,
        parse=kind.seconds, metavar="SECONDS", check=above_zero,
    )  # fmt: skip
    http: str = option(
        "auto", "auto: HTTP/2 where an https server chooses it, else 1.1; 2: nothing else, on http without asking",
        group=CONNECTION, choices=("auto", "1.1", "2"),
    )  # fmt: skip
    proxy: str | None = option(
        None, "http, https, socks5 or socks5h (default: HTTP_PROXY and its like)", group=CONNECTION,
        metavar="URL", aliases=("-x",),
    )  # fmt: skip
    unix_socket: str | None = option(None, "connect to this socket", group=CONNECTION, metavar="PATH")
    resolve: tuple[tuple[str, str], ...] = option(
        (), "take ADDRESS for the name", group=CONNECTION,
        parse=_resolve, metavar="HOST:PORT:ADDRESS", repeat=True,
    )  # fmt: skip
    insecure: bool = option(False, "accept any certificate", group=TLS, aliases=("-k",))
    cacert: str | None = option(
        None, "trust these authorities only (PEM, file or directory)", group=TLS, metavar="PATH"
    )
    cert: str | None = option(None, "our own certificate (PEM)", group=TLS, metavar="PATH", aliases=("-E",))
    key: str | None = option(None, "its key, where it stands apart", group=TLS, metavar="PATH")

    def __post_init__(self) -> None:
        for name, (described, _) in options_of(type(self)).items():
            if described.check is not None and getattr(self, name) is not None:
                described.check(name.replace("_", "-"), getattr(self, name))


_BODY = ("header", "data", "json", "form", "user")
_SHOWN = ("output", "include", "verbose", "stream", "timings", "follow", "timeout", "insecure")


def manual(method: str) -> Manual:
    """The pages of `towline get` and so on: one set of options, other everyday ones."""
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
            "terminal. Exit status: 0; 2 command line; 22 --fail; else curl's (6 name, 7 connect, 28 time, 60 TLS).",
        ),
    )
