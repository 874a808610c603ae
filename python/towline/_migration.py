"""Options of uvicorn, gunicorn, granian and hypercorn that Towline does not have under the same name.

Each is replaced by ours, has no effect because Towline always does it, or is refused with the reason. Those with the
same name and meaning need no row. A test holds the table against the option lists of the four packages, and
docs/migrate.md is written from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

U, N, G, H = "uvicorn", "gunicorn", "granian", "hypercorn"


class Refused(Exception):
    """The option has no counterpart; the message has the reason."""


class Row(NamedTuple):
    """`flag` of `servers`. `to`: our flag, with a fixed value after "=", or several, or a function of the value, or ""
    where it has no effect. None: refused. `takes_value`: it is followed by a value. `remark`: a difference, the reason
    why it has no effect, or why it is refused."""

    servers: str
    flag: str
    to: str | Callable[[str], str] | None
    remark: str = ""
    takes_value: bool = True


def _switch(servers: str, flag: str, to: str | None, remark: str = "") -> Row:
    return Row(servers, flag, to, remark, takes_value=False)


def _worker_class(value: str) -> str:
    name = value.rpartition(".")[2].removesuffix("Worker").lower()
    if name in ("sync", "gthread", "thread"):
        return "--interface=wsgi"
    if name in ("uvicorn", "uvicornh11", "asgi"):
        return "--interface=asgi"
    if name in ("asyncio", "uvloop"):
        return f"--loop={name}"
    raise Refused(f"{value}: workers run asyncio or uvloop (--loop), or WSGI threads (--threads)")


def _tls_version(value: str) -> str:
    known = {
        "2": "",
        "16": "",
        "17": "",
        "tls": "",
        "tls_server": "",
        "sslv23": "",
        "tlsv1_2": "1.2",
        "5": "1.2",
    }
    name = value.strip().lower().removeprefix("protocol_")
    if name not in known:
        raise Refused(f"{value}: there is TLS 1.2 and 1.3 only; --ssl-min-version chooses the oldest")
    return f"--ssl-min-version={known[name]}" if known[name] else ""


def _verify_mode(value: str) -> str:
    return f"--ssl-cert-reqs={value.lower().removeprefix('cert_')}"


def _milliseconds(flag: str) -> Callable[[str], str]:
    def convert(value: str) -> str:
        try:
            return f"{flag}={int(value) / 1000:g}"
        except ValueError:
            raise Refused(f"expected milliseconds, not {value!r}") from None

    return convert


def _http_protocols(value: str) -> str:
    versions = {name.strip() for name in value.lower().split(",")}
    if not versions <= {"h1", "h2"}:
        raise Refused(f"{value}: there is h1 and h2")
    return "" if len(versions) == 2 else "--no-http2" if versions == {"h1"} else "--no-http1"


HTTP_VALUES = {"auto": "", "1": "--no-http2", "2": "--no-http1", "h11": "--no-http2"}
HTTP_VALUES |= dict.fromkeys(("httptools", "zttp"), "--no-http2")


def _http(value: str) -> str:
    if value not in HTTP_VALUES:
        raise Refused(f"{value}: each version has a switch: --http1, --http2, --http3 (--no-http1, ...)")
    return HTTP_VALUES[value]


def _protocol(value: str) -> str:
    if value.lower() == "http":
        return ""
    raise Refused(f"{value}: there is HTTP only, so the proxy must use HTTP (nginx: proxy_pass)")


def _python_path(value: str) -> str:
    if "," in value:
        raise Refused("several directories: set PYTHONPATH; --app-dir is one")
    return f"--app-dir={value}"


def _timeout(value: str) -> str:
    # gunicorn's 0 means never.
    return f"--timeout-worker-healthcheck={YEAR if value.strip() == '0' else value}"


ALWAYS = "always so"
YEAR = 365 * 86400
SYSLOG = (
    "lines go to stderr and stdout: systemd and container engines collect them; or a handler in --log-config"
)
STATSD = "metrics of StatsD are those of requests and workers; the queue is in towline_queue_wait_seconds of --metrics"
DIRTY = "there are no workers for long tasks beside those of requests; use a task queue"
CONTROL = "signals control the server (HUP, TTIN, TTOU, USR1), and --metrics shows its state"
STRICT = "requests are parsed strictly, because leniency allows request smuggling"
# A table, whose layout the formatter keeps.
# fmt: off
ROW_GROUPS: tuple[tuple[Row, ...], ...] = (
    (
        Row(U, "--reload-delay", "", "changes are reported by the kernel (watchfiles), or looked for each second"),
        Row(f"{U} {G}", "--http", _http, "HTTP/2 is on by default; `1` and the parsers of HTTP/1.1 turn it off"),
        Row(U, "--ws-max-queue", "", "one message is read ahead, more only as the application receives them"),
        Row(f"{U} {N}", "--ssl-version", _tls_version, "TLS 1.2 and 1.3 together unless --ssl-min-version 1.3"),
        Row(U, "--h11-max-incomplete-event-size", "--limit-request-head"),
        _switch(U, "--reset-contextvars", "", "each request has a fresh context"),
        _switch(U, "--use-colors", "", "log lines have no colours"),
        _switch(U, "--no-use-colors", "", "log lines have no colours"),
    ),
    (
        Row(N, "-k", _worker_class, "the interface is detected; gevent, eventlet and tornado are not supported"),
        Row(f"{N} {H}", "--worker-class", _worker_class, "as -k"),
        Row(N, "--timeout", _timeout, "--timeout-worker-healthcheck: a worker that is stuck for this time is replaced"),
        Row(N, "-t", _timeout, "as --timeout"),
        Row(N, "--limit-request-field_size", "--limit-request-field-size"),
        Row(N, "--reload-engine", None, "watchfiles if it is installed, else polling"),
        Row(N, "--reload-extra-file", None, "give its name to --reload-include and its directory to --reload-dir"),
        _switch(N, "--spew", None, "use a debugger or sys.settrace in the application"),
        _switch(N, "--check-config", "--check"),
        _switch(N, "--no-sendfile", None,
            "files are sent with sendfile where the transport allows it; there is no switch"),
        _switch(N, "--reuse-port", None, "workers share one socket; HUP replaces them without losing a connection"),
        _switch(f"{N} {H}", "--daemon", None, "run it under systemd, a container engine or another supervisor"),
        _switch(f"{N} {H}", "-D", None, "as --daemon"),
        Row(f"{N} {H}", "--pid", "--pid-file", "-p is --port here"),
        Row(N, "--worker-tmp-dir", None, "heartbeats are in shared memory, not in a file"),
        _switch(N, "--initgroups", "", "with --user the workers always have the groups of that user"),
        Row(f"{N} {H}", "--access-logfile", "--access-log"),
        _switch(N, "--disable-redirect-access-to-syslog", "", "the access log never goes to syslog"),
        Row(f"{N} {H}", "--error-logfile", None, "the server log goes to stderr: redirect it, or use --log-config"),
        Row(f"{N} {H}", "--log-file", None, "as --error-logfile"),
        _switch(N, "--capture-output", None, "the application's output is not captured: redirect stdout and stderr"),
        Row(N, "--logger-class", None, "use --log-config; the logger is `towline`"),
        Row(N, "--log-config-json", "--log-config"),
        Row(N, "--log-syslog-to", None, SYSLOG),
        _switch(N, "--log-syslog", None, SYSLOG),
        Row(N, "--log-syslog-prefix", None, SYSLOG),
        Row(N, "--log-syslog-facility", None, SYSLOG),
        _switch(N, "--enable-stdio-inheritance", "", "workers always inherit stdout and stderr"),
        _switch(N, "-R", "", "as --enable-stdio-inheritance"),
        Row(f"{N} {H}", "--statsd-host", "--statsd"),
        Row(f"{N} {H}", "--statsd-prefix", "--statsd-prefix",
            "names begin with it, without `gunicorn.` or `hypercorn.`"),
        Row(N, "--dogstatsd-tags", "--statsd-tags"),
        _switch(N, "--enable-backlog-metric", None, STATSD),
        Row(N, "--name", None, "processes have the command's name; give the service a name in systemd"),
        Row(N, "-n", None, "as --name"),
        Row(N, "--pythonpath", _python_path),
        Row(N, "--paste", None, "load the file in a module, and serve that: app = paste.deploy.loadapp(...)"),
        Row(N, "--paster", None, "as --paste"),
        Row(N, "--paste-global", None, "as --paste"),
        Row(N, "--proxy-allow-from", None, "--forwarded-allow-ips is the list for PROXY headers as well"),
        Row(N, "--protocol", _protocol, "HTTP only: neither uwsgi nor FastCGI"),
        Row(N, "--uwsgi-allow-from", None, "there is HTTP only"),
        Row(f"{N} {H}", "--cert-reqs", "--ssl-cert-reqs"),
        Row(f"{N} {H}", "--ca-certs", "--ssl-ca-certs"),
        Row(f"{N} {H}", "--ciphers", "--ssl-ciphers", "names of suites; groups such as ECDHE+AESGCM are refused"),
        _switch(N, "--suppress-ragged-eofs", "", ALWAYS),
        _switch(N, "--do-handshake-on-connect", "", "handshakes never block a worker"),
        Row(N, "--http-protocols", _http_protocols),
        Row(N, "--http2-cleartext", "", "HTTP/2 without TLS works by prior knowledge; not with --no-http2"),
        Row(N, "--http2-initial-window-size", "--http2-initial-stream-window-size"),
        Row(f"{N} {G}", "--http2-max-frame-size", None, "frames of requests have at most 16384 bytes, the minimum"),
        Row(N, "--http2-max-header-list-size", "--http2-max-headers-size"),
        _switch(N, "--permit-obsolete-folding", None, STRICT),
        _switch(N, "--strip-header-spaces", None, STRICT),
        _switch(N, "--permit-unconventional-http-method", "", "any token is a method (RFC 9110 9.1)"),
        _switch(N, "--permit-unconventional-http-version", None, STRICT),
        _switch(N, "--casefold-http-method", None, "methods are case-sensitive (RFC 9110 9.1)"),
        Row(N, "--forwarder-headers", None, "X-Forwarded-For and X-Forwarded-Proto are read (--proxy-headers)"),
        Row(N, "--header-map", None, "headers whose names have an underscore never reach a WSGI environ"),
        Row(N, "--asgi-loop", "--loop"),
        Row(N, "--asgi-lifespan", "--lifespan"),
        Row(N, "--asgi-disconnect-grace-period", None, "http.disconnect is delivered at once and cancels nothing"),
        Row(N, "--websocket-max-message-size", "--ws-max-size"),
        Row(N, "--http-parser", None, "there is one parser, in Rust"),
        *(
            Row(N, f"--dirty-{name}", None, DIRTY)
            for name in ("app", "workers", "timeout", "threads", "graceful-timeout")
        ),
        Row(N, "--control-socket", None, CONTROL),
        Row(N, "--control-socket-mode", None, CONTROL),
        _switch(N, "--no-control-socket", "", "there is none"),
    ),
    (
        Row(G, "--blocking-threads", "--threads"),
        Row(G, "--blocking-threads-idle-timeout", None, "threads are started once and kept"),
        Row(G, "--runtime-threads", None, "the event loop and the I/O of a worker share one thread: --workers"),
        Row(G, "--runtime-blocking-threads", None, "files are read on the I/O thread in small pieces"),
        Row(G, "--runtime-mode", None, "the event loop and the I/O of a worker share one thread"),
        Row(G, "--task-impl", None, "requests are asyncio tasks"),
        Row(G, "--http1-buffer-size", "--limit-request-head", "the bound on a request's head"),
        Row(G, "--http1-header-read-timeout", _milliseconds("--timeout-request-header"), "milliseconds there"),
        _switch(G, "--http1-keep-alive", "", ALWAYS),
        _switch(G, "--no-http1-keep-alive", None, "a short --timeout-keep-alive closes idle connections"),
        _switch(G, "--http1-pipeline-flush", "", "responses of one turn are written together"),
        _switch(G, "--no-http1-pipeline-flush", "", "responses of one turn are written together"),
        _switch(G, "--http2-adaptive-window", None, "windows are fixed: --http2-initial-stream-window-size"),
        _switch(G, "--no-http2-adaptive-window", "", ALWAYS),
        Row(G, "--http2-keep-alive-interval", None,
            "dead peers are found by --timeout-keep-alive and timeouts of bodies"),
        Row(G, "--http2-keep-alive-timeout", None, "as --http2-keep-alive-interval"),
        Row(G, "--http2-max-send-buffer-size", None, "64 KiB per stream, then send() waits"),
        _switch(G, "--log", "", ALWAYS),
        _switch(G, "--no-log", "--log-level=critical"),
        Row(G, "--ssl-certificate", "--ssl-certfile"),
        Row(G, "--ssl-protocol-min", "--ssl-min-version"),
        Row(G, "--ssl-ca", "--ssl-ca-certs"),
        _switch(G, "--ssl-client-verify", "--ssl-cert-reqs=required"),
        _switch(G, "--no-ssl-client-verify", "--ssl-cert-reqs=none"),
        _switch(G, "--respawn-failed-workers", "", "dead workers are always replaced"),
        _switch(G, "--no-respawn-failed-workers", None, "dead workers are always replaced"),
        Row(G, "--respawn-interval", None, "the first restart is immediate, the next ones wait ever longer"),
        Row(G, "--rss-sample-interval", None, "memory is measured each second"),
        Row(G, "--rss-samples", None, "one measurement above --workers-max-rss decides"),
        Row(G, "--workers-kill-timeout", "--timeout-graceful-shutdown"),
        Row(G, "--working-dir", "--chdir"),
        Row(G, "--env-files", "--env-file"),
        Row(G, "--metrics-scrape-interval", None, "figures are read when /metrics is requested"),
        Row(G, "--metrics-port", lambda value: f"--metrics-address=127.0.0.1:{value}",
            "--metrics-address has the port"),
        Row(G, "--reload-paths", "--reload-dir"),
        Row(G, "--reload-ignore-dirs", "--reload-exclude", "a name or a glob"),
        Row(G, "--reload-ignore-patterns", None, "--reload-exclude takes globs, not regular expressions"),
        Row(G, "--reload-ignore-paths", None, "--reload-exclude takes names and globs, not paths"),
        Row(G, "--reload-tick", None, "as --reload-delay of uvicorn"),
        _switch(G, "--reload-ignore-worker-failure", "", "after a failed start the server waits for a change"),
        _switch(G, "--no-reload-ignore-worker-failure", "", "after a failed start the server waits for a change"),
        Row(G, "--process-name", None, "as --name of gunicorn"),
    ),
    (
        _switch(H, "--debug", "--log-level=debug"),
        Row(H, "--error-log", None, "as --error-logfile"),
        Row(H, "--read-timeout", "--timeout-request-body", "and --timeout-request-header for heads"),
        Row(H, "--keyfile-password", "--ssl-keyfile-password"),
        Row(H, "--insecure-bind", None,
            "all addresses of a server are the same: run two servers, or let a proxy redirect"),
        Row(H, "--quic-bind", None, "HTTP/3 (--http3) listens on the UDP ports of --bind"),
        Row(H, "--server-name", None,
            "checked by the application (ALLOWED_HOSTS, TrustedHostMiddleware) or the proxy"),
        Row(H, "--verify-mode", _verify_mode),
        Row(H, "--websocket-ping-interval", "--ws-ping-interval"),
    ),
)
# fmt: on
ROWS = {row.flag: row for group in ROW_GROUPS for row in group}

# Values of our own options: what they mean here, or None with the reason.
VALUES: dict[tuple[str, str], tuple[str, str]] = {
    ("--ws", "auto"): ("--ws", U),
    ("--ws", "websockets"): ("--ws", U),
    ("--ws", "websockets-sansio"): ("--ws", U),
    ("--ws", "wsproto"): ("--ws", U),
    ("--ws", "none"): ("--no-ws", U),
    ("--loop", "none"): ("--loop=asyncio", U),
    ("--interface", "asginl"): ("--interface=asgi --lifespan=off", G),
    ("--log-level", "warn"): ("--log-level=warning", G),
    ("--log-level", "notset"): ("--log-level=trace", G),
    ("--proxy-protocol", "auto"): ("--proxy-protocol", N),
    ("--proxy-protocol", "v1"): ("--proxy-protocol", N),
    ("--proxy-protocol", "v2"): ("--proxy-protocol", N),
}
REFUSED_VALUES: dict[tuple[str, str], str] = {
    ("--interface", "rsgi"): "RSGI is Granian's own; the framework's ASGI application works here",
    ("--loop", "rloop"): "there is asyncio and uvloop",
    ("--loop", "winloop"): "there is asyncio and uvloop, and no Windows",
}
TRUTH = ("true", "false", "1", "0", "yes", "no", "on", "off")
HINTS = {"-p": "-p is --port here; the file for the process id is --pid-file"}


def translate(arguments: Sequence[str], switches: frozenset[str] = frozenset()) -> list[str]:
    """The arguments in our spelling. `switches`: our flags without a value. Raises `Refused`."""
    return list(_translated(iter(arguments), switches))


def _translated(arguments: Iterator[str], switches: frozenset[str]) -> Iterator[str]:
    waiting: list[str] = []  # an argument that was looked at and not used
    while waiting or (following := next(arguments, None)) is not None:
        argument = waiting.pop() if waiting else following
        assert argument is not None
        flag, has_value, value = argument.partition("=")
        if argument == "--":
            yield argument
            yield from arguments
            return
        row = ROWS.get(flag)
        if row is not None:
            if not has_value and row.takes_value:
                value = next(arguments, "")
            yield from _ours(row, value, given=bool(has_value or row.takes_value))
            continue
        if flag in switches or any(flag == name for name, _ in (*VALUES, *REFUSED_VALUES)):
            if not has_value:
                value = next(arguments, "")
                if not _is_value(flag, value, switches):
                    yield argument
                    if value:
                        waiting.append(value)
                    continue
            yield from _with_value(flag, value, switches)
            continue
        yield argument


def _is_value(flag: str, value: str, switches: frozenset[str]) -> bool:
    """Whether the argument after a flag belongs to it: a switch may be given with a truth value."""
    key = (flag, value.lower())
    return key in VALUES or key in REFUSED_VALUES or (flag in switches and value.lower() in TRUTH)


def _with_value(flag: str, value: str, switches: frozenset[str]) -> Iterator[str]:
    key = (flag, value.lower())
    if key in REFUSED_VALUES:
        raise Refused(f"{flag} {value}: {REFUSED_VALUES[key]}")
    if key in VALUES:
        yield from VALUES[key][0].split()
    elif flag in switches and value.lower() in TRUTH:
        is_on = value.lower() in ("true", "1", "yes", "on")
        yield flag if is_on else f"--no-{flag.removeprefix('--')}"
    else:
        yield f"{flag}={value}"


def _ours(row: Row, value: str, *, given: bool) -> Iterator[str]:
    if row.to is None:
        raise Refused(f"{row.flag} ({row.servers.replace(' ', ', ')}): {explained(row)}")
    if callable(row.to):
        try:
            to = row.to(value)
        except Refused as error:
            raise Refused(f"{row.flag} {error}") from None
        yield from [to] if to else []
    elif row.to:
        yield row.to if "=" in row.to or not (given and row.takes_value) else f"{row.to}={value}"


def explained(row: Row) -> str:
    """The remark; `as --other` stands for that of another option."""
    if row.remark.startswith("as "):
        other = ROWS.get(row.remark.split()[1])
        if other is not None and other is not row:
            return explained(other)
    return row.remark
