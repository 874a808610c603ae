"""`--log-config`: a configuration of `logging`, also one that was written for uvicorn or gunicorn."""

from __future__ import annotations

import configparser
import contextlib
import importlib.util
import json
import logging
import logging.config
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .access_records import UvicornFormatter


def _to(stream: str) -> dict[str, str]:
    return {"class": "logging.StreamHandler", "formatter": "generic", "stream": f"ext://sys.{stream}"}


# Keys that gunicorn adds where a configuration lacks them.
GUNICORN_DEFAULTS: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "root": {"level": "INFO", "handlers": ["console"]},
    "handlers": {"console": _to("stdout"), "error_console": _to("stderr")},
    "formatters": {"generic": {"format": "%(asctime)s [%(process)d] [%(levelname)s] %(message)s"}},
}


def apply(log_config: Any) -> bool:
    """Apply a dict, a parser, an open file or the path of a file. Returns whether formatters of Towline replace those of
    uvicorn. Raises `ConfigError`."""
    path = os.fspath(log_config) if isinstance(log_config, (str, os.PathLike)) else None
    try:
        read = log_config if path is None else _parse(path, Path(path).read_text(encoding="utf-8-sig"))
        with _importable_formatters():
            if isinstance(read, dict):
                logging.config.dictConfig(_with_defaults(read))
            else:
                logging.config.fileConfig(read, disable_existing_loggers=False)
    except Exception as error:
        if isinstance(error, OSError) and error.filename == path:
            raise ConfigError(f"log_config: cannot read {path}: {error.strerror}") from None
        raise ConfigError(": ".join(filter(None, ("log_config", path, _reason(error))))) from None
    return UvicornFormatter.is_used


def _parse(path: str, text: str) -> Any:
    if path.endswith(".json"):
        loaded = json.loads(text)
    elif path.endswith((".yaml", ".yml")):
        try:
            import yaml
        except ImportError:
            raise ConfigError(
                "YAML needs the package pyyaml (pip install pyyaml), or use .json or .toml"
            ) from None
        loaded = yaml.safe_load(text)
    elif path.endswith(".toml"):
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        loaded = tomllib.loads(text)
    else:
        parser = configparser.ConfigParser({"here": os.path.dirname(os.path.abspath(path))})
        parser.read_string(text, path)
        if not parser.has_section("loggers"):
            raise ConfigError(
                "expected the sections of an .ini file ([loggers], ...), or a name in .json, .toml or .yaml"
            )
        return parser
    if not isinstance(loaded, dict):
        raise ConfigError("expected a mapping with the keys of logging.config.dictConfig")
    return loaded


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with gunicorn's defaults, if it is one for gunicorn."""
    names = config.get("loggers") or ()
    if "version" not in config or any(name.split(".")[0] == "gunicorn" for name in names):
        merged = {key: GUNICORN_DEFAULTS[key] | config.get(key, {}) for key in ("handlers", "formatters")}
        return GUNICORN_DEFAULTS | config | merged
    return config


@contextlib.contextmanager
def _importable_formatters() -> Iterator[None]:
    """Lets a configuration name the formatters of uvicorn where uvicorn is not installed."""
    if importlib.util.find_spec("uvicorn") is not None:
        yield
        return
    package, module = (types.ModuleType(name) for name in ("uvicorn", "uvicorn.logging"))
    vars(package)["logging"] = module
    vars(module).update(dict.fromkeys(("DefaultFormatter", "AccessFormatter"), UvicornFormatter))
    sys.modules |= {"uvicorn": package, "uvicorn.logging": module}
    try:
        yield
    finally:
        del sys.modules["uvicorn"], sys.modules["uvicorn.logging"]


def _reason(error: BaseException) -> str:
    """The error with its first cause and what to do, in one line."""
    if isinstance(error, ConfigError):
        return str(error)
    first = error
    while (cause := first.__cause__ or first.__context__) is not None:
        first = cause
    texts = [str(error)] if first is not error else []
    if isinstance(first, FileNotFoundError) and first.filename:
        texts.append(
            f"the directory {os.path.dirname(os.path.abspath(first.filename))} does not exist: create it"
        )
    elif isinstance(first, KeyError):
        texts.append(f"{first} is not defined in the configuration")
    elif isinstance(first, ImportError):
        texts.append(f"{first}: install the package, or correct the name")
    else:
        texts.append(str(first) or type(first).__name__)
    return " ".join(": ".join(texts).split())
