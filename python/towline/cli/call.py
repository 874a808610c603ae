"""`towline get URL`, `towline post URL` etc.: one call of the client from the command line.

The exit statuses are those of curl:

    0 response received      6 name not resolved     23 output not writable      56 receive error
    2 command line           7 connection failed     26 input file not readable  60 certificate not trusted
    3 URL                   18 truncated response    28 timeout                  61 content decoding failed
    22 --fail and >= 400    35 TLS                   47 too many redirects       63 too large
    52 empty response       97 proxy                 55 send error              130 interrupted
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from .. import errors
from .call_options import CallOptions, manual
from .call_output import Output, show_timings, show_wire
from .option_parser import CommandLineError, OptionParser, joined, unknown

USAGE, HTTP_ERROR, WRITE_FAILED, READ_FAILED, INTERRUPTED = 2, 22, 23, 26, 130
# The first match applies.
STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.TimeoutError, 28),
    (errors.DNSError, 6),
    (errors.TLSError, 35),
    (errors.ConnectError, 7),
    (errors.WriteError, 55),
    (errors.ReadError, 56),
    (errors.ProxyError, 97),
    (errors.RemoteProtocolError, 1),
    (errors.TooManyRedirects, 47),
    (errors.DecompressionLimit, 63),
    (errors.DecodingError, 61),
    (errors.InvalidURL, 3),
    (errors.UsageError, USAGE),
)


class Unreadable(Exception):
    """A file to send cannot be read."""


def main(arguments: Sequence[str], method: str) -> int:
    """Make the call. Returns the exit status."""
    name = f"towline {method.lower()}"
    try:
        shown = manual(method).wanted(arguments)
    except CommandLineError as error:
        return _fail(f"{name}: {error}", USAGE)
    if shown is not None:
        sys.stdout.write(shown)
        return 0
    try:
        return Call(method, *parse(arguments, method)).run()
    except CommandLineError as error:
        return _fail(f"{name}: {error} ({name} --help explains the options)", USAGE)
    except Unreadable as error:
        return _fail(f"{name}: {error}", READ_FAILED)
    except errors.Error as error:
        return _fail(f"{name}: {_sentence(error)}", status_of(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has exited; without this Python reports it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRITE_FAILED
    except OSError as error:
        return _fail(f"{name}: cannot write {error.filename or 'the output'}: {error.strerror}", WRITE_FAILED)


def status_of(error: BaseException) -> int:
    """curl's exit status for an error."""
    if isinstance(error, errors.TLSError) and "certificate" in str(error).lower():
        return 60
    if isinstance(error, errors.ServerDisconnected):
        return 18 if error.phase == "body" else 52
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 1)


ADVICE: tuple[tuple[type[BaseException], str], ...] = (
    (errors.TotalTimeout, "--timeout allows more"),
    (errors.ConnectTimeout, "--connect-timeout allows more"),
    (errors.TooManyRedirects, "--max-redirects allows more"),
)


def _sentence(error: errors.Error) -> str:
    """The error in one line, with the option that may help."""
    text = " ".join(str(error).split()) or type(error).__name__
    advice = next((advice for kind, advice in ADVICE if isinstance(error, kind)), "")
    if status_of(error) == 60:
        advice = "--cacert names an authority to trust, --insecure accepts any certificate"
    return f"{text} ({advice})" if advice and advice.split()[0] not in text else text


def _fail(message: str, status: int) -> int:
    sys.stderr.write(message + "\n")
    return status


# --- the command line ---------------------------------------------------------------------------


def parse(arguments: Sequence[str], method: str) -> tuple[str, CallOptions]:
    """The URL and the options. Raises `CommandLineError`."""
    parser = OptionParser(f"towline {method.lower()}", CallOptions)
    parser.add_argument("url", nargs="?")
    parsed, others = parser.parse_known_args(list(arguments))
    if others and others[0].partition("=")[0] == "--http":
        raise CommandLineError("--http: each version has a flag: --http1, --http2 or --http3")
    if others:
        raise CommandLineError(unknown(others[0], CallOptions))
    given = joined(vars(parsed), CallOptions)
    url = given.pop("url", None)
    if not url:
        raise CommandLineError("no URL given")
    try:
        options = CallOptions(**given)
    except errors.ConfigError as error:
        raise CommandLineError(str(error)) from None
    bodies = [f"--{name}" for name in ("data", "json", "form") if getattr(options, name)]
    if len(bodies) > 1:
        raise CommandLineError(f"{' and '.join(bodies)} are exclusive: each gives the body")
    versions = [f"--{name}" for name in ("http1", "http2", "http3") if getattr(options, name)]
    if len(versions) > 1:
        raise CommandLineError(f"{' and '.join(versions)} are exclusive: each allows one version only")
    if options.key and not options.cert:
        raise CommandLineError("--key: needs --cert, the certificate it belongs to")
    return _whole_url(url), options


def _whole_url(url: str) -> str:
    if url.startswith(":") and not url.startswith("::"):
        return f"http://localhost{url}"
    return url if "://" in url else f"http://{url}"


# --- the call -----------------------------------------------------------------------------------


class Call:
    """Makes the call with the options and shows the response."""

    def __init__(self, method: str, url: str, options: CallOptions) -> None:
        self.method, self.url, self.options = options.request or method, url, options

    def run(self) -> int:
        from ..client.client import Client

        sent = self._body()
        with Client(**self._client_options()) as client:
            output = Output(self.options)
            with client.stream(self.method, self.url, **self._request_options(), **sent) as response:
                if self.options.verbose:
                    show_wire(response)
                if self.options.fail and response.status_code >= 400:
                    return _fail(
                        f"towline {self.method.lower()}: {response.status_code} {response.reason_phrase}"
                        f" from {response.url.host} (without --fail the body is printed)",
                        HTTP_ERROR,
                    )
                output.show(response)
            if self.options.timings:
                show_timings(response)
        return 0

    def _client_options(self) -> dict[str, Any]:
        from ..client.options import TLS, Timeout

        options = self.options
        verify = TLS(
            verify=not options.insecure,
            trust=options.cacert or "system",
            cert=options.cert,
            key=options.key,
        )
        return {
            "verify": verify,
            "timeout": Timeout(connect=options.connect_timeout, total=options.timeout),
            "follow_redirects": options.follow,
            "max_redirects": options.max_redirects,
            "resolve": dict(options.resolve),
            "http1": options.http1 or not (options.http2 or options.http3),
            "http2": options.http2 or not (options.http1 or options.http3),
            "http3": options.http3,
            **({"proxy": _whole_url(options.proxy)} if options.proxy else {}),
            **({"uds": options.unix_socket} if options.unix_socket else {}),
        }

    def _request_options(self) -> dict[str, Any]:
        given: dict[str, Any] = {"headers": list(self.options.header)}
        names = {name.lower() for name, _ in self.options.header}
        for name, value in self._implied_headers().items():
            if name not in names:
                given["headers"].append((name, value))
        if self.options.param:
            given["params"] = list(self.options.param)
        if self.options.user is not None:
            name, _, password = self.options.user.partition(":")
            given["auth"] = (name, password)
        return given

    def _implied_headers(self) -> Mapping[str, str]:
        if self.options.json is not None:
            return {"content-type": "application/json", "accept": "application/json"}
        if self.options.data:
            return {"content-type": "application/x-www-form-urlencoded"}
        return {}

    def _body(self) -> dict[str, Any]:
        options = self.options
        if options.json is not None:
            return {"content": _json_body(options.json)}
        if options.data:
            if len(options.data) == 1 and options.data[0].startswith("@"):
                return {"content": _opened(options.data[0][1:])}
            return {"content": b"&".join(_contents(part) for part in options.data)}
        if options.form:
            files = [(name, _opened(value[1:])) for name, value in options.form if value.startswith("@")]
            fields: dict[str, Any] = {}
            for name, value in options.form:
                if not value.startswith("@"):
                    fields.setdefault(name, []).append(value)
            return {"data": fields, **({"files": files} if files else {})}
        return {}


def _json_body(text: str) -> bytes:
    body = _contents(text)
    try:
        json.loads(body)
    except ValueError as error:
        raise CommandLineError(f"--json: not JSON: {error}") from None
    return body


def _contents(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    with _opened(text[1:]) as file:
        return file.read()


def _opened(path: str) -> BinaryIO:
    if path == "-":
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}") from None
