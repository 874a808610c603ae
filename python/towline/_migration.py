"""Options of other servers that Towline does not have under the same name: uvicorn, gunicorn, granian, hypercorn, daphne,
waitress, and `flask run`.

Each is replaced by ours, has no effect because Towline always does it, is ignored with a warning, or is refused. Refused is
what would change the safety or the correctness of the service: whom it serves, what the application sees, how it is
started. Those with the same name and meaning need no row. A test holds the table against the option lists of the packages,
and docs/migrate.md is written from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

from . import _migration_values as values
from ._migration_values import YEAR, Ignored, Refused, Replace, only

U, N, G, H, D, W, F = "uvicorn", "gunicorn", "granian", "hypercorn", "daphne", "waitress", "flask"


class Row(NamedTuple):
    """`flag`, or several, of `servers`. `to`: our flag, with a fixed value after "=", or a function of the value that returns
    one or several, or "" where it has no effect. None: refused. `takes_value`: it is followed by a value. `remark`: a
    difference, the reason why it has no effect, or why it is refused. `warns`: the remark is shown whenever it is given.
    `named`: only where the line begins with the name of the program, because the flag has another meaning elsewhere."""

    servers: str
    flag: str
    to: str | Replace | None
    remark: str = ""
    takes_value: bool = True
    warns: bool = False
    named: bool = False


def _switch(servers: str, flag: str, to: str | None, remark: str = "", *, named: bool = False) -> Row:
    return Row(servers, flag, to, remark, takes_value=False, named=named)


def _ignored(servers: str, flag: str, remark: str, *, switch: bool = False, named: bool = False) -> Row:
    return Row(servers, flag, "", remark, takes_value=not switch, warns=True, named=named)


def _named(servers: str, flag: str, to: str | Replace | None, remark: str = "") -> Row:
    return Row(servers, flag, to, remark, named=True)


SYSLOG = (
    "lines go to stderr and stdout, which systemd and container engines collect; or a handler in --log-config"
)
DIRTY = "there are no workers for long tasks beside those of requests; use a task queue"
NAME = "processes have the command's name; give the service a name in systemd"
NO_LIMIT = "a request and a WebSocket have no time limit here: the application sets one (asyncio.timeout)"
ALWAYS = "always so"
UNDERSCORE = "headers whose names have an underscore never reach a WSGI environ"
PROXIES = "name every proxy in --forwarded-allow-ips; the client is the last address that is none"
CHANGES = "changes are reported by the kernel (watchfiles), or looked for each second"
DISCONNECT = "http.disconnect is delivered at once and cancels nothing"
GLOBS = "--reload-exclude takes names and globs, neither paths nor regular expressions"
STRICT = "requests are parsed strictly, because leniency allows request smuggling"
# A table, whose layout the formatter keeps.
# fmt: off
ROW_GROUPS: tuple[tuple[Row, ...], ...] = (
    (
        _ignored(U, "--reload-delay", CHANGES),
        _ignored(G, "--reload-tick", CHANGES),
        Row(f"{U} {G}", "--http", values.http, "HTTP/2 is on by default; `1` and the parsers of HTTP/1.1 turn it off"),
        _ignored(U, "--ws-max-queue", "one message is read ahead, more only as the application receives them"),
        Row(f"{U} {N}", "--ssl-version", values.tls_version, "TLS 1.2 and 1.3 together unless --ssl-min-version 1.3"),
        Row(U, "--h11-max-incomplete-event-size", "--limit-request-head"),
        Row(f"{U} {G}", "--loop", values.loop, "asyncio and uvloop"),
        Row(U, "--timeout-keep-alive", values.keep_alive, "0 closes a connection after its response"),
        Row(f"{N} {H}", "--keep-alive", values.keep_alive, "0 closes a connection after its response"),
        Row(f"{U} {H} {D}", "--root-path", values.root_path, "begins with / and does not end with it"),
        Row(W, "--url-prefix", values.root_path, "--root-path"),
        _switch(U, "--reset-contextvars", "", "each request has a fresh context"),
        _ignored(U, "--use-colors", "log lines have no colours", switch=True),
        _switch(U, "--no-use-colors", "", "log lines have no colours"),
    ),
    (
        Row(f"{N} {H}", "-k --worker-class", values.worker_class,
            "the interface is detected; gevent, eventlet, tornado, aiohttp and trio are refused"),
        Row(N, "-t --timeout", lambda value: f"--timeout-worker-healthcheck={YEAR if value.strip() == '0' else value}",
            "--timeout-worker-healthcheck: a worker that is stuck for this time is replaced"),
        Row(N, "--limit-request-line", values.request_line, "0 is 1 MiB"),
        Row(N, "--limit-request-field_size", values.field_size, "0 is 1 MiB"),
        _ignored(N, "--reload-engine", "watchfiles if it is installed, else polling"),
        Row(N, "--reload-extra-file", values.reload_files, "--reload-include and --reload-dir"),
        Row(F, "--extra-files", values.reload_files, "--reload-include and --reload-dir"),
        _ignored(N, "--spew", "use a debugger or sys.settrace in the application", switch=True),
        _switch(N, "--check-config", "--check"),
        _ignored(N, "--no-sendfile", "sendfile is used where the transport allows it; there is no switch", switch=True),
        _ignored(N, "--reuse-port", "workers share one socket; HUP replaces them without losing a connection", switch=True),
        _switch(f"{N} {H}", "-D --daemon", None, "run it under systemd, a container engine or another supervisor"),
        Row(f"{N} {H}", "--pid", "--pid-file"),
        _named(f"{N} {H}", "-p", "--pid-file"),
        _named(N, "-m --umask", lambda value: (f"--umask={value}", values.unix_mode(value)),
            "--umask, and --uds-permissions for Unix sockets"),
        _ignored(N, "--worker-tmp-dir", "heartbeats are in shared memory, not in a file"),
        _switch(N, "--initgroups", "", "with --user the workers always have the groups of that user"),
        Row(f"{N} {H}", "--access-logfile", "--access-log"),
        _switch(N, "--disable-redirect-access-to-syslog", "", "the access log never goes to syslog"),
        _ignored(N, "--capture-output", "the application's output is not captured: redirect stdout and stderr", switch=True),
        _ignored(N, "--logger-class", "use --log-config; the logger is `towline`"),
        Row(N, "--log-config-json", "--log-config"),
        Row(H, "--log-config", lambda value: f"--log-config={re.sub('^(json|toml):', '', value)}",
             "without `json:` and `toml:`: the file's name says what it is"),
        _ignored(N, "--log-syslog-to --log-syslog-prefix --log-syslog-facility", SYSLOG),
        _ignored(N, "--log-syslog", SYSLOG, switch=True),
        _switch(N, "-R --enable-stdio-inheritance", "", "workers always inherit stdout and stderr"),
        Row(f"{N} {H}", "--statsd-host", "--statsd"),
        Row(f"{N} {H}", "--statsd-prefix", "--statsd-prefix", "names begin with it, without `gunicorn.` or `hypercorn.`"),
        Row(N, "--dogstatsd-tags", "--statsd-tags"),
        _ignored(N, "--enable-backlog-metric",
            "StatsD has metrics of requests and workers; --metrics has the queue (towline_queue_wait_seconds)", switch=True),
        _ignored(N, "-n --name", NAME),
        _ignored(G, "--process-name", NAME),
        Row(N, "--pythonpath", lambda value: f"--app-dir={value.replace(',', ':')}:.", "--app-dir, before the current directory"),
        Row(N, "--paste --paster --paste-global", None,
            "load the file in a module, and serve that: app = paste.deploy.loadapp(...)"),
        _ignored(N, "--proxy-allow-from", "--forwarded-allow-ips is the list for PROXY headers as well"),
        Row(N, "--protocol", only("http", otherwise="there is HTTP only, so the proxy must use HTTP (nginx: proxy_pass)"),
            "HTTP only: neither uwsgi nor FastCGI"),
        _ignored(N, "--uwsgi-allow-from", "there is HTTP only"),
        Row(f"{N} {H}", "--cert-reqs", "--ssl-cert-reqs"),
        Row(f"{N} {H}", "--ca-certs", "--ssl-ca-certs"),
        Row(f"{N} {H}", "--ciphers", values.ciphers, "names of suites; groups such as ECDHE+AESGCM are ignored"),
        Row(U, "--ssl-ciphers", values.ciphers, "names of suites; groups such as TLSv1 are ignored"),
        _switch(N, "--suppress-ragged-eofs", "", ALWAYS),
        _switch(N, "--do-handshake-on-connect", "", "handshakes never block a worker"),
        Row(N, "--http-protocols", values.http_protocols),
        Row(N, "--http2-cleartext", "", "HTTP/2 without TLS works by prior knowledge; not with --no-http2"),
        Row(N, "--http2-initial-window-size", "--http2-initial-stream-window-size"),
        _ignored(f"{N} {G}", "--http2-max-frame-size", "frames of requests have at most 16384 bytes, the minimum"),
        Row(N, "--http2-max-header-list-size", "--http2-max-headers-size"),
        _ignored(N, "--permit-obsolete-folding --strip-header-spaces --permit-unconventional-http-version", STRICT,
            switch=True),
        _switch(N, "--permit-unconventional-http-method", "", "any token is a method (RFC 9110 9.1)"),
        _ignored(N, "--casefold-http-method", "methods are case-sensitive (RFC 9110 9.1)", switch=True),
        _ignored(N, "--forwarder-headers", "--forwarded-headers selects the headers of proxies, with prefix for SCRIPT_NAME"),
        Row(N, "--header-map", only("drop", "refuse", otherwise=UNDERSCORE, error=Ignored), UNDERSCORE),
        Row(N, "--asgi-loop", "--loop"),
        Row(N, "--asgi-lifespan", "--lifespan"),
        _ignored(N, "--asgi-disconnect-grace-period", DISCONNECT),
        _ignored(D, "--application-close-timeout", DISCONNECT),
        Row(f"{N} {D}", "--websocket-max-message-size", "--ws-max-size"),
        _ignored(N, "--http-parser", "there is one parser, in Rust"),
        Row(N, "--dirty-app", None, DIRTY),
        _ignored(N, "--dirty-workers --dirty-timeout --dirty-threads --dirty-graceful-timeout", DIRTY),
        _ignored(N, "--control-socket --control-socket-mode",
            "signals control the server (HUP, TTIN, TTOU, USR1), and --metrics shows its state"),
        _switch(N, "--no-control-socket", "", "there is none"),
    ),
    (
        Row(G, "--blocking-threads", "--threads"),
        _ignored(G, "--blocking-threads-idle-timeout", "threads are started once and kept"),
        _ignored(G, "--runtime-threads --runtime-mode",
            "the event loop and the I/O of a worker share one thread: --workers"),
        _ignored(G, "--runtime-blocking-threads", "files are read on the I/O thread in small pieces"),
        _ignored(G, "--task-impl", "requests are asyncio tasks"),
        Row(G, "--http1-buffer-size", "--limit-request-head", "the bound on a request's head"),
        Row(G, "--http1-header-read-timeout", values.milliseconds("--timeout-request-header"), "milliseconds there"),
        _switch(G, "--http1-keep-alive", "", ALWAYS),
        _switch(G, "--no-http1-keep-alive", values.keep_alive("0")),
        _switch(G, "--http1-pipeline-flush --no-http1-pipeline-flush", "", "responses of one turn are written together"),
        _ignored(G, "--http2-adaptive-window", "windows are fixed: --http2-initial-stream-window-size", switch=True),
        _switch(G, "--no-http2-adaptive-window", "", ALWAYS),
        _ignored(G, "--http2-keep-alive-interval --http2-keep-alive-timeout",
            "dead peers are found by --timeout-keep-alive and timeouts of bodies"),
        _ignored(G, "--http2-max-send-buffer-size", "64 KiB per stream, then send() waits"),
        _switch(G, "--log", "", ALWAYS),
        _switch(G, "--no-log", "--log-level=critical"),
        Row(G, "--ssl-certificate", "--ssl-certfile"),
        Row(G, "--ssl-protocol-min", "--ssl-min-version"),
        Row(G, "--ssl-ca", "--ssl-ca-certs"),
        _switch(G, "--ssl-client-verify", "--ssl-cert-reqs=required"),
        _switch(G, "--no-ssl-client-verify", "--ssl-cert-reqs=none"),
        _switch(G, "--respawn-failed-workers", "", "dead workers are always replaced"),
        _ignored(G, "--no-respawn-failed-workers", "dead workers are always replaced", switch=True),
        _ignored(G, "--respawn-interval", "the first restart is immediate, the next ones wait ever longer"),
        _ignored(G, "--rss-sample-interval --rss-samples", "memory is measured each second; one measurement decides"),
        Row(G, "--workers-kill-timeout", "--timeout-graceful-shutdown"),
        Row(G, "--working-dir", "--chdir"),
        Row(G, "--env-files", "--env-file"),
        _ignored(G, "--metrics-scrape-interval", "figures are read when /metrics is requested"),
        Row(G, "--metrics-port", lambda value: f"--metrics-address=127.0.0.1:{value}",
            "--metrics-address has the port"),
        Row(G, "--access-log-fmt", values.access_log_format, "--access-log-format, with gunicorn's atoms"),
        Row(G, "--reload-paths", "--reload-dir"),
        Row(G, "--reload-ignore-dirs", "--reload-exclude", "a name or a glob"),
        _ignored(G, "--reload-ignore-patterns --reload-ignore-paths", GLOBS),
        _ignored(F, "--exclude-patterns", GLOBS),
        _switch(G, "--reload-ignore-worker-failure --no-reload-ignore-worker-failure", "",
            "after a failed start the server waits for a change"),
    ),
    (
        _switch(H, "--debug", "--log-level=debug"),
        Row(H, "--read-timeout", "--timeout-request-body", "and --timeout-request-header for heads"),
        Row(H, "--keyfile-password", "--ssl-keyfile-password"),
        Row(H, "--insecure-bind",
            lambda value: f"--bind={value}?tls=off" if value.startswith(("unix:", "fd:")) else f"--bind=http://{value}",
            "--bind http://ADDRESS; --redirect-https redirects its requests"),
        Row(H, "--quic-bind", lambda value: f"--bind=https://{value}?http=3",
            "--http3 opens the UDP ports of all addresses with TLS; `?http=3` is UDP alone"),
        Row(H, "--server-name", None,
            "checked by the application (ALLOWED_HOSTS, TrustedHostMiddleware) or the proxy"),
        Row(H, "--verify-mode", lambda value: f"--ssl-cert-reqs={value.lower().removeprefix('cert_')}"),
        _named(H, "-m --umask", values.unix_mode, "--uds-permissions: there it is for Unix sockets only"),
        _named(H, "-u --user -g --group", None, "there it owns the Unix socket; here --user and --group run the workers"),
        Row(H, "--websocket-ping-interval", "--ws-ping-interval"),
        Row(D, "--ping-interval", "--ws-ping-interval"),
    ),
    (
        _named(D, "-b --bind", "--host"),
        _named(D, "-u", lambda value: f"--bind=unix:{value}"),
        Row(f"{D} {W}", "--unix-socket", lambda value: f"--bind=unix:{value}"),
        _named(D, "--fd", lambda value: f"--bind=fd://{value}"),
        _named(D, "-e", values.endpoint, "an address: `tcp`, `tcp6`, `ssl`, `unix`"),
        Row(D, "--endpoint", values.endpoint, "an address: `tcp`, `tcp6`, `ssl`, `unix`"),
        _named(D, "-v --verbosity", lambda value: f"--log-level={ {'0': 'warning', '1': 'info'}.get(value, 'debug') }", "--log-level"),
        _ignored(D, "-t", NO_LIMIT, named=True),
        _ignored(D, "--http-timeout --websocket_timeout --websocket_connect_timeout", NO_LIMIT),
        _ignored(D, "--log-fmt", "--access-log-format has gunicorn's atoms; --log-format json is for both logs"),
        Row(D, "--ping-timeout", "--ws-ping-timeout"),
        Row(D, "--websocket-max-frame-size", "", "--ws-max-size bounds messages, and so frames"),
        Row(D, "--proxy-headers", "--proxy-headers",
            "from --forwarded-allow-ips only, by default this machine; daphne believes every peer",
            takes_value=False, warns=True, named=True),
        Row(D, "--proxy-headers-host --proxy-headers-port", only("x-forwarded-for", "x-forwarded-port",
            otherwise="the client's address is in X-Forwarded-For"), "X-Forwarded-For is read"),
        _named(D, "-s --server-name", lambda value: ("--no-server-header", f"--header=server:{value}"), "--header server:NAME"),
        _switch(D, "--no-server-name", "--no-server-header"),
    ),
    (
        Row(W, "--listen", lambda value: tuple(f"--bind={address}" for address in value.split()), "--bind for each address; * is all"),
        _switch(W, "--call", "--factory"),
        Row(W, "--unix-socket-perms", "--uds-permissions", "600 by default if the line begins with waitress-serve"),
        Row(W, "--ident", lambda value: ("--no-server-header", f"--header=server:{value}"), "--header server:NAME"),
        Row(W, "--url-scheme", only("http", otherwise="X-Forwarded-Proto of a trusted proxy gives the scheme (--forwarded-allow-ips)"), "http"),
        Row(W, "--trusted-proxy", "--forwarded-allow-ips"),
        Row(W, "--trusted-proxy-count", only("1", otherwise=PROXIES), PROXIES),
        Row(W, "--trusted-proxy-headers", values.proxy_fields, "--forwarded-headers"),
        _ignored(W, "--log-untrusted-proxy-headers", "headers of other peers are not looked at", switch=True),
        _switch(W, "--clear-untrusted-proxy-headers", None,
            "the application gets them as they came: let it use REMOTE_ADDR and wsgi.url_scheme, as the server sets them"),
        Row(W, "--channel-timeout", "--timeout-keep-alive"),
        Row(W, "--max-request-header-size", "--limit-request-head"),
        Row(W, "--max-request-body-size", "--limit-request-body", "1 GiB by default if the line begins with waitress-serve"),
        _ignored(W, "--connection-limit", "idle connections cost little; --limit-concurrency bounds requests"),
        _ignored(W, "--recv-bytes --send-bytes --outbuf-overflow --outbuf-high-watermark --inbuf-overflow --cleanup-interval "
            "--channel-request-lookahead --asyncore-loop-timeout", "buffers and pauses are those of the engine"),
        _switch(W, "--asyncore-use-poll --no-asyncore-use-poll --ipv4 --log-socket-errors --no-log-socket-errors "
            "--no-log-untrusted-proxy-headers --no-clear-untrusted-proxy-headers --no-expose-tracebacks --no-ipv6", "",
            "no difference that a client or the application sees"),
        Row(W, "--ipv6 --no-ipv4", None, "name the address: --host ::", takes_value=False),
        _ignored(W, "--expose-tracebacks", "a client never gets a traceback; the log has it", switch=True),
        Row(W, "--sockets", None, "give --fd or --bind fd://N"),
        _named(W, "--server-name", "", "SERVER_NAME is the address"),
    ),
    (
        _named(F, "-A --app", lambda value: value, "the application"),
        _named(F, "-e", "--env-file"),
        _switch(F, "--debug", "--reload", "and FLASK_DEBUG=1; there is no debugger in the page", named=True),
        _switch(F, "--no-debug", "--no-reload", named=True),
        _ignored(F, "--debugger", "there is no debugger in the page: it runs code for whoever reaches it",
            switch=True),
        _switch(F, "--no-debugger", "", ALWAYS),
        Row(F, "--cert", values.flask_cert, "--ssl-certfile; not adhoc"),
        Row(F, "--key", "--ssl-keyfile"),
        _switch(F, "--with-threads", "", "8 threads by default if the line begins with flask"),
        _switch(F, "--without-threads", "--threads=1"),
    ),
)
# fmt: on
ALL_ROWS = [row._replace(flag=flag) for group in ROW_GROUPS for row in group for flag in row.flag.split()]
ROWS = {row.flag: row for row in ALL_ROWS if not row.named}
NAMED = {(server, row.flag): row for row in ALL_ROWS if row.named for server in row.servers.split()}
"""Rows of lines that begin with the name of a program."""

# Values of our own options: what they mean here, or None with the reason.
VALUES: dict[tuple[str, str], tuple[str, str]] = {
    ("--ws", "auto"): ("--ws", U),
    ("--ws", "websockets"): ("--ws", U),
    ("--ws", "websockets-sansio"): ("--ws", U),
    ("--ws", "wsproto"): ("--ws", U),
    ("--ws", "none"): ("--no-ws", U),
    ("--interface", "asginl"): ("--interface=asgi --lifespan=off", G),
    ("--log-level", "warn"): ("--log-level=warning", G),
    ("--log-level", "notset"): ("--log-level=trace", G),
    ("--proxy-protocol", "auto"): ("--proxy-protocol", N),
    ("--proxy-protocol", "v1"): ("--proxy-protocol", N),
    ("--proxy-protocol", "v2"): ("--proxy-protocol", N),
}
REFUSED_VALUES: dict[tuple[str, str], str] = {
    ("--interface", "rsgi"): "RSGI is Granian's own; the framework's ASGI application works here",
}
TRUTH = ("true", "false", "1", "0", "yes", "no", "on", "off")
HINTS = {"-p": "-p is --port here; the file for the process id is --pid-file"}


@dataclasses.dataclass
class Translation:
    """The arguments in our spelling, lines about what is ignored, and what is refused; the `rows` that were used."""

    arguments: list[str] = dataclasses.field(default_factory=list)
    rows: list[Row] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)


def row_of(flag: str, program: str = "") -> Row | None:
    return NAMED.get((program, flag)) or ROWS.get(flag)


def translate(
    arguments: Sequence[str], switches: frozenset[str] = frozenset(), program: str = ""
) -> Translation:
    """`switches`: our flags without a value. `program`: the server whose line this is, where its name was given."""
    result = Translation()
    waiting = [*reversed(arguments)]
    while waiting:
        argument = waiting.pop()
        if argument == "--":
            result.arguments += [argument, *reversed(waiting)]
            break
        flag, value = _split(argument, program)
        row = row_of(flag, program)
        try:
            if row is not None:
                result.rows.append(row)
                if value is None and row.takes_value:
                    value = waiting.pop() if waiting else ""
                result.arguments += _ours(row, value)
                if row.warns:
                    result.warnings.append(f"{flag}: {'' if row.to else 'ignored: '}{row.remark}")
            elif flag in switches or any(flag == name for name, _ in (*VALUES, *REFUSED_VALUES)):
                if value is None and waiting and _is_value(flag, waiting[-1], switches):
                    value = waiting.pop()
                result.arguments += [argument] if value is None else _with_value(flag, value, switches)
            else:
                result.arguments.append(argument)
        except Ignored as error:
            result.warnings.append(f"{flag}: ignored: {error}")
        except Refused as error:
            result.errors.append(str(error))
    return result


def _split(argument: str, program: str) -> tuple[str, str | None]:
    """A flag and the value that is written with it: `--flag=value`, or `-w4`."""
    if re.match("-[A-Za-z].", argument):
        attached = row_of(argument[:2], program)
        if attached is not None and attached.takes_value:
            return argument[:2], argument[2:]
    flag, has_value, value = argument.partition("=")
    return flag, value if has_value else None


def _is_value(flag: str, value: str, switches: frozenset[str]) -> bool:
    """Whether the argument after a flag belongs to it: a switch may be given with a truth value."""
    key = (flag, value.lower())
    return key in VALUES or key in REFUSED_VALUES or (flag in switches and value.lower() in TRUTH)


def _with_value(flag: str, value: str, switches: frozenset[str]) -> list[str]:
    key = (flag, value.lower())
    if key in REFUSED_VALUES:
        raise Refused(f"{flag} {value}: {REFUSED_VALUES[key]}")
    if key in VALUES:
        return VALUES[key][0].split()
    if flag in switches and value.lower() in TRUTH:
        is_on = value.lower() in ("true", "1", "yes", "on")
        return [flag if is_on else f"--no-{flag.removeprefix('--')}"]
    return [f"{flag}={value}"]


def _ours(row: Row, value: str | None) -> Sequence[str]:
    if row.to is None:
        raise Refused(f"{row.flag} ({row.servers.replace(' ', ', ')}): {row.remark}")
    if callable(row.to):
        try:
            to = row.to(value or "")
        except Refused as error:
            raise Refused(f"{row.flag} {error}") from None
        return ([to] if to else []) if isinstance(to, str) else to
    if not row.to:
        return []
    return [row.to if "=" in row.to or value is None else f"{row.to}={value}"]
