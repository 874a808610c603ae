"""The server's log: the logger `towline.server`, to stderr.

The application's logging is not changed. The access log is separate: it is written natively, outside the request
path.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
from typing import IO, Any

from .._values import LOG_LEVELS
from ..errors import ConfigError

LOGGER = "towline"
SERVER_LOGGER = "towline.server"
CLIENT_LOGGER = "towline.client"
FORMAT = "%(asctime)s [%(process)d] %(levelname)-7s %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S %z"


class ServerLogger(logging.Logger):
    """A logger that `logging.config` does not disable: that is its default for all loggers that a configuration does
    not name, and would hide the errors of an application whose configuration knows nothing of the server."""

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass


for name in (LOGGER, SERVER_LOGGER):
    logging.getLogger(name).__class__ = ServerLogger


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: control and bidirectional characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created).astimezone()
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


def configure(level: str, log_config: Any, log_format: str = "text", log_file: str | None = None) -> None:
    """Apply `--log-config` if given, else the default handler; then the level. Raises `ConfigError`."""
    logging.addLevelName(LOG_LEVELS["trace"], "TRACE")
    logger = logging.getLogger(LOGGER)
    if log_config is not None:
        _apply(log_config)
    elif not logger.handlers:
        handler = _handler(log_file)
        as_json = log_format == "json"
        handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(FORMAT, DATE_FORMAT))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(LOG_LEVELS[level])
    client = logging.getLogger(CLIENT_LOGGER)
    if client.level == logging.NOTSET:
        # The calls of the application are not the server's, and take longer while they are logged.
        client.setLevel(max(logging.WARNING, logger.level))


def _handler(path: str | None) -> logging.Handler:
    """To stderr, or to a file, which is opened again after a rotation has moved it."""
    if path in (None, "", "-"):
        return logging.StreamHandler(sys.stderr)
    from logging.handlers import WatchedFileHandler  # here because few need it: it makes starting slower

    try:
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"log_file: cannot write {path}: {error.strerror}") from None


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def native_log(level: int, message: str, error: BaseException | None = None) -> None:
    """Log a message of a native server. `level` is one of the module `logging`."""
    logging.getLogger(SERVER_LOGGER).log(level, message, exc_info=error)


def _apply(log_config: Any) -> None:
    import logging.config  # here because few need it: it makes starting slower

    if isinstance(log_config, dict):
        logging.config.dictConfig(log_config)
        return
    if not isinstance(log_config, (str, os.PathLike)):
        # A parser or an open file, as uvicorn takes.
        logging.config.fileConfig(log_config, disable_existing_loggers=False)
        return
    path = os.fspath(log_config)
    try:
        if path.endswith((".json", ".toml", ".yaml", ".yml")):
            logging.config.dictConfig(_load(path))
        else:
            with open(path, encoding="utf-8"):
                pass  # fileConfig does not report a missing file
            logging.config.fileConfig(path, disable_existing_loggers=False)
    except OSError as error:
        raise ConfigError(f"log_config: cannot read {path}: {error.strerror}") from None
    except Exception as error:
        raise ConfigError(f"log_config: {path}: {error}") from None


def _load(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        if path.endswith(".json"):
            loaded: dict[str, Any] = json.load(file)
            return loaded
        if path.endswith((".yaml", ".yml")):
            return _yaml(file)
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        table: dict[str, Any] = tomllib.load(file)
        return table


def _yaml(file: IO[bytes]) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ValueError(
            "YAML needs the package pyyaml (pip install pyyaml), or use .json or .toml"
        ) from None
    loaded = yaml.safe_load(file)
    if not isinstance(loaded, dict):
        raise ValueError("expected a mapping")
    return loaded
