"""A scenario from a file of requests in any of the known formats, which is recognised by its content."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .har import from_har
from .imported import Imported, malformed
from .imports import from_curl, from_vegeta
from .openapi import from_openapi
from .shell import commands
from .table import ScenarioError
from .yaml_file import read_yaml

MAX_BYTES = 256 << 20
"""Larger files are refused: the whole content is held in memory."""
POWERSHELL = re.compile(
    r"^[ \t]*(?:\$\w+[ \t]*=[ \t]*)?(?:Invoke-(?:WebRequest|RestMethod)|New-Object)\b", re.MULTILINE
)
VEGETA = re.compile(r"^[A-Z]+\s+\S+://\S+", re.MULTILINE)
OPENAPI_YAML = re.compile(r"^[\"']?(?:openapi|swagger)[\"']?[ \t]*:", re.MULTILINE)
FORMATS = (
    "a HAR file of a browser, curl command lines, targets of vegeta (`GET http://...`, or its JSON), or an OpenAPI "
    "description in JSON or YAML"
)


def from_file(path: Path) -> Imported:
    """Raises `ScenarioError` for a file that cannot be read, or has none of the formats."""
    with malformed(path.name):
        return _from_text(_text(path), path)


def _from_text(text: str, path: Path) -> Imported:
    if text.lstrip().startswith("{"):
        return _from_json(text, path)
    # First: its texts may have examples of command lines.
    if OPENAPI_YAML.search(text):
        return _from_description(read_yaml(text, path.name), path)
    if POWERSHELL.search(text):
        raise ScenarioError(f"{path.name}: PowerShell is not imported; copy the requests as cURL (bash)")
    if next(commands(text, "curl"), None) is not None:
        return from_curl([text], path.name)
    if VEGETA.search(text):
        return from_vegeta(path, path.name)
    raise ScenarioError(f"{path.name}: is none of {FORMATS}")


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ScenarioError(f"{path.name}: is larger than {MAX_BYTES >> 20} MiB")
        # Line ends inside a body are the body's.
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ScenarioError(f"cannot read {path.name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"cannot read {path.name}: it is not UTF-8") from None


def _from_json(text: str, path: Path) -> Imported:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Targets of vegeta are one object per line.
        first = text.lstrip().partition("\n")[0]
        if re.search(r"\"url\"\s*:", first) and re.search(r"\"method\"\s*:", first):
            return from_vegeta(path, path.name)
        raise ScenarioError(f"{path.name}: is not JSON: {str(error).splitlines()[0]}") from None
    if "log" in plain:
        return from_har(plain, path.name)
    if "openapi" in plain or "swagger" in plain:
        return from_openapi(plain, path.name)
    if "url" in plain:
        return from_vegeta(path, path.name)
    raise ScenarioError(f"{path.name}: is none of {FORMATS}")


def _from_description(plain: Any, path: Path) -> Imported:
    if not isinstance(plain, dict):
        raise ScenarioError(f"{path.name}: is none of {FORMATS}")
    return from_openapi(plain, path.name)
