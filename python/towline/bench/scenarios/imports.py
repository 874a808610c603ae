"""Scenarios from `curl` command lines and from target files of vegeta.

They do not define the response: any 2xx or 3xx passes, with any body. Unknown options that may affect the request are
errors.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from .model import Body, Expect, Fields, Request, Scenario
from .table import ScenarioError

ANY = Expect(status=None, body=None)
FORM = "application/x-www-form-urlencoded"
USER_AGENT = "towline-bench/1.0"

# Options of curl by their short names: those that take a value, and those that do not.
VALUED = {
    "-X": "request",
    "-H": "header",
    "-d": "data",
    "-A": "user-agent",
    "-e": "referer",
    "-b": "cookie",
    "-u": "user",
    "-m": "max-time",
    "-o": "output",
    "-T": "upload-file",
    "-w": "write-out",
    "--data-ascii": "data",
    **{
        f"--{name}": name
        for name in (
            "request",
            "header",
            "data",
            "data-raw",
            "data-binary",
            "data-urlencode",
            "json",
            "user-agent",
            "referer",
            "cookie",
            "user",
            "max-time",
            "output",
            "upload-file",
            "url",
            "connect-timeout",
            "write-out",
            "cacert",
        )
    },
}
PLAIN = {
    "-G": "get",
    "-I": "head",
    "-L": "location",
    **{f"--{name}": name for name in ("get", "head", "location", "compressed")},
}
# Options that do not affect the request.
IGNORED = {
    *("-s", "-S", "-v", "-i", "-f", "-k", "-#", "-N", "-O"),
    *(
        "--silent",
        "--show-error",
        "--verbose",
        "--include",
        "--fail",
        "--insecure",
        "--progress-bar",
        "--no-buffer",
    ),
    *("--http1.1", "--globoff", "-g", "--fail-with-body", "--path-as-is", "--remote-name"),
}
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True)
class Imported:
    """A scenario, and the origin of its requests."""

    scenario: Scenario
    origin: str
    """`http://host:port`; replaced by the subject's address in a measurement."""
    guessed: frozenset[str] = frozenset()
    """Targets with values that were made up: a server may refuse them."""


def from_curl(commands: Sequence[str], name: str = "curl") -> Imported:
    """A scenario from one or several command lines, used in turn. Raises `ScenarioError`."""
    found: list[tuple[str, Request]] = []
    notes: dict[str, None] = {}
    for command in commands:
        call = _Curl(command)
        found += call.requests()
        notes |= dict.fromkeys(call.notes)
    return imported(found, name, f"curl: {_line(commands[0])}" if commands else "curl", tuple(notes))


def from_vegeta(path: Path, name: str = "vegeta") -> Imported:
    """Targets of vegeta, in its `http` or `json` format. Raises `ScenarioError`."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ScenarioError(f"cannot read {path}: {why}") from None
    parse = _vegeta_json if text.lstrip().startswith("{") else _vegeta_http
    return imported(list(parse(text, path)), name, f"vegeta: {path.name}", ())


def imported(
    found: Sequence[tuple[str, Request]],
    name: str,
    source: str,
    notes: tuple[str, ...],
    guessed: frozenset[str] = frozenset(),
) -> Imported:
    """The scenario of these requests, which must have one origin. Raises `ScenarioError`."""
    origins = dict.fromkeys(origin for origin, _ in found)
    if not found:
        raise ScenarioError(f"{source}: it contains no request")
    if len(origins) > 1:
        raise ScenarioError(f"{source}: one server is measured at a time, not {' and '.join(origins)}")
    requests = tuple(request for _, request in found)
    title = f"{requests[0].method} {requests[0].target:.60}"
    if len(requests) > 1:
        title += f" and {len(requests) - 1} more, in turn"
    scenario = Scenario(name, "own", title, source, requests=requests, notes=notes)
    return Imported(scenario, next(iter(origins)), guessed)


def request_of(
    where: str,
    url: str,
    method: str,
    fields: Iterable[tuple[str, str]],
    body: bytes | None,
    expect: Expect = ANY,
) -> tuple[str, Request]:
    """The origin of `url`, and its request with Host in front and Content-Length at the end, unless `fields` have them.

    `where` begins the message of a `ScenarioError`.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        raise ScenarioError(f"{where}: {url!r} is no URL of http or https without credentials in it")
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (f"?{parts.query}" if parts.query else "")
    given: Fields = tuple(fields)
    names = {field_name.lower() for field_name, _ in given}
    if "host" not in names:
        given = (("Host", parts.netloc), *given)
    if "transfer-encoding" in names:
        raise ScenarioError(
            f"{where}: Transfer-Encoding is not imported; write a scenario file with `chunk_bytes`"
        )
    if body is not None and "content-length" not in names:
        given = (*given, ("Content-Length", str(len(body))))
    for field_name, value in given:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", field_name) or re.search(
            r"[\x00-\x08\x0a-\x1f\x7f]", value
        ):
            raise ScenarioError(f"{where}: {field_name!r:.60} is no header field that can be sent")
    request = Request(target, method, given, Body(body) if body is not None else None, expect=expect)
    return f"{parts.scheme}://{parts.netloc}", request


def content_of(where: str, name: str) -> bytes:
    """The bytes of a file that `where` names. Raises `ScenarioError`."""
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ScenarioError(f"{where}: cannot read {name}: {error.strerror}") from None


# --- curl -------------------------------------------------------------------------------------------------


@dataclass
class _Curl:
    """One command line, parsed as curl does."""

    command: str
    urls: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.where = f"curl: {_line(self.command)}"
        try:
            words = shlex.split(_without_ansi_quotes(re.sub(r"\s\\\r?\n", " ", self.command)))
        except ValueError as error:
            raise ScenarioError(f"{self.where}: {error}") from None
        if words[:1] == ["curl"]:
            words = words[1:]
        while words:
            word = words.pop(0)
            if word.startswith("-") and len(word) > 1:
                words = self._option(word, words)
            else:
                self.urls.append(word)
        if not self.urls:
            raise ScenarioError(f"{self.where}: it contains no URL")

    def _option(self, word: str, rest: list[str]) -> list[str]:
        """Takes one option; returns the remaining words."""
        key, joined = (word, "") if word.startswith("--") else (word[:2], word[2:])
        if word in IGNORED:
            return rest
        if key in VALUED:
            if not joined and not rest:
                raise ScenarioError(f"{self.where}: {key} needs a value")
            self._valued(VALUED[key], joined or rest[0])
            return rest if joined else rest[1:]
        if key in PLAIN:
            self.options[PLAIN[key]] = ""
        elif key not in IGNORED:
            raise ScenarioError(f"{self.where}: {key} is not imported; write a scenario file instead")
        return [f"-{joined}", *rest] if joined else rest

    def _valued(self, name: str, value: str) -> None:
        if name == "url":
            self.urls.append(value)
        elif name == "header":
            self.headers.append(value)
        elif name in ("data", "data-binary", "data-raw", "data-urlencode", "json"):
            self.data.append(self._data(name, value))
            self.options.setdefault("json" if name == "json" else "form", "")
        else:
            self.options[name] = value

    def _data(self, name: str, value: str) -> bytes:
        if name == "data-urlencode":
            key, equals, content = value.partition("=")
            if not equals:
                if "@" in value:
                    raise ScenarioError(f"{self.where}: --data-urlencode takes no file here")
                return quote(value, safe="").encode()
            return f"{key}{'=' if key else ''}{quote(content, safe='')}".encode()
        if name == "data-raw" or not value.startswith("@"):
            return value.encode()
        whole = content_of(self.where, value[1:])
        # `--data` drops line ends of a file; the others keep them.
        return whole.replace(b"\r", b"").replace(b"\n", b"") if name == "data" else whole

    def requests(self) -> list[tuple[str, Request]]:
        options, body = self.options, self._body()
        if "location" in options:
            self.notes.append("Redirects are not followed: each is a response.")
        if "head" in options:
            method = "HEAD"
        else:
            method = "PUT" if "upload-file" in options else "POST" if body is not None else "GET"
        query = b"&".join(self.data).decode() if "get" in options else ""
        return [
            request_of(
                self.where,
                f"{url}{'&' if '?' in url else '?'}{query}" if query else url,
                options.get("request", method),
                self._fields(body),
                body,
            )
            for url in self.urls
        ]

    def _body(self) -> bytes | None:
        if "upload-file" in self.options:
            return content_of(self.where, self.options["upload-file"])
        if not self.data or "get" in self.options:
            return None
        return (b"" if "json" in self.options else b"&").join(self.data)

    def _fields(self, body: bytes | None) -> list[tuple[str, str]]:
        """The defaults in curl's order, then the given ones, which replace or remove defaults."""
        options = self.options
        given: dict[str, tuple[str, str]] = {}
        fields: list[tuple[str, str]] = []
        if "user" in options:
            fields.append(("Authorization", f"Basic {base64.b64encode(options['user'].encode()).decode()}"))
        fields.append(("User-Agent", options.get("user-agent", USER_AGENT)))
        fields.append(("Accept", "application/json" if "json" in options else "*/*"))
        fields += [
            (name, options[key])
            for key, name in (("referer", "Referer"), ("cookie", "Cookie"))
            if key in options
        ]
        if "compressed" in options:
            fields.append(("Accept-Encoding", "gzip"))
        if body is not None and "upload-file" not in options:
            fields.append(("Content-Type", "application/json" if "json" in options else FORM))
        for line in self.headers:
            name, colon, value = line.partition(":")
            if not colon and not line.endswith(";"):
                raise ScenarioError(f"{self.where}: {line!r:.60} is no header")
            name = name.removesuffix(";") if not colon else name
            given[name.lower()] = (name, value.strip())
        removed = {line.partition(":")[0].lower() for line in self.headers if line.rstrip().endswith(":")}
        kept = [pair for pair in fields if pair[0].lower() not in given]
        return kept + [pair for key, pair in given.items() if not (key in removed and not pair[1])]


def _line(command: str) -> str:
    """Its beginning, for a message of one line."""
    return f"{' '.join(command.split()):.60}"


def _without_ansi_quotes(command: str) -> str:
    """Converts `$'...'`, which browsers write, into a string of a POSIX shell."""

    def plain(found: re.Match[str]) -> str:
        def one(escape: re.Match[str]) -> str:
            if escape[1][0] in "ux":
                return chr(int(escape[1][1:], 16))
            return ESCAPES.get(escape[1], escape[0])

        return shlex.quote(re.sub(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", one, found[1], flags=re.DOTALL))

    return re.sub(r"(?<!\S)\$'((?:[^'\\]|\\.)*)'", plain, command, flags=re.DOTALL)


# --- vegeta -----------------------------------------------------------------------------------------------


def _vegeta_http(text: str, path: Path) -> Iterable[tuple[str, Request]]:
    """A line `METHOD URL`, its headers, `@` and a file for its body; a blank line or the next one ends it."""
    target: tuple[int, str, str] | None = None
    fields: list[tuple[str, str]] = []
    body: bytes | None = None
    for number, line in enumerate([*text.splitlines(), ""], 1):
        line = line.strip()
        begins = re.fullmatch(r"([A-Z]+)\s+(\S+://\S+)", line)
        if target is not None and (not line or begins):
            yield request_of(f"{path}:{target[0]}", target[2], target[1], fields, body)
            target, fields, body = None, [], None
        if begins:
            target = (number, begins[1], begins[2])
        elif line.startswith("#") or not line:
            continue
        elif target is None:
            raise ScenarioError(f"{path}:{number}: {line!r:.60} is not `METHOD URL`")
        elif line.startswith("@"):
            body = content_of(f"{path}:{number}", str(path.parent / line[1:]))
        else:
            name, colon, value = line.partition(":")
            if not colon:
                raise ScenarioError(f"{path}:{number}: {line!r:.60} is no header field")
            fields.append((name.strip(), value.strip()))


def _vegeta_json(text: str, path: Path) -> Iterable[tuple[str, Request]]:
    """One object per line: method, url, header (names to lists), body in base64."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            plain = json.loads(line)
            fields = [(name, value) for name, values in plain.get("header", {}).items() for value in values]
            body = base64.b64decode(plain["body"], validate=True) if plain.get("body") else None
            method, url = plain["method"], plain["url"]
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ScenarioError(f"{where}: no target of vegeta ({error})") from None
        yield request_of(where, url, method, fields, body)
