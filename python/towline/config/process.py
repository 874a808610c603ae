"""Options of the application, its addresses and its processes."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _options as kind
from .. import _values as values
from .._options import above_zero, at_least, between, option
from .checks import is_store
from .groups import APPLICATION, INT, LIMIT, LISTENING, PROCESS, SECONDS, WORKERS
from .hooks import Hooks


# fmt: off - a table of options: one line each where it fits
@dataclasses.dataclass(frozen=True)
class ProcessOptions:
    """The application, its addresses, workers and their process attributes."""

    app: Any = None
    hooks: Hooks | None = dataclasses.field(default=None, repr=False, kw_only=True)
    """Of a gunicorn configuration file. No option: functions are not text."""

    interface: str = option(
        "auto",
        "calling convention of the application; auto detects it",
        group=APPLICATION,
        choices=("auto", "asgi", "asgi2", "asgi3", "wsgi"),
    )
    factory: bool = option(False, "APP is a function that returns the application", group=APPLICATION)
    app_dir: str = option(
        ".",
        "directory searched first for the application's module (default: the current one)",
        group=APPLICATION,
        metavar="DIR",
    )
    lifespan: str = option(
        "auto",
        "ASGI lifespan; auto: an application without support for it is served all the same",
        group=APPLICATION,
        choices=("auto", "on", "off"),
    )
    pathsend: str = option(
        "auto",
        "offer ASGI's http.response.pathsend; auto: unless the client accepts compression",
        group=APPLICATION,
        choices=("auto", "on", "off"),
    )
    root_path: str = option(
        "",
        "path prefix under which a proxy serves the application",
        group=APPLICATION,
        metavar="PATH",
        aliases=("--url-path-prefix",),
    )
    mount: tuple[tuple[str, str], ...] = option(
        (),
        "serve another application under a prefix; the longest prefix wins",
        group=APPLICATION,
        metavar="PREFIX=APP",
        parse=values.pair("=", "PREFIX=module:app"),
        repeat=True,
    )

    bind: tuple[str, ...] = option(
        (),
        "host:port, [v6]:port, unix:PATH or fd://N; instead of --host and --port",
        group=LISTENING,
        metavar="ADDRESS",
        parse=kind.words,
        aliases=("-b",),
        repeat=True,
    )
    host: str = option("127.0.0.1", "address or name; local only by default", group=LISTENING, metavar="HOST")
    port: int = option(8000, "port; 0 selects a free one", group=LISTENING, aliases=("-p",), **INT)
    uds: str | None = option(None, "Unix socket", group=LISTENING, metavar="PATH")
    uds_permissions: int = option(
        0o666,
        "mode of Unix sockets, octal (default: 666, as a proxy runs under another user)",
        group=LISTENING,
        parse=values.octal,
        metavar="MODE",
        check=between(0, 0o777),
    )
    fd: int | None = option(None, "inherited descriptor of a listening socket", group=LISTENING, **INT)
    backlog: int = option(
        2048,
        "connections that the kernel queues before they are accepted",
        group=LISTENING,
        check=at_least(1),
        **INT,
    )

    workers: int = option(
        1,
        "worker processes",
        group=WORKERS,
        aliases=("-w",),
        variables=("WEB_CONCURRENCY",),
        check=at_least(1),
        **INT,
    )
    threads: int = option(
        1,
        "WSGI threads per worker; 1, the fastest, runs the application on the I/O thread",
        group=WORKERS,
        check=at_least(1),
        **INT,
    )
    loop: str = option(
        "auto",
        "event loop; auto uses uvloop if it is installed",
        group=WORKERS,
        choices=("auto", "asyncio", "uvloop"),
    )
    limit_max_requests: int | None = option(
        None,
        "replace a worker after this many requests (against memory leaks in the application)",
        group=WORKERS,
        aliases=("--max-requests",),
        **LIMIT,
    )
    limit_max_requests_jitter: int = option(
        0,
        "random number of additional requests, to spread the replacement of workers",
        group=WORKERS,
        aliases=("--max-requests-jitter",),
        check=at_least(0),
        **INT,
    )
    workers_lifetime: float | None = option(
        None,
        "replace a worker after this time",
        group=WORKERS,
        parse=kind.optional_seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    workers_max_rss: int | None = option(
        None,
        "replace a worker with more resident memory than this, in MiB",
        group=WORKERS,
        parse=kind.optional_integer,
        metavar="MIB",
        check=at_least(1),
    )
    timeout_worker_healthcheck: float = option(
        30.0,
        "replace a worker if its event loop has not run for this time",
        group=WORKERS,
        **SECONDS,
    )
    timeout_worker_startup: float = option(
        60.0, "time until a worker has to be ready to serve", group=WORKERS, **SECONDS
    )
    pid_file: str | None = option(
        None,
        "file for the supervisor's process id",
        group=WORKERS,
        metavar="PATH",
        aliases=("--pidfile",),
    )

    chdir: str | None = option(
        None, "working directory, set before anything else", group=PROCESS, metavar="DIR"
    )
    env: tuple[tuple[str, str], ...] = option(
        (),
        "variable for the application",
        group=PROCESS,
        metavar="NAME=VALUE",
        parse=values.variable,
        aliases=("-e",),
        secret=True,
        repeat=True,
    )
    env_file: tuple[str, ...] = option(
        (),
        "file of variables for the application (NAME=VALUE lines); existing ones are kept",
        group=PROCESS,
        metavar="PATH",
        parse=values.one,
        repeat=True,
    )
    state: str | None = option(
        None,
        "store of towline.state: a directory that stays, or a URL (default: one that ends with the server)",
        group=PROCESS,
        metavar="PATH|URL",
        check=is_store,
    )
    preload: bool = option(
        False,
        "import the application once, before the workers are forked; saves memory, HUP keeps the code",
        group=PROCESS,
    )
    user: str | None = option(
        None,
        "user of the workers, by name or id; start as root for it",
        group=PROCESS,
        metavar="USER",
        aliases=("-u",),
    )
    group: str | None = option(
        None, "their group (default: that of the user)", group=PROCESS, metavar="GROUP", aliases=("-g",)
    )
    umask: int | None = option(
        None,
        "umask of all processes, octal",
        group=PROCESS,
        parse=values.octal,
        metavar="MODE",
        aliases=("-m",),
    )


# fmt: on
