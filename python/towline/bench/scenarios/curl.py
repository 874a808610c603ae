"""Requests from command lines of curl, as curl sends them.

An option that may affect the request and is not known here is an error. The sources of the rules are curl's manual and
`src/tool_getparam.c`, `tool_urlglob.c` and `var.c`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, zip_longest
from pathlib import PurePath
from urllib.parse import quote, unquote

from .curl_files import Variables, config_words, file_cookies
from .curl_form import form_body
from .curl_options import IGNORED, IGNORED_VALUED, PLAIN, PROTOCOLS, SHORT, VALUED
from .imported import (
    MAX_REQUESTS,
    Imported,
    content_of,
    graphic,
    imported,
    malformed,
    request_of,
    same_origin,
    url_parts,
)
from .model import Request
from .shell import commands as commands_of
from .table import ScenarioError

FORM = "application/x-www-form-urlencoded"
USER_AGENT = "towline-bench/1.0"
MAX_CONFIGS = 10
"""Largest number of files of -K, which may name further ones."""
RANGE = re.compile(r"(?:(\d{1,18})-[ \t]*(\d{1,18})|([A-Za-z])-([A-Za-z]))(?::(\d{1,18}))?\]")
IPV6 = re.compile(r"\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%25[\w.~-]+)?\]")


def from_curl(commands: Sequence[str], name: str = "curl") -> Imported:
    """A scenario from one or several command lines, or scripts of them, used in turn. Raises `ScenarioError`."""
    found: list[tuple[str, Request]] = []
    notes: dict[str, None] = {}
    with malformed("curl"):
        for text in commands:
            where = f"curl: {line_of(text)}"
            if re.search(r"\bcurl(?:\.exe)?[ \t]+[^'\"\n]{0,200}\^[\"\n]|\^\r?\n[ \t]+-", text):
                raise ScenarioError(
                    f"{where}: quotes of Windows' cmd.exe are not imported; copy the request as cURL (bash)"
                )
            started = list(commands_of(text.replace("\r\n", "\n"), "curl"))
            if not started:
                raise ScenarioError(f"{where}: it is no command line of curl")
            for command in started:
                call = _Curl(f"curl: {line_of(command.text)}", command.notes)
                if command.is_unclosed:
                    raise call.error("No closing quotation")
                if command.problem:
                    raise call.error(f"{command.problem} needs a shell; write what it makes")
                call.take(command.arguments_of("curl") or [])
                found += call.requests()
                notes |= dict.fromkeys(call.notes)
    return imported(found, name, f"curl: {line_of(commands[0])}" if commands else "curl", tuple(notes))


def line_of(command: str) -> str:
    """The beginning of the command line, for a message of one line."""
    shown = " ".join(command.split())[:60]
    return shown.encode("utf-8", "replace").decode()


@dataclass
class _Transfer:
    """The options of one or several URLs, up to `--next`."""

    urls: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)
    form: list[tuple[str, bool]] = field(default_factory=list)
    """Fields, and whether `@`, `<` and `;` are text."""
    queries: list[str] = field(default_factory=list)
    cookies: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)


class _Curl:
    """One command line, parsed as curl does."""

    def __init__(self, where: str, notes: list[str]) -> None:
        self.where = where
        self.notes = notes
        self._transfers = [_Transfer()]
        self._variables = Variables(where)
        self._configs = 0

    def error(self, why: str) -> ScenarioError:
        return ScenarioError(f"{self.where}: {why}")

    @property
    def _transfer(self) -> _Transfer:
        return self._transfers[-1]

    def take(self, words: Iterable[str]) -> None:
        rest = iter(words)
        only_urls = False
        for word in rest:
            if word == "--" and not only_urls:
                only_urls = True
            elif only_urls or not word.startswith("-") or word == "-":
                self._transfer.urls.append(word)
            elif word.startswith("--"):
                self._option(word, word[2:], rest)
            else:
                self._cluster(word[1:], rest)

    def _cluster(self, letters: str, rest: Iterator[str]) -> None:
        """`-sSL`, `-XPUT`, `-d '{}'`."""
        while letters:
            letter, letters = letters[0], letters[1:]
            name = SHORT.get(letter, letter)
            if name in VALUED or name in IGNORED_VALUED:
                self._option(f"-{letter}", name, iter([letters]) if letters else rest)
                return
            self._option(f"-{letter}", name, rest)

    def _option(self, word: str, name: str, rest: Iterator[str]) -> None:
        expands = name.startswith("expand-") and word.startswith("--")
        name = name.removeprefix("expand-") if expands else name
        off = name.startswith("no-")
        plain = name.removeprefix("no-") if off else name
        if name == "next":
            if self._transfer.urls:
                self._transfers.append(_Transfer())
        elif name in VALUED or name in IGNORED_VALUED:
            value = next(rest, None)
            if value is None:
                raise self.error(f"{word} needs a value")
            if name in VALUED:
                self._valued(name, self._variables.expanded(value) if expands else value)
        elif plain in PLAIN:
            (self._transfer.flags.discard if off else self._transfer.flags.add)(plain)
        elif name in PROTOCOLS:
            self.notes.append(f"{word} is not used: the measurement chooses the version of HTTP.")
        elif plain not in IGNORED:
            raise self.error(f"{word} is not imported; write a scenario file instead")

    def _valued(self, name: str, value: str) -> None:
        lists = {"url": "urls", "upload-file": "uploads", "url-query": "queries", "cookie": "cookies"}
        transfer = self._transfer
        if name in lists:
            if name == "url" and value.startswith("@"):
                raise self.error("URLs of a file are not imported; write them on the command line")
            getattr(transfer, lists[name]).append(value)
        elif name == "header":
            lines = (
                self._file(value[1:]).splitlines()
                if value[:1] == "@"
                else [value.encode("utf-8", "surrogateescape")]
            )
            transfer.headers += [
                line.decode("utf-8", "surrogateescape")
                for line in lines
                if line and not line.startswith(b"#")
            ]
        elif name.startswith("data") or name == "json":
            if transfer.data and name != "json":
                transfer.data.append(b"&")
            transfer.data.append(self._data(name, value))
            transfer.flags |= {"json"} if name == "json" else set()
        elif name.startswith("form"):
            transfer.form.append((value, name == "form-string"))
        elif name == "variable":
            self._variables.set(value)
        elif name == "config":
            self._configs += 1
            if self._configs > MAX_CONFIGS:
                raise self.error(f"more than {MAX_CONFIGS} files of -K")
            self.take(config_words(self._file(value)))
        else:
            transfer.options[name] = value

    def _file(self, name: str) -> bytes:
        if name == "-":
            raise self.error("what comes from the standard input is not known; name a file")
        return content_of(self.where, name)

    def _data(self, name: str, value: str) -> bytes:
        if name == "data-urlencode":
            return self._urlencoded(value).encode()
        if name == "data-raw" or not value.startswith("@"):
            return value.encode("utf-8", "surrogateescape")
        whole = self._file(value[1:])
        # `--data` drops line ends and zeros of a file; the others keep them.
        return whole if name in ("data-binary", "json") else re.sub(rb"[\r\n\0]", b"", whole)

    def _urlencoded(self, value: str) -> str:
        """`CONTENT`, `=CONTENT`, `NAME=CONTENT`, `@FILE` or `NAME@FILE`; a space becomes `+`."""
        name, sign, given = value.partition("=" if "=" in value else "@")
        if not sign:
            name, given = "", value
        content = self._file(given) if sign == "@" else given.encode("utf-8", "surrogateescape")
        return f"{name}{'=' if name else ''}{quote(content, safe='').replace('%20', '+')}"

    # --- the requests ---

    def requests(self) -> list[tuple[str, Request]]:
        """The requests of all URLs, in curl's order."""
        found: list[tuple[str, Request]] = []
        for transfer in self._transfers:
            if not transfer.urls:
                raise self.error("it contains no URL")
            self._check(transfer)
            for url, upload in zip_longest(
                transfer.urls, transfer.uploads[: len(transfer.urls)], fillvalue=""
            ):
                uploads = self._globbed(upload, transfer)
                found += [
                    self._request(transfer, one, file)
                    for file in uploads
                    for one in self._globbed(url, transfer)
                ]
            if len(found) > MAX_REQUESTS:
                raise self.error(f"it sends more than {MAX_REQUESTS:,} requests")
        return found

    def _check(self, transfer: _Transfer) -> None:
        flags = transfer.flags
        has_data = bool(transfer.data) and "get" not in flags
        bodies = [bool(transfer.uploads), has_data, bool(transfer.form), "head" in flags]
        if sum(bodies) > 1 or ("get" in flags and (transfer.form or transfer.uploads)):
            raise self.error("curl refuses more than one of -d, -F, -T and -I")
        if "location" in flags or "location-trusted" in flags:
            self.notes.append("Redirects are not followed: each is a response.")
        if "compressed" in flags:
            self.notes.append("--compressed accepts gzip; the codings of curl depend on its build.")

    def _request(self, transfer: _Transfer, url: str, upload: str) -> tuple[str, Request]:
        options, flags = transfer.options, transfer.flags
        if re.search(r"[\x00-\x20\x7f]", url):
            raise self.error(f"curl refuses the blank in {url[:200]!r}; percent-encode it")
        parts = url_parts(self.where, url)
        user, at, authority = parts.netloc.rpartition("@")
        path = parts.path or "/"
        if upload and path.endswith("/"):
            path += quote(PurePath(upload).name, safe="", errors="surrogateescape")
        path = path if "path-as-is" in flags else _without_dots(path)
        query = parts.query
        for added in self._queries(transfer):
            query += f"{'&' if query and not query.endswith('&') else ''}{added}"
        target = graphic(path) + (f"?{graphic(query)}" if query or "?" in url.partition("#")[0] else "")
        if not url.isascii():
            self.notes.append("Characters beyond ASCII in URLs are percent-encoded.")
        body, content_type = self._body(transfer, upload)
        default = "HEAD" if "head" in flags else "PUT" if upload else "GET" if body is None else "POST"
        fields = self._fields(transfer, f"{parts.scheme}://{authority}{path}", unquote(user) if at else None)
        fields += [("Content-Type", content_type)] if content_type else []
        origin, request = request_of(
            self.where,
            f"{same_origin(f'{parts.scheme}://{authority}')}/",
            options.get("request") or default,
            self._replaced(transfer.headers, fields),
            body,
        )
        exact = options.get("request-target", target)
        if not re.fullmatch(r"/[!-~]*", exact):
            raise self.error("--request-target that is no path is not imported")
        return origin, replace(request, target=exact)

    def _queries(self, transfer: _Transfer) -> list[str]:
        """The additions to the query of each URL."""
        added = [one[1:] if one[:1] == "+" else self._urlencoded(one) for one in transfer.queries]
        if "get" in transfer.flags and transfer.data:
            added.append(b"".join(transfer.data).decode("utf-8", "surrogateescape"))
        for one in added:
            if re.search(r"[\x00-\x20\x7f]", one):
                raise self.error(f"curl refuses the blank in the query {one[:200]!r}; use --data-urlencode")
        return added

    def _body(self, transfer: _Transfer, upload: str) -> tuple[bytes | None, str | None]:
        """The body and its default Content-Type."""
        if upload:
            return self._file(upload), None
        if transfer.form:
            return self._form(transfer)
        if not transfer.data or "get" in transfer.flags:
            return None, None
        return b"".join(transfer.data), "application/json" if "json" in transfer.flags else FORM

    def _form(self, transfer: _Transfer) -> tuple[bytes, str]:
        """A header that names the type gets the boundary, too."""
        body, boundary = form_body(self.where, transfer.form)
        media = "multipart/form-data"
        for line in transfer.headers:
            name, _, value = line.partition(":")
            if name.lower() == "content-type" and value.strip():
                transfer.headers.remove(line)
                media = value.strip()
                break
        return body, f"{media}; boundary={boundary}"

    def _fields(self, transfer: _Transfer, url: str, user: str | None) -> list[tuple[str, str]]:
        """The defaults, in curl's order."""
        options, flags = transfer.options, transfer.flags
        user = options.get("user", user)
        fields: list[tuple[str, str]] = []
        if "oauth2-bearer" in options:
            fields.append(("Authorization", f"Bearer {options['oauth2-bearer']}"))
        elif user is not None:
            if ":" not in user and "user" in options:
                raise self.error("curl asks for the password of -u; write it as USER:PASSWORD")
            pair = f"{user}{'' if ':' in user else ':'}".encode("utf-8", "surrogateescape")
            fields.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        fields.append(("User-Agent", options.get("user-agent", USER_AGENT)))
        if "range" in options:
            fields.append(("Range", f"bytes={options['range']}"))
        fields.append(("Accept", "application/json" if "json" in flags else "*/*"))
        fields.append(("Referer", options.get("referer", "").removesuffix(";auto")))
        cookies, of_files = [one for one in transfer.cookies if "=" in one], []
        for name in (one for one in transfer.cookies if one and "=" not in one):
            of_files += file_cookies(self.where, name, url, self.notes)
        if any(line.partition(":")[0].lower() == "cookie" for line in transfer.headers):
            cookies = []
        fields.append(("Cookie", "; ".join([*of_files, *([";".join(cookies)] if cookies else [])])))
        fields.append(("Accept-Encoding", "gzip" if "compressed" in flags else ""))
        return [(name, value) for name, value in fields if value]

    def _replaced(self, lines: Sequence[str], fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """The fields with the lines of `-H`: `NAME: VALUE`, `NAME;` for an empty one, `NAME:` to remove a default."""
        given: list[tuple[str, str]] = []
        names = set()
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon and not line.endswith(";"):
                raise self.error(f"{line[:60]!r} is no header")
            name = name.removesuffix(";") if not colon else name
            names.add(name.lower())
            if value.strip() or not colon:
                given.append((name, value.strip(" \t")))
            elif name.lower() in ("host", "content-length"):
                raise self.error(f"a request without {name} is not sent")
        # Cookies of a file are sent beside those of a header.
        kept = [pair for pair in fields if pair[0].lower() not in names - {"cookie"}]
        return kept + given

    def _globbed(self, text: str, transfer: _Transfer) -> list[str]:
        """The texts that `[1-3]`, `[a-c:2]` and `{a,b}` stand for."""
        if "globoff" in transfer.flags or not re.search(r"[\[\]{}\\]", text):
            return [text]
        parts: list[list[str]] = []
        at, count = 0, 1
        while at < len(text):
            char = text[at]
            ipv6 = IPV6.match(text, at)
            if char in "[{" and not ipv6:
                found, at = self._range(text, at) if char == "[" else self._set(text, at)
                parts.append(found)
                count *= len(found)
                if count > MAX_REQUESTS:
                    raise self.error(f"{text[:200]!r} stands for more than {MAX_REQUESTS:,} URLs")
            elif char in "]}":
                raise self.error(
                    f"curl refuses {text[:200]!r}: a bracket that nothing opens; -g makes it text"
                )
            else:
                end = (
                    ipv6.end() if ipv6 else at + 1 + (char == "\\" and text[at + 1 : at + 2] in tuple("[]{}"))
                )
                parts.append([text[at:end] if ipv6 else text[end - 1]])
                at = end
        return ["".join(one) for one in product(*parts)]

    def _range(self, text: str, at: int) -> tuple[list[str], int]:
        found = RANGE.match(text, at + 1)
        first, last, low, high, step = found.groups() if found else (None,) * 5
        begin, end = (int(first), int(last)) if first and last else (ord(low or "b"), ord(high or "a"))
        size = int(step or 1)
        wrong = begin > end or size < 1 or (size > end - begin and (begin != end or size != 1))
        if found is None or wrong or (low and end - begin > 25):
            raise self.error(f"curl refuses {text[:200]!r}: a bad range; -g makes brackets text")
        if (end - begin) // size >= MAX_REQUESTS:
            raise self.error(f"{text[:200]!r} stands for more than {MAX_REQUESTS:,} URLs")
        width = len(first) if first and first.startswith("0") else 0
        numbers = range(begin, end + 1, size)
        return [f"{n:0{width}}" if first else chr(n) for n in numbers], found.end()

    def _set(self, text: str, at: int) -> tuple[list[str], int]:
        found = re.compile(r"\{((?:[^{}\[\]\\]|\\.)+)\}").match(text, at)
        if found is None:
            raise self.error(f"curl refuses {text[:200]!r}: a bad set; -g makes braces text")
        members = re.split(r"(?<!\\),", found[1])
        return [re.sub(r"\\(.)", r"\1", member) for member in members], found.end()


def _without_dots(path: str) -> str:
    """Without `.` and `..` (RFC 3986 5.2.4)."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for number, segment in enumerate(segments, 1):
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
        if segment in (".", "..") and number == len(segments):
            kept.append("")
    return "/" + "/".join(kept)
