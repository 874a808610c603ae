"""Targets of vegeta, in its `http` or `json` format."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from pathlib import Path

from .imported import Imported, content_of, imported, request_of
from .model import Request
from .table import ScenarioError


def from_vegeta(path: Path, name: str = "vegeta") -> Imported:
    """Targets of vegeta, in its `http` or `json` format. Raises `ScenarioError`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ScenarioError(f"cannot read {path}: {why}") from None
    parse = _vegeta_json if text.lstrip().startswith("{") else _vegeta_http
    return imported(list(parse(text, path)), name, f"vegeta: {path.name}", ())


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
