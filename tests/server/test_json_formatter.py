"""`towline.logging.JsonFormatter`: the members of a line, and records that JSON cannot write as they are."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import logging.handlers
import os
import queue
from pathlib import Path
from typing import Any

import pytest
from towline.logging import REQUEST_ID, JsonFormatter


def line_of(
    *args: Any, formatter: JsonFormatter | None = None, level: int = logging.INFO, **options: Any
) -> dict[str, Any]:
    """The line of a call of `Logger.log`."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter or JsonFormatter())
    logger = logging.Logger("shop")
    logger.addHandler(handler)
    logger.log(level, *args, **options)
    [text] = out.getvalue().splitlines()
    assert text.isascii()
    line: dict[str, Any] = json.loads(text)
    return line


def test_members() -> None:
    line = line_of("sold %d \u202e", 3, extra={"user": "anna", "items": [1, {"a": None}]})
    assert list(line) == ["time", "level", "logger", "message", "pid", "user", "items"]
    assert (line["level"], line["logger"], line["message"]) == ("info", "shop", "sold 3 \u202e")
    assert (line["pid"], line["user"], line["items"]) == (os.getpid(), "anna", [1, {"a": None}])


def test_an_exception_and_a_stack_are_members() -> None:
    try:
        raise FileNotFoundError("nothing\nhere")
    except FileNotFoundError:
        line = line_of("failed", level=logging.ERROR, exc_info=True, stack_info=True)
    assert line["exception_type"] == "FileNotFoundError"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("nothing\nhere")
    assert "test_an_exception_and_a_stack_are_members" in line["stack"]
    try:
        raise json.JSONDecodeError("bad", "", 0)
    except ValueError:
        assert line_of("failed", exc_info=True)["exception_type"] == "json.decoder.JSONDecodeError"
    assert "exception" not in line_of("none", exc_info=True)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_values_that_json_lacks() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    extra = {
        "path": Path("/a"),
        "bytes": b"\xff",
        "set": {1},
        "nan": float("nan"),
        "cycle": cycle,
        "keys": {(1, 2): 3},
        "broken": Unprintable(),
        "fine": {"a": [1]},
    }
    line = line_of("values", extra=extra)
    assert (line["path"], line["bytes"], line["set"], line["nan"]) == ("/a", "b'\\xff'", "{1}", "nan")
    assert (line["cycle"], line["keys"]) == ("[[...]]", "{(1, 2): 3}")
    assert (line["broken"], line["fine"]) == ("<Unprintable: RuntimeError>", {"a": [1]})


def test_a_field_with_the_name_of_a_member_is_kept() -> None:
    line = line_of("a", extra={"time": 5, "level": "mine"})
    assert (line["time_"], line["level_"], line["level"]) == (5, "mine", "info")


def test_arguments_that_do_not_fit_the_message() -> None:
    assert line_of("%d items", "x")["message"].startswith("%d items ('x',) (TypeError: ")


def test_renamed_and_static_fields() -> None:
    formatter = JsonFormatter(
        rename_fields={"time": "@timestamp", "level": "log.level"}, static_fields={"service.name": "shop"}
    )
    line = line_of("a", formatter=formatter)
    assert list(line) == ["@timestamp", "log.level", "logger", "message", "pid", "service.name"]
    assert len(line_of("a", formatter=JsonFormatter(datefmt="%Y"))["time"]) == 4


def test_the_request_id_of_the_context() -> None:
    token = REQUEST_ID.set("abc")
    try:
        assert line_of("a")["request_id"] == "abc"
    finally:
        REQUEST_ID.reset(token)
    assert "request_id" not in line_of("a")


def test_the_ids_of_a_span() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider().get_tracer("t").start_as_current_span("work") as span:
        line = line_of("a")
        assert line["trace_id"] == f"{span.get_span_context().trace_id:032x}"
        assert line["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert "trace_id" not in line_of("a")


def test_a_record_that_passed_a_queue() -> None:
    passed: queue.Queue[logging.LogRecord] = queue.Queue()
    logger = logging.Logger("shop")
    logger.addHandler(logging.handlers.QueueHandler(passed))
    try:
        raise ValueError("as planned")
    except ValueError:
        logger.exception("failed", extra={"user": 1})
    text = JsonFormatter().format(passed.get())
    line = json.loads(text)
    assert line["user"] == 1
    assert "as planned" in line["message"]


@pytest.mark.parametrize("kind", ["dict", "class", "ini"])
def test_in_a_configuration(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    if kind == "ini":
        path = tmp_path / "logging.ini"
        path.write_text(
            "[loggers]\nkeys=root,of_test\n[handlers]\nkeys=file\n[formatters]\nkeys=json\n"
            "[logger_root]\nhandlers=\n[logger_of_test]\nqualname=of_test\nhandlers=file\n"
            f"[handler_file]\nclass=FileHandler\nargs=({str(log)!r},)\nformatter=json\n"
            "[formatter_json]\nclass=towline.logging.JsonFormatter\nformat=%(message)s\n"
        )
        before = logging.root.handlers[:]
        logging.config.fileConfig(path, disable_existing_loggers=False)
        logging.root.handlers[:] = before
    else:
        key = "()" if kind == "dict" else "class"
        described = {key: "towline.logging.JsonFormatter"}
        if kind == "class":
            described["format"] = "%(message)s"
        logging.config.dictConfig(
            {
                "version": 1,
                "incremental": False,
                "disable_existing_loggers": False,
                "formatters": {"json": described},
                "handlers": {
                    "file": {"class": "logging.FileHandler", "filename": str(log), "formatter": "json"}
                },
                "loggers": {"of_test": {"handlers": ["file"]}},
            }
        )
    logger = logging.getLogger("of_test")
    logger.propagate = False
    logger.warning("hello", extra={"user": 1})
    for handler in logger.handlers[:]:
        handler.close()
        logger.removeHandler(handler)
    line = json.loads(log.read_text())
    assert (line["message"], line["user"]) == ("hello", 1)
