"""Inputs of curl beside its command line: variables (8.3), files of options (-K) and of cookies (-b)."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

from .imported import content_of
from .table import ScenarioError

EXPANSION = re.compile(r"(\\?)\{\{([^}]*)\}\}")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)', re.DOTALL)
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class Variables:
    """`--variable NAME=TEXT`, `NAME@FILE`, `%NAME` of the environment; `{{NAME:trim:url}}` in `--expand-...`."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._values: dict[str, bytes] = {}

    def set(self, given: str) -> None:
        found = re.fullmatch(r"(%?)([A-Za-z0-9_]{1,127})(?:([=@])(.*))?", given, re.DOTALL)
        if not found or (not found[1] and not found[3]):
            raise ScenarioError(
                f"{self._where}: --variable {given[:60]!r} is not imported: NAME=TEXT, NAME@FILE or %NAME"
            )
        of_environment, name, sign, content = found.groups()
        if of_environment and name in os.environ:
            self._values[name] = os.environb[name.encode()]
        elif sign == "@":
            if content == "-":
                raise ScenarioError(
                    f"{self._where}: what comes from the standard input is not known; name a file"
                )
            self._values[name] = content_of(self._where, content)
        elif sign == "=":
            self._values[name] = content.encode("utf-8", "surrogateescape")
        else:
            raise ScenarioError(f"{self._where}: --variable %{name}: it is not set in the environment")

    def expanded(self, text: str) -> str:
        return EXPANSION.sub(self._one, text)

    def _one(self, found: re.Match[str]) -> str:
        name, *functions = found[2].split(":")
        if found[1]:
            return found[0][1:]
        if not re.fullmatch(r"[A-Za-z0-9_]{1,127}", name):
            return found[0]
        value = self._values.get(name, b"")
        for function in functions:
            value = self._applied(function, value)
        if 0 in value:
            raise ScenarioError(
                f"{self._where}: {{{{{found[2]}}}}} has the byte 0, which no argument can have"
            )
        return value.decode("utf-8", "surrogateescape")

    def _applied(self, function: str, value: bytes) -> bytes:
        text = value.decode("utf-8", "surrogateescape")
        if function == "trim":
            return value.strip(b" \t\n\v\f\r")
        if function == "url":
            return quote(value, safe="").encode()
        if function == "json":
            return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
        if function == "b64":
            return base64.b64encode(value)
        if function == "64dec":
            try:
                return base64.b64decode(value, validate=True)
            except binascii.Error:
                return b"[64dec-fail]"
        raise ScenarioError(f"{self._where}: curl has no function {function[:60]!r} of variables")


def config_words(content: bytes) -> Iterator[str]:
    """The options of a file of `-K`: one a line, `header = "X: y"`, `-H x`, `user: u:p`; a line with # is a comment."""
    text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    for line in re.split(r"\r?\n", text):
        line = line.lstrip()
        if not line or line.startswith("#"):
            continue
        # With dashes, `=` and `:` may be part of the name.
        name, rest = re.fullmatch(r"(-[^\s]*|[^\s=:]*)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
        rest = rest.lstrip(" \t" if name.startswith("-") else " \t=:")
        yield name if name.startswith("-") else f"--{name}"
        if found := QUOTED.match(rest):
            yield re.sub(
                r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), found[1], flags=re.DOTALL
            )
        elif rest and not rest.startswith("#"):
            yield rest.split()[0]


def file_cookies(where: str, name: str, url: str, notes: list[str]) -> list[str]:
    """The cookies of a file that a request to `url` has: Netscape's format, or Set-Cookie lines of a response."""
    if not Path(name).is_file():
        notes.append(f"There is no file {name!r:.80}: its cookies are not sent.")
        return []
    parts = urlsplit(url)
    host, path = (parts.hostname or "").lower(), parts.path or "/"
    found: dict[tuple[str, str, str], tuple[str, str, str]] = {}
    for line in content_of(where, name).decode("utf-8", "surrogateescape").splitlines():
        of_header = line.lower().startswith("set-cookie:")
        fields = _of_header(line, host) if of_header else line.removeprefix("#HttpOnly_").split("\t")
        if (line.startswith("#") and not line.startswith("#HttpOnly_")) or len(fields) not in (6, 7):
            continue
        domain, tail, at, secure, expires, key = fields[:6]
        domain, at = domain.lower().removeprefix("."), at.rstrip("/") or "/"
        matches = host == domain or (tail.upper() == "TRUE" and host.endswith(f".{domain}"))
        below = path == at or path.startswith(at if at == "/" else f"{at}/")
        old = expires.isdigit() and 0 < int(expires[:18]) < time.time()
        # A host of this machine counts as secure.
        safe = parts.scheme == "https" or host in ("localhost", "127.0.0.1", "::1")
        if matches and below and not old and (safe or secure.upper() != "TRUE"):
            found[domain, at, key] = (at, domain, f"{key}={fields[6] if len(fields) == 7 else ''}")
    # The longest paths, domains and names come first.
    ordered = sorted(found.values(), key=lambda one: (-len(one[0]), -len(one[1]), -one[2].index("=")))
    return [text for _, _, text in ordered]


def _of_header(line: str, host: str) -> list[str]:
    """A Set-Cookie line in the fields of Netscape's format. Without a domain it is of any host."""
    pair, *attributes = line.partition(":")[2].split(";")
    key, _, value = (part.strip() for part in pair.partition("="))
    given = {
        name.strip().lower(): text.strip() for name, _, text in (one.partition("=") for one in attributes)
    }
    expires = "1" if re.fullmatch(r"-[0-9]+|0+", given.get("max-age", "")) else "0"
    if "expires" in given and "max-age" not in given:
        try:
            expires = str(max(1, int(parsedate_to_datetime(given["expires"]).timestamp())))
        except (ValueError, OverflowError):
            pass  # a cookie of the session
    path = given.get("path", "")
    domain = given.get("domain") or host
    at = path if path.startswith("/") else "/"
    return [domain, str("domain" in given), at, str("secure" in given), expires, key, value]
