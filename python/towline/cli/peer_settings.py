"""Settings of other servers: `UVICORN_*`, `GRANIAN_*`, `GUNICORN_CMD_ARGS` and gunicorn's Python configuration.

What maps to an option of ours is read, below our own variables. What does not is named in a notice and ignored, because
these settings belong to the deployment that is being migrated and not to the command that was typed.
"""

from __future__ import annotations

import importlib
import os
import runpy
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _migration as migration
from .._options import options_of
from ..config import ServerConfig
from ..config.hooks import HOOKS, Hooks, checked
from ..errors import ConfigError
from .option_parser import CommandLineError
from .serve_arguments import ACTIONS, parse

PREFIXES = ("UVICORN_", "GRANIAN_")
NEWLINE = "\n"

# Settings of gunicorn whose flag has another name.
GUNICORN_FLAGS = {
    "accesslog": "--access-logfile",
    "access_log_format": "--access-log-format",
    "ca_certs": "--ca-certs",
    "control_socket_disable": "--no-control-socket",
    "dirty_apps": "--dirty-app",
    "errorlog": "--error-logfile",
    "graceful_timeout": "--graceful-timeout",
    "keepalive": "--keep-alive",
    "limit_request_field_size": "--limit-request-field_size",
    "logconfig": "--log-config",
    "logconfig_json": "--log-config-json",
    "loglevel": "--log-level",
    "pidfile": "--pid",
    "preload_app": "--preload",
    "proc_name": "--name",
    "proxy_allow_ips": "--proxy-allow-from",
    "raw_env": "--env",
    "raw_paste_global_conf": "--paste-global",
    "reload_extra_files": "--reload-extra-file",
    "syslog": "--log-syslog",
    "syslog_addr": "--log-syslog-to",
    "syslog_facility": "--log-syslog-facility",
    "syslog_prefix": "--log-syslog-prefix",
    "uwsgi_allow_ips": "--uwsgi-allow-from",
}
# Settings without a flag, and the hooks that have no equivalent moment.
GUNICORN_UNMAPPED = {
    "check_config": "it is a command: towline serve --check",
    "print_config": "it is a command: towline serve --print-config",
    "sendfile": "files are sent with sendfile where the transport allows it",
    "tmp_upload_dir": "bodies of requests are streamed and not stored",
    "secure_scheme_headers": "X-Forwarded-Proto of a trusted proxy gives the scheme (--proxy-headers)",
    "default_proc_name": migration.ROWS["--name"].remark,
    "ssl_context": "TLS is configured by the --ssl options",
    "pre_exec": "there is no second supervisor (USR2); HUP replaces the workers",
    "worker_abort": "a worker that is stuck runs no Python code; its stack is written to the log",
    **dict.fromkeys(("pre_request", "post_request"), "use a middleware, or --access-log"),
    **dict.fromkeys(
        ("on_dirty_starting", "dirty_post_fork", "dirty_worker_init", "dirty_worker_exit"), migration.DIRTY
    ),
}


def from_environment(environment: Mapping[str, str], notices: list[str]) -> dict[str, Any]:
    """Fields from the variables of other servers; a notice for each that has no counterpart."""
    found: dict[str, Any] = {}
    for variable, value in sorted(environment.items()):
        prefix = next((each for each in PREFIXES if variable.startswith(each)), None)
        if prefix is None or not value:
            continue
        name = variable.removeprefix(prefix)
        if name == "APP":
            found.setdefault("app", value)
        else:
            _merge(found, _arguments(f"--{name.lower().replace('_', '-')}", value), variable, notices)
    words = shlex.split(environment.get("GUNICORN_CMD_ARGS", ""))
    _merge(found, words, "GUNICORN_CMD_ARGS", notices)
    return found


def _arguments(flag: str, value: str) -> list[str]:
    repeatable = {
        f"--{name.replace('_', '-')}"
        for name, (option, _) in options_of(ServerConfig).items()
        if option.repeat
    }
    row = migration.ROWS.get(flag)
    if row is not None and not row.takes_value:
        return [] if value.lower() in ("0", "false", "no", "off") else [flag]
    target = row.to if row is not None and isinstance(row.to, str) and row.to else flag
    return [f"{flag}={word}" for word in (value.split() if target in repeatable else [value])]


def _merge(found: dict[str, Any], arguments: list[str], where: str, notices: list[str]) -> None:
    """Adds what the arguments give. An option that cannot be taken is left out with a notice, and the others stay."""
    known = options_of(ServerConfig)
    for words in _options(arguments):
        try:
            given = parse(words)
        except CommandLineError as error:
            notices.append(f"{where}: ignored: {str(error).partition(NEWLINE)[0]}")
            continue
        for name, value in given.items():
            if name in ACTIONS:
                notices.append(f"{where}: ignored: --{name.replace('_', '-')} is for the command line")
                continue
            repeated = name in known and known[name][0].repeat and name in found
            found[name] = (*found[name], *value) if repeated else value


def _options(arguments: list[str]) -> list[list[str]]:
    """The arguments, each option with the words up to the next one."""
    options: list[list[str]] = []
    for word in arguments:
        if word.startswith("-") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    return options


def is_python(path: str | None) -> bool:
    """Whether a configuration is a program: gunicorn's `gunicorn.conf.py`, `python:module` or `file:PATH`."""
    return path is not None and (path.endswith(".py") or path.startswith(("python:", "file:")))


def from_python(path: str, notices: list[str]) -> dict[str, Any]:
    """Fields from gunicorn's configuration, or one in our names: the variables of a Python file or module."""
    found: dict[str, Any] = {}
    variables = {name: value for name, value in _run(path).items() if not name.startswith("_")}
    hooks = {
        name: checked(path, name, value)
        for name, value in variables.items()
        if name in HOOKS and value is not None
    }
    if hooks:
        settings = {name: value for name, value in variables.items() if _is_setting(name)}
        found["hooks"] = Hooks(hooks, settings)
    for name, value in variables.items():
        if name in HOOKS or value is None:
            continue
        if name in GUNICORN_UNMAPPED:
            notices.append(f"{path}: {name}: ignored: {GUNICORN_UNMAPPED[name]}")
        elif name == "wsgi_app":
            found["app"] = value
        elif name == "logconfig_dict":
            if value:
                found["log_config"] = value
        elif (flag := _flag(name)) is not None:
            _merge(found, _setting(flag, value), f"{path}: {name}", notices)
    return found


def _is_setting(name: str) -> bool:
    return name in ("wsgi_app", "logconfig_dict") or name in GUNICORN_UNMAPPED or _flag(name) is not None


def _run(path: str) -> dict[str, Any]:
    try:
        if path.startswith("python:"):
            return dict(vars(importlib.import_module(path.removeprefix("python:"))))
        return runpy.run_path(path.removeprefix("file:"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error


def _flag(name: str) -> str | None:
    """The flag of a setting; None for other variables of the file, such as an imported module."""
    if name in GUNICORN_FLAGS:
        return GUNICORN_FLAGS[name]
    flag = f"--{name.replace('_', '-')}"
    ours = options_of(ServerConfig)
    aliases = {alias for option, _ in ours.values() for alias in (option.flag, *option.aliases)}
    known = name in ours or flag in aliases or flag in migration.ROWS
    return flag if known else None


def _setting(flag: str, value: Any) -> list[str]:
    """A value of Python as arguments."""
    if value is True:
        return [flag]
    if value is False:
        return []
    if isinstance(value, Mapping):
        return [f"{flag}={key}={each}" for key, each in value.items()]
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [f"{flag}={each}" for each in value]
    if flag in ("--umask", "-m", "--uds-permissions") and isinstance(value, int):
        return [f"{flag}={value:o}"]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return [f"{flag}={value}" for value in ([value] if value != "" else [])]
