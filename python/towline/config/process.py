"""Options of the application, its addresses and its processes."""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import _options as kind
from .. import _values as values
from .._options import Section, between, each, limit, number, option, period
from .address import are_addresses, parse_list
from .checks import is_store
from .hooks import Hooks


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class ApplicationOptions(Section, group="application", summary="the application to serve"):
    app: Any = None
    hooks: Hooks | None = dataclasses.field(default=None, repr=False, kw_only=True)
    """Server hooks of a gunicorn configuration file. No option, because functions are not text."""

    interface: str = option(
        "auto", "calling convention of the application; auto detects it",
        choices=("auto", "asgi", "asgi2", "asgi3", "wsgi"))
    factory: bool = option(False, "APP is a function that returns the application")
    app_dir: str = option(
        ".", "directory searched first for the application's module, or several with : (default: the current one)",
        metavar="DIR")
    lifespan: str = option(
        "auto", "ASGI lifespan; auto also serves an application that does not support it",
        choices=("auto", "on", "off"))
    lifespan_scope: str = option(
        "loop", "with --worker-mode threads: a lifespan in each event loop, or one for the process, in its first loop",
        choices=("loop", "process"))
    pathsend: str = option(
        "auto", "offer ASGI's http.response.pathsend; auto: unless the client accepts compression",
        choices=("auto", "on", "off"))
    root_path: str = option(
        "", "path prefix under which a proxy serves the application", metavar="PATH",
        aliases=("--url-path-prefix",))
    mount: tuple[tuple[str, str], ...] = option(
        (), "serve another application under a prefix; the longest prefix wins", metavar="PREFIX=APP",
        parse=values.pair("=", "PREFIX=module:app"), repeat=True)


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class ListeningOptions(Section, group="listening", summary="addresses"):
    bind: tuple[str, ...] = option(
        (), "[http[s]://]host:port, unix:PATH or fd://N, with settings after `?`", metavar="ADDRESS",
        parse=parse_list, check=are_addresses, aliases=("-b",), repeat=True)
    host: str = option("127.0.0.1", "address or name; local by default", metavar="HOST")
    port: int = number(
        8000, "port; 0 selects a free one", aliases=("-p",), variables=("PORT",), least=None)
    uds: str | None = option(None, "Unix socket", metavar="PATH")
    uds_permissions: int = option(
        0o666, "mode of Unix sockets, octal (default: 666, because a proxy runs under another user)",
        parse=values.octal, metavar="MODE", check=between(0, 0o777))
    fd: int | None = number(None, "inherited descriptor of a listening socket", least=None)
    backlog: int = number(2048, "connections that the kernel queues before they are accepted")


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class WorkerOptions(Section, group="workers", summary="processes, threads and their replacement"):
    workers: int = number(
        1, "how many; auto: one per CPU", metavar="N|auto", parse=values.workers,
        aliases=("-w",), variables=("WEB_CONCURRENCY",), least=0)
    worker_mode: str = option(
        "processes", "threads: one process, an event loop in each thread, for Python without the GIL", metavar="KIND",
        choices=("processes", "threads"))
    threads: int = number(1, "WSGI threads per worker; 1, the fastest, runs the application on the I/O thread")
    loop: str = option(
        "auto", "event loop; auto uses uvloop if it is installed", choices=("auto", "asyncio", "uvloop"))
    limit_max_requests: int | None = limit(
        None, "replace a worker after this many requests (against memory leaks)",
        aliases=("--max-requests",))
    limit_max_requests_jitter: int = number(
        0, "random number of additional requests, to spread the replacement of workers",
        aliases=("--max-requests-jitter",), least=0)
    workers_lifetime: float | None = period(
        None, "replace a worker after this time", parse=kind.optional_seconds)
    workers_max_rss: int | None = limit(
        None, "replace a worker with more resident memory than this, in MiB", metavar="MIB")
    timeout_worker_healthcheck: float = period(
        30.0, "replace a worker if its event loop has not run for this time")
    timeout_worker_startup: float = period(60.0, "time until a worker has to be ready to serve")
    pid_file: str | None = option(
        None, "file for the supervisor's process id", metavar="PATH", aliases=("--pidfile",))


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class ProcessOptions(Section, group="process", summary="directory, variables, user and preloading"):
    chdir: str | None = option(None, "working directory, set before anything else", metavar="DIR")
    env: tuple[tuple[str, str], ...] = option(
        (), "variable for the application", metavar="NAME=VALUE", parse=values.variable, aliases=("-e",),
        secret=True, repeat=True)
    env_file: tuple[str, ...] = each(
        (), "file of variables for the application (NAME=VALUE lines); existing variables are kept", metavar="PATH")
    state: str | None = option(
        None,
        "store of towline.state: a directory that stays, or a URL (default: one that ends with the server)",
        metavar="PATH|URL", check=is_store)
    preload: bool = option(
        False, "import the application once, before the workers are forked; saves memory, but HUP then keeps the code")
    spawn: bool | None = option(
        None, "start each worker in a fresh interpreter instead of a fork, as macOS needs it (default: on macOS only)",
        parse=kind.boolean, switch=True)
    user: str | None = option(
        None, "user of the workers, by name or id; the server must start as root", metavar="USER", aliases=("-u",))
    group: str | None = option(
        None, "group of the workers (default: the user's)", metavar="GROUP", aliases=("-g",))
    umask: int | None = option(
        None, "umask of all processes, octal", parse=values.octal, metavar="MODE", aliases=("-m",))


# fmt: on
