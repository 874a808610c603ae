"""Lines of the access log as records of `logging`: plain, or with the arguments that uvicorn and gunicorn give.

Filters and formatters that were written for `uvicorn.access` and `gunicorn.access` read these arguments.
"""

from __future__ import annotations

import copy
import http.client
import json
import logging
from collections.abc import Callable
from typing import Any

from ..config.features import GUNICORN_LOG_FORMAT
from ..logging import ACCESS

SEPARATOR = "\x1f"
"""Escaped within a value, as every control character."""
OF_UVICORN = ("h", "m", "{RAW_URI}e", "H", "s")
# fmt: off
OF_GUNICORN = ("h", "l", "u", "t", "r", "m", "U", "q", "H", "s", "st", "b", "B", "f", "a", "T", "M", "D", "L", "p")
# fmt: on


def writer(name: str, format: str) -> tuple[Callable[[str], None], str]:
    """A function that passes lines to a logger, at the level INFO, and the format that it needs."""
    logger = logging.getLogger(name)

    def of_uvicorn(line: str) -> None:
        client, method, target, version, status = line.split(SEPARATOR)
        code = 0 if status == "-" else int(status)
        logger.info('%s - "%s %s HTTP/%s" %d', client, method, target, version.removeprefix("HTTP/"), code)

    def of_gunicorn(line: str) -> None:
        logger.info(GUNICORN_LOG_FORMAT, dict(zip(OF_GUNICORN, line.split(SEPARATOR), strict=True)))

    def plain(line: str) -> None:
        logger.info("%s", line, extra={ACCESS: json.loads(line)} if format == "json" else None)

    if name == "uvicorn.access":
        return of_uvicorn, _format(OF_UVICORN)
    if name == "gunicorn.access" and format == GUNICORN_LOG_FORMAT:
        return of_gunicorn, _format(OF_GUNICORN)
    return plain, format


def _format(atoms: tuple[str, ...]) -> str:
    return SEPARATOR.join(f"%({atom})s" for atom in atoms)


class UvicornFormatter(logging.Formatter):
    """The formatters of `uvicorn.logging` where uvicorn is not installed, without colours."""

    is_used = False

    def __init__(
        self,
        fmt: str | None = None,
        datefmt: str | None = None,
        style: Any = "%",
        use_colors: bool | None = None,
    ) -> None:
        super().__init__(fmt, datefmt, style)
        UvicornFormatter.is_used = True

    def formatMessage(self, record: logging.LogRecord) -> str:
        shown: Any = copy.copy(record)
        shown.levelprefix = f"{record.levelname + ':':<9}"
        if isinstance(record.args, tuple) and len(record.args) == 5:
            shown.client_addr, method, path, version, status = record.args
            shown.request_line = f"{method} {path} HTTP/{version}"
            shown.status_code = f"{status} {http.client.responses.get(status, '')}"  # type: ignore[call-overload]
        return super().formatMessage(shown)
