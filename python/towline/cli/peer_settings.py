"""Settings of other servers: `UVICORN_*`, `GRANIAN_*`, `FLASK_*`, `GUNICORN_CMD_ARGS`, and the configuration files of
gunicorn and hypercorn.

What maps to an option of ours is read, below our own variables. The others are ignored with a notice or refused, as on the
command line.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _migration as migration
from .._options import options_of
from ..config import ServerConfig
from ..config.hooks import HOOKS, Hooks, checked
from ..errors import ConfigError
from . import sources
from .serve_arguments import ACTIONS, Reading, read

PREFIXES = {"UVICORN_": "uvicorn", "GRANIAN_": "granian", "FLASK_RUN_": "flask"}

# Settings of gunicorn whose flag has another name, and those of hypercorn. A table, whose layout the formatter keeps.
# fmt: off
GUNICORN_FLAGS = {
    "accesslog": "--access-logfile", "access_log_format": "--access-log-format", "ca_certs": "--ca-certs",
    "control_socket_disable": "--no-control-socket", "dirty_apps": "--dirty-app", "errorlog": "--error-logfile",
    "graceful_timeout": "--graceful-timeout", "keepalive": "--keep-alive",
    "limit_request_field_size": "--limit-request-field_size", "logconfig": "--log-config",
    "logconfig_json": "--log-config-json", "loglevel": "--log-level", "pidfile": "--pid", "preload_app": "--preload",
    "proc_name": "--name", "proxy_allow_ips": "--proxy-allow-from", "raw_env": "--env",
    "raw_paste_global_conf": "--paste-global", "reload_extra_files": "--reload-extra-file", "syslog": "--log-syslog",
    "syslog_addr": "--log-syslog-to", "syslog_facility": "--log-syslog-facility", "syslog_prefix": "--log-syslog-prefix",
    "uwsgi_allow_ips": "--uwsgi-allow-from",
}
HYPERCORN_FLAGS = {
    **GUNICORN_FLAGS, "debug": "--debug", "group": "-g", "h11_max_incomplete_size": "--limit-request-head",
    "h2_max_concurrent_streams": "--http2-max-concurrent-streams", "h2_max_header_list_size": "--http2-max-headers-size",
    "include_date_header": "--date-header", "include_server_header": "--server-header",
    "keep_alive_timeout": "--keep-alive", "pid_path": "--pid", "server_names": "--server-name",
    "shutdown_timeout": "--timeout-graceful-shutdown", "startup_timeout": "--timeout-worker-startup", "umask": "-m",
    "use_reloader": "--reload", "user": "-u", "websocket_max_message_size": "--ws-max-size",
    "wsgi_max_body_size": "--limit-request-body",
}
# fmt: on
FORWARDED_PROTO = "X-FORWARDED-PROTO"
# Settings without a flag, and the hooks that have no equivalent moment.
GUNICORN_UNMAPPED = {
    "check_config": "it is a command: towline serve --check",
    "print_config": "it is a command: towline serve --print-config",
    "sendfile": "files are sent with sendfile where the transport allows it",
    "tmp_upload_dir": "bodies of requests are streamed and not stored",
    "secure_scheme_headers": "X-Forwarded-Proto of a trusted proxy gives the scheme (--proxy-headers)",
    "default_proc_name": migration.NAME,
    "ssl_context": "TLS is configured by the --ssl options",
    "pre_exec": "there is no second supervisor (USR2); HUP replaces the workers",
    "worker_abort": "a worker that is stuck runs no Python code; its stack is written to the log",
    **dict.fromkeys(("pre_request", "post_request"), "use a middleware, or --access-log"),
    **dict.fromkeys(
        ("on_dirty_starting", "dirty_post_fork", "dirty_worker_init", "dirty_worker_exit"), migration.DIRTY
    ),
}


class Peers:
    """`program`: the server whose line this is; `given`: what it gives, and so overrides. Lines about what is ignored and
    refused go to its warnings and to `errors`."""

    def __init__(self, program: str, given: Reading, errors: list[str]) -> None:
        self._program, self._given, self._notices, self._errors = program, given, given.warnings, errors

    def from_environment(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Fields from the variables of other servers."""
        found: dict[str, Any] = {}
        for variable, value in sorted(environment.items()):
            prefix = next((each for each in PREFIXES if variable.startswith(each)), None)
            # Flask's command sets the last one for its own use.
            if prefix is None or not value or variable == "FLASK_RUN_FROM_CLI":
                continue
            name = variable.removeprefix(prefix)
            if name == "APP":
                found.setdefault("app", value)
            else:
                arguments = _arguments(f"--{name.lower().replace('_', '-')}", value)
                self._merge(found, arguments, variable, PREFIXES[prefix])
        if environment.get("FLASK_APP"):
            found.setdefault("app", environment["FLASK_APP"])
        debug = environment.get("FLASK_DEBUG", "0").lower()
        if self._program == "flask" and debug not in ("0", "false", "no"):
            found["reload"] = True
        if self._program == "gunicorn" and environment.get("SCRIPT_NAME"):
            found["root_path"] = environment["SCRIPT_NAME"].rstrip("/")
        if "GUNICORN_CMD_ARGS" in environment:
            import shlex

            try:
                words = shlex.split(environment["GUNICORN_CMD_ARGS"])
            except ValueError as error:
                raise ConfigError(f"GUNICORN_CMD_ARGS: {error}") from None
            self._merge(found, words, "GUNICORN_CMD_ARGS", "gunicorn")
        return found

    def usual_file(self) -> str | None:
        """The file that gunicorn reads without being told."""
        usual = "gunicorn.conf.py"
        return usual if self._program == "gunicorn" and os.path.exists(usual) else None

    def from_file(self, path: str | None) -> dict[str, Any] | None:
        """Fields from a program (`gunicorn.conf.py`, `python:MODULE`, `file:PATH`), which is gunicorn's or in our names, or
        from a file of hypercorn. None for another file."""
        if path is None:
            return None
        is_program = path.endswith(".py") or path.startswith(("python:", "file:"))
        is_hypercorn = self._program == "hypercorn" or os.path.basename(path).startswith("hypercorn")
        if not is_program and not is_hypercorn:
            return None
        variables = _run(path) if is_program else sources.load(path)
        found: dict[str, Any] = {}
        flags = HYPERCORN_FLAGS if is_hypercorn else GUNICORN_FLAGS
        hooks = {
            name: checked(path, name, value)
            for name, value in variables.items()
            if name in HOOKS and value is not None and not is_hypercorn
        }
        if hooks:
            settings = {name: value for name, value in variables.items() if _is_setting(name, flags)}
            found["hooks"] = Hooks(hooks, settings)
        for name, value in variables.items():
            is_kept = name == "secure_scheme_headers" and value and {*value} == {FORWARDED_PROTO}
            if name in HOOKS or value is None or is_kept:
                continue
            if name in GUNICORN_UNMAPPED:
                self._notices.append(f"{path}: {name}: ignored: {GUNICORN_UNMAPPED[name]}")
            elif name in ("wsgi_app", "application_path"):
                found["app"] = value
            elif name == "logconfig_dict":
                if value:
                    found["log_config"] = value
            elif (flag := _flag(name, flags)) is not None:
                program = "hypercorn" if is_hypercorn else "gunicorn"
                self._merge(found, _setting(flag, value), f"{path}: {name}", program)
            elif path.endswith(".toml"):
                self._notices.append(f"{path}: {name}: ignored: there is no such option")
        return found

    def _merge(self, found: dict[str, Any], arguments: list[str], where: str, program: str) -> None:
        """Adds what the arguments give."""
        known = options_of(ServerConfig)
        for words in _options(arguments):
            given = read(words, program)
            if any(
                (row.to, row.remark) == (own.to, own.remark) for row in given.rows for own in self._given.rows
            ):
                continue  # the command line gives this option
            named = where == "GUNICORN_CMD_ARGS"
            self._notices.extend(f"{where}: {w if named else w.partition(': ')[2]}" for w in given.warnings)
            unknown = [line for line in given.errors if line.startswith("unknown")]
            self._notices.extend(f"{where}: ignored: {line}" for line in unknown)
            self._errors.extend(f"{where}: {line}" for line in given.errors if line not in unknown)
            for name, value in given.fields.items() if not given.errors else ():
                if name in ACTIONS:
                    self._notices.append(
                        f"{where}: ignored: --{name.replace('_', '-')} is for the command line"
                    )
                    continue
                repeated = name in known and known[name][0].repeat and name in found
                found[name] = (*found[name], *value) if repeated else value


def _arguments(flag: str, value: str) -> list[str]:
    repeatable = {
        f"--{name.replace('_', '-')}"
        for name, (option, _) in options_of(ServerConfig).items()
        if option.repeat
    }
    row = migration.row_of(flag)
    if row is not None and not row.takes_value:
        return [] if value.lower() in ("0", "false", "no", "off") else [flag]
    target = row.to if row is not None and isinstance(row.to, str) and row.to else flag
    return [f"{flag}={word}" for word in (value.split() if target in repeatable else [value])]


def _options(arguments: list[str]) -> list[list[str]]:
    """The arguments, each option with the words up to the next one."""
    options: list[list[str]] = []
    for word in arguments:
        if word.startswith("-") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    return options


def _is_setting(name: str, flags: Mapping[str, str]) -> bool:
    return (
        name in ("wsgi_app", "logconfig_dict") or name in GUNICORN_UNMAPPED or _flag(name, flags) is not None
    )


def _run(path: str) -> dict[str, Any]:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # such a file imports modules of the application
    try:
        if path.startswith("python:"):
            found = dict(vars(importlib.import_module(path.removeprefix("python:"))))
        else:
            import runpy

            found = runpy.run_path(path.removeprefix("file:"))
        return {name: value for name, value in found.items() if not name.startswith("_")}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error


def _flag(name: str, flags: Mapping[str, str] = GUNICORN_FLAGS) -> str | None:
    """The flag of a setting; None for other variables of the file, such as an imported module."""
    if name in flags:
        return flags[name]
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
        return [f"--no-{flag.removeprefix('--')}"] if flag in ("--server-header", "--date-header") else []
    if isinstance(value, Mapping):
        return [f"{flag}={key}={each}" for key, each in value.items()]
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [f"{flag}={each}" for each in value]
    if flag in ("--umask", "-m", "--uds-permissions", "--unix-socket-perms") and isinstance(value, int):
        return [f"{flag}={value:o}"]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return [f"{flag}={value}" for value in ([value] if value != "" else [])]
