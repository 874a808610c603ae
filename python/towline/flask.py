"""`flask --app x towline`: Flask's `run` on Towline (docs/flask.md).

The command has the options of the `flask run` that is installed. A worker loads the application as Flask does, so
that a reload imports it again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

import click
import flask.cli
import flask.helpers

THREADS = 16  # Werkzeug's server has no bound
_served: dict[str, Any] = {}
"""Set by the command, and inherited by the workers: `info` of the application, `debugger` and `host`."""


@flask.cli.pass_script_info
def _serve(info: flask.cli.ScriptInfo, /, **options: Any) -> None:
    """Run the application on Towline. The reloader and the debugger are on with --debug."""
    from .cli import serve

    debug = flask.helpers.get_debug_flag()
    reload = debug if options["reload"] is None else options["reload"]
    debugger = debug if options["debugger"] is None else options["debugger"]
    _served.update(info=info, debugger=debugger, host=options["host"])
    if options.get("exclude_patterns"):
        raise click.UsageError("--exclude-patterns: give names of files or folders in TOWLINE_RELOAD_EXCLUDE")
    arguments = ["towline.flask:application", "--factory", "--interface", "wsgi"]
    arguments += ["--host", options["host"], "--port", str(options["port"])]
    arguments += ["--threads", str(THREADS if options["with_threads"] else 1)]
    if "TOWLINE_ACCESS_LOG" not in os.environ:
        arguments.append("--access-log")
    if reload:
        arguments += ["--reload", "--reload-dir", ".", "--reload-include", "*.py"]
    for path in options.get("extra_files") or () if reload else ():
        folder, name = os.path.split(path)
        arguments += ["--reload-dir", folder or ".", "--reload-include", name]
    with contextlib.ExitStack() as stack:
        arguments += _certificate(options["cert"], stack)
        flask.cli.show_server_banner(debug, info.app_import_path)
        raise SystemExit(serve.main(arguments))


def _certificate(given: Any, stack: contextlib.ExitStack) -> list[str]:
    if given is None:
        return []
    if given == "adhoc":
        from werkzeug.serving import make_ssl_devcert

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="towline-flask-"))
        given = make_ssl_devcert(os.path.join(folder, "adhoc"), host="localhost")
    if not isinstance(given, tuple):
        raise click.UsageError("--cert: Towline takes no SSLContext; give files with --cert and --key")
    return ["--ssl-certfile", given[0], "--ssl-keyfile", given[1]]


command = click.Command(
    "towline",
    callback=_serve,
    help=_serve.__doc__,
    short_help="Run the application on Towline.",
    params=flask.cli.run_command.params,
    context_settings={"auto_envvar_prefix": "FLASK_RUN"},
)


def application() -> Any:
    """Load the application in a worker, with Werkzeug's debugger around it if it is on."""
    from werkzeug.debug import DebuggedApplication

    from .errors import StartupError

    found = _served["info"]
    os.environ["WERKZEUG_RUN_MAIN"] = (
        "true"  # the process that serves; the debugger prints its PIN there only
    )
    info = flask.cli.ScriptInfo(found.app_import_path, found.create_app, found.set_debug_flag)
    try:
        app = info.load_app()
    except flask.cli.NoAppException as error:
        raise StartupError(error.format_message()) from error
    if not _served["debugger"]:
        return app
    debugged = DebuggedApplication(app, evalex=True)
    debugged.trusted_hosts.append(_served["host"])
    return debugged
