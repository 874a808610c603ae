"""JSON lines for `logging`: the formatter of `--log-format json`, also for the logging configuration of an application.

{"formatters": {"json": {"()": "towline.logging.JsonFormatter"}}}
"""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["REQUEST_ID", "JsonFormatter"]

REQUEST_ID: contextvars.ContextVar[str | None] = contextvars.ContextVar("towline_request_id", default=None)
"""The id of the current request (`--request-id-header`); None outside of requests and without the option."""

ACCESS = "towline_access"
"""The attribute of a record of the access log that has its members."""

# Attributes of every record; those of a later Python and of formatters too.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: control and bidirectional characters are escaped.

    Members: `time`, `level`, `logger`, `message`, `pid`; `request_id` in a request that has an id; `trace_id` and `span_id`
    in a span of OpenTelemetry; `exception_type` and `exception`, the traceback; `stack`; and the fields of `extra`.

    `rename_fields` gives members other names, `static_fields` are added to each line, `datefmt` is the format of `time`.
    `fmt`, `style`, `validate` and `defaults` have no effect: a configuration in an .ini file passes them.
    """

    def __init__(
        self,
        fmt: str | None = None,
        datefmt: str | None = None,
        style: str = "%",
        validate: bool = True,
        *,
        defaults: Any = None,
        rename_fields: Mapping[str, str] | None = None,
        static_fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(datefmt=datefmt)
        self._renamed = dict(rename_fields or {})
        self._static = dict(static_fields or {})

    def format(self, record: logging.LogRecord) -> str:
        line = getattr(record, ACCESS, None) or self._members(record)
        named = {self._renamed.get(name, name): value for name, value in line.items()}
        return _json({**named, **self._static})

    def _members(self, record: logging.LogRecord) -> dict[str, Any]:
        line: dict[str, Any] = {
            "time": self.formatTime(record, self.datefmt),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            "pid": record.process,
        }
        if (request_id := REQUEST_ID.get()) is not None:
            line["request_id"] = request_id
        line.update(_span())
        if record.exc_info and record.exc_info[0] is not None:
            kind = record.exc_info[0]
            line["exception_type"] = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        for name, value in vars(record).items():
            if name not in STANDARD:
                line[f"{name}_" if name in line else name] = value
        return line

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if datefmt:
            return super().formatTime(record, datefmt)
        import datetime

        time = datetime.datetime.fromtimestamp(record.created).astimezone()
        return time.isoformat(timespec="milliseconds")


def _message(record: logging.LogRecord) -> str:
    """The message. A call whose arguments do not fit its text is shown, instead of a traceback beside the log."""
    try:
        return record.getMessage()
    except Exception as error:
        return f"{_text(record.msg)} {_text(record.args)} ({type(error).__name__}: {error})"


def _span() -> dict[str, str]:
    """The ids of the current span, if the program uses OpenTelemetry."""
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    context = current().get_span_context() if current is not None else None
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _json(line: dict[str, Any]) -> str:
    import json

    try:
        return json.dumps(line, default=_text, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        # A cycle, a key that is not a string, or a number that JSON lacks.
        return json.dumps({name: _plain(value) for name, value in line.items()})


def _plain(value: Any) -> Any:
    import json

    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return _text(value)
    return value


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"
