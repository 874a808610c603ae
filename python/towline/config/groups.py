"""Groups of options, and the kinds that many options share."""

from __future__ import annotations

from typing import Any

from .. import _options as kind
from .._options import above_zero, at_least

APPLICATION = "application"
LISTENING = "listening"
WORKERS = "workers"
PROCESS = "process"
LIMITS = "limits"
TIMEOUTS = "timeouts"
TLS = "tls"
PROXY = "proxy"
LOGGING = "logging"
FILES = "files"
METRICS = "metrics"
PROTOCOLS = "protocols"
HTTP3 = "http3"
DEVELOPMENT = "development"

GROUPS: dict[str, str] = {
    APPLICATION: "the application to serve",
    LISTENING: "addresses",
    WORKERS: "processes, threads and their replacement",
    PROCESS: "directory, variables, user and preloading",
    LIMITS: "limits on requests",
    TIMEOUTS: "timeouts",
    TLS: "certificates",
    PROXY: "behind a load balancer",
    LOGGING: "server log and access log",
    FILES: "static files, compression, response headers",
    METRICS: "Prometheus and StatsD metrics, traces, health",
    PROTOCOLS: "HTTP versions, HTTP/2 and WebSocket",
    HTTP3: "HTTP/3",
    DEVELOPMENT: "reload on change",
}

INT: dict[str, Any] = {"parse": kind.integer, "metavar": "N"}
LIMIT: dict[str, Any] = {"parse": kind.optional_integer, "metavar": "N", "check": at_least(1)}
BYTES: dict[str, Any] = {"parse": kind.integer, "metavar": "BYTES", "check": at_least(1)}
SECONDS: dict[str, Any] = {"parse": kind.seconds, "metavar": "SECONDS", "check": above_zero}
