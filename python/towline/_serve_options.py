"""The types of the arguments of `towline.serve` and `towline.run`.

Written by scripts/options_doc.py from `towline.config` (`make format`); edit the options there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from .config import Address


class ServeOptions(TypedDict, total=False):
    """The options of `ServerConfig`, and those of `uvicorn.run` that map to one."""

    interface: str
    factory: bool
    app_dir: str | os.PathLike[str]
    lifespan: str
    lifespan_scope: str
    pathsend: str
    root_path: str
    mount: Sequence[tuple[str, str]]
    bind: str | Address | Mapping[str, Any] | Sequence[str | Address | Mapping[str, Any]] | None
    host: str
    port: int
    uds: str | os.PathLike[str] | None
    uds_permissions: int
    fd: int | None
    backlog: int
    workers: int
    worker_mode: str
    threads: int
    loop: str
    limit_max_requests: int | None
    limit_max_requests_jitter: int
    workers_lifetime: float | None
    workers_max_rss: int | None
    timeout_worker_healthcheck: float
    timeout_worker_startup: float
    pid_file: str | os.PathLike[str] | None
    chdir: str | os.PathLike[str] | None
    env: Sequence[tuple[str, str]]
    env_file: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    state: str | None
    preload: bool
    spawn: bool
    user: str | None
    group: str | None
    umask: int | None
    limit_request_line: int
    limit_request_fields: int
    limit_request_field_size: int
    limit_request_head: int
    limit_request_body: int | None
    wsgi_request_buffer: int
    wsgi_response_buffer: int
    limit_concurrency: int | None
    wsgi_websockets: int
    limit_rate: str | None
    limit_rate_burst: int | None
    limit_rate_key: str
    limit_rate_exempt: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    limit_connections: int | None
    limit_connections_per_client: int | None
    timeout_keep_alive: float
    timeout_request_header: float
    timeout_request_body: float
    min_bytes_per_second: int
    timeout_wsgi_client: float
    timeout_graceful_shutdown: float
    timeout_drain_idle: float
    ssl_certfile: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    ssl_keyfile: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    ssl_keyfile_password: str | None
    ssl_ca_certs: str | os.PathLike[str] | None
    ssl_cert_reqs: str
    ssl_crl: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    ssl_min_version: str
    ssl_ciphers: str | Sequence[str] | None
    redirect_https: bool | int | None
    hsts: str | None
    acme: str | Sequence[str] | None
    acme_email: str | None
    acme_directory: str
    acme_store: str | os.PathLike[str] | None
    acme_ca: str | os.PathLike[str] | None
    proxy_headers: bool
    forwarded_headers: str | Sequence[str] | None
    forwarded_allow_ips: str | Sequence[str] | None
    queue_time: bool
    proxy_protocol: bool
    drain_delay: float
    log_level: str | int
    log_config: str | os.PathLike[str] | dict[str, Any] | None
    log_file: str | os.PathLike[str] | None
    log_format: str
    access_log: bool | str | None
    access_log_format: str
    access_log_logger: bool | str | None
    access_log_headers: str | Sequence[str] | None
    access_log_redact: str | Sequence[str] | None
    access_log_exclude: str | Sequence[str] | None
    access_log_sample: float
    access_log_slow: float | None
    request_id_header: bool | str | None
    static: Sequence[tuple[str, str]]
    static_expires: int
    static_index: str | None
    compress: bool | tuple[str, ...]
    decompress_requests: bool | tuple[str, ...]
    limit_decompressed_body: int
    server_header: bool
    date_header: bool
    headers: Sequence[tuple[str | bytes, str | bytes]]
    metrics: bool
    metrics_address: str | None
    statsd: str | None
    statsd_prefix: str
    statsd_tags: str | Sequence[str] | None
    otel: bool
    health_path: str | None
    http1: bool
    http2: bool
    http3: bool
    http2_max_concurrent_streams: int
    http2_initial_stream_window_size: int
    http2_initial_connection_window_size: int
    http2_max_headers_size: int
    ws: bool | str
    ws_max_size: int
    ws_ping_interval: float | None
    ws_ping_timeout: float | None
    ws_per_message_deflate: bool
    http3_max_concurrent_streams: int
    http3_initial_stream_window_size: int
    http3_retry_handshakes: int
    http3_early_data: bool
    http3_congestion: str
    http3_alt_svc_max_age: int
    http3_alt_svc_port: int | None
    reload: bool
    reload_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    reload_include: str | Sequence[str] | None
    reload_exclude: str | Sequence[str] | None
    # uvicorn's
    reload_dirs: str | Sequence[str] | None
    reload_includes: str | Sequence[str] | None
    reload_excludes: str | Sequence[str] | None
    http: str
    h11_max_incomplete_event_size: int | None
    reset_contextvars: bool
    ssl_version: int | None
    use_colors: bool | None
    ws_max_queue: int | None
    reload_delay: float | None
