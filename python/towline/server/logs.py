"""The server's log: the logger `towline.server`, to stderr. The access log is separate: it is written natively.

With `--log-format json` the records of the application are written too, unless a handler of the application writes
them. Nothing else of the application's logging is changed.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import threading
from typing import Any

from .._values import LOG_LEVELS
from ..config import ServerConfig
from ..errors import ConfigError
from ..logging import JsonFormatter

LOGGER = "towline"
SERVER_LOGGER = "towline.server"
CLIENT_LOGGER = "towline.client"
FORMAT = "%(asctime)s [%(process)d] %(levelname)-7s %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S %z"
PEERS = ("uvicorn", "gunicorn.error")


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


class ApplicationHandler(logging.StreamHandler[Any]):
    """The handler of the root logger with `--log-format json`. Its place is that of `logging.lastResort`."""

    def filter(self, record: logging.LogRecord) -> Any:
        """Whether no handler of the application writes the record to a stream, a file or a queue, at any level."""
        queues = getattr(sys.modules.get("logging.handlers"), "QueueHandler", logging.StreamHandler)
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            for handler in logger.handlers:
                if handler is not self and isinstance(handler, (logging.StreamHandler, queues)):
                    # Django's handler for DEBUG writes nothing without it.
                    filters = (
                        each for each in handler.filters if type(each).__module__ == "django.utils.log"
                    )
                    if all(each.filter(record) for each in filters):  # type: ignore[union-attr]
                        return False
            logger = logger.parent if logger.propagate else None
        return super().filter(record)


def configure(config: ServerConfig) -> ServerConfig:
    """Apply the options of logs. Returns the configuration, with the logger of the access log that `--log-config` names.
    Raises `ConfigError`."""
    logging.addLevelName(LOG_LEVELS["trace"], "TRACE")
    logger = logging.getLogger(LOGGER)
    level, replaced = LOG_LEVELS[config.log_level], False
    if config.log_config is not None:
        from . import log_config  # here because few need it: it makes starting slower

        replaced = log_config.apply(config.log_config)
        level = _join_peers(logger, level)
        config = _with_access_logger(config)
    elif not logger.handlers:
        _add_handlers(logger, level, _handler(config.log_file), as_json=config.log_format == "json")
    logger.setLevel(level)
    if replaced:
        logging.getLogger(SERVER_LOGGER).info("log_config: Towline's formatters replace those of uvicorn")
    client = logging.getLogger(CLIENT_LOGGER)
    if client.level == logging.NOTSET:
        # The calls of the application are not the server's, and take longer while they are logged.
        client.setLevel(max(logging.WARNING, logger.level))
    return config


def _handler(path: str | None) -> logging.Handler:
    """To stderr, or to a file, which is opened again after a rotation has moved it."""
    if path in (None, "", "-"):
        return logging.StreamHandler(sys.stderr)
    from logging.handlers import WatchedFileHandler  # here because few need it: it makes starting slower

    try:
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"log_file: cannot write {path}: {error.strerror}") from None


def _add_handlers(logger: logging.Logger, level: int, handler: logging.Handler, *, as_json: bool) -> None:
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(FORMAT, DATE_FORMAT))
    logger.addHandler(handler)
    logger.propagate = False
    for name in PEERS:
        # Applications log to these, or take their handlers.
        peer = logging.getLogger(name)
        if not peer.hasHandlers():
            peer.addHandler(handler)
            peer.setLevel(level)
            peer.propagate = False
    if as_json and not logging.root.handlers:
        _write_application()


def _write_application() -> None:
    """Write the records of the application, until it configures the root logger."""
    handler = ApplicationHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.root.addHandler(handler)
    logging.captureWarnings(True)
    basic_config = logging.basicConfig

    @functools.wraps(basic_config)
    def configure_root(**options: Any) -> None:
        # `basicConfig` does nothing if the root logger has a handler.
        logging.root.removeHandler(handler)
        basic_config(**options)

    logging.basicConfig = configure_root
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _log_thread


def _log_thread(args: threading.ExceptHookArgs) -> None:
    """Log an exception that ends a thread, as one record."""
    if args.exc_type is not SystemExit:
        name = getattr(args.thread, "name", None)
        logging.getLogger("threading").error("exception in thread %s", name, exc_info=args.exc_value)


def _join_peers(logger: logging.Logger, level: int) -> int:
    """Pass records on to the logger of uvicorn or gunicorn, if a configuration names it. Returns the level."""
    if logger.handlers or logging.getLogger(SERVER_LOGGER).handlers:
        return level
    for name in ("uvicorn.error", "gunicorn.error"):
        peer = logging.getLogger(name)
        if peer.handlers or peer.parent is not logging.root:
            logger.parent = peer
            return max(level, peer.getEffectiveLevel())
    return level


def _with_access_logger(config: ServerConfig) -> ServerConfig:
    if config.access_log is None and config.access_log_logger is None:
        for name in ("uvicorn.access", "gunicorn.access"):
            logger = logging.root.manager.loggerDict.get(name)
            if isinstance(logger, logging.Logger) and logger.isEnabledFor(logging.INFO):
                return dataclasses.replace(config, access_log_logger=name)
    return config


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def report_failure(message: str, *, as_json: bool) -> None:
    """Write why the server does not start: a sentence, or a traceback of the application."""
    if as_json and logging.getLogger(LOGGER).hasHandlers():
        logging.getLogger(SERVER_LOGGER).critical("%s", message)
    else:
        sys.stderr.write(f"{message}\n" if message.startswith("Traceback") else f"towline: {message}\n")


def native_log(level: int, message: str, error: BaseException | None = None) -> None:
    """Log a message of a native server. `level` is one of the module `logging`."""
    logging.getLogger(SERVER_LOGGER).log(level, message, exc_info=error)
