"""Checks of `ServerConfig`: the types of values that were not parsed, and combinations of options."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._codings import CODINGS, REQUEST_CODINGS
from .._options import Option, listed
from .._state_location import scheme_of
from .._values import CERT_REQS, MAX_BURST_PERIOD, statsd_target
from ..errors import ConfigError, UsageError
from .address import Address

if TYPE_CHECKING:
    from . import ServerConfig

TLS_VERSIONS = ("1.2", "1.3")
MOST_WORKER_THREADS = 128
"""A process and its replacement have slots of counters for as many each."""
FORWARDED_KINDS = ("x-forwarded", "forwarded", "none")


def as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (tuple, list)):
        raise ConfigError(f"{name}: expected a list, not {value!r}")
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def check_kind(name: str, described: Option, default: Any, value: Any) -> None:
    """Check the type of a value that was not parsed (from Python or a TOML file)."""
    if described.choices and value not in described.choices:
        raise ConfigError(f"{name}: expected one of {listed(described.choices)}, not {value!r}")
    if described.switch and not isinstance(value, bool) and (value is not None or default is not None):
        raise ConfigError(f"{name}: expected true or false, not {value!r}")
    if (
        isinstance(default, int)
        and not described.switch
        and (isinstance(value, bool) or not isinstance(value, int))
    ):
        raise ConfigError(f"{name}: expected a whole number, not {value!r}")
    if isinstance(default, str) and not isinstance(value, str):
        raise ConfigError(f"{name}: expected text, not {value!r}")


def check_together(config: ServerConfig) -> None:
    """Check combinations of options. Raises `ConfigError` with a line for each wrong one."""
    wrong = [*_combinations(config), *_wrong_rate(config)]
    if wrong:
        raise ConfigError("\n".join(wrong))
    _check_statsd(config)
    _check_addresses(config)


def _combinations(config: ServerConfig) -> Iterator[str]:
    if not 0 <= config.port <= 65535:
        yield f"port: must be between 0 and 65535, not {config.port}"
    if config.ssl_cert_reqs not in CERT_REQS:
        yield (f"ssl_cert_reqs: expected one of {', '.join(CERT_REQS)}, not {config.ssl_cert_reqs!r}")
    if config.ssl_keyfile and not config.ssl_certfile:
        yield "ssl_keyfile: needs ssl_certfile"
    elif config.ssl_keyfile and len(config.ssl_keyfile) != len(config.ssl_certfile):
        yield "ssl_keyfile: needs one for each ssl_certfile, in the same order"
    if config.ssl_min_version not in TLS_VERSIONS:
        yield (f"ssl_min_version: expected one of {', '.join(TLS_VERSIONS)}, not {config.ssl_min_version!r}")
    if not config.versions:
        yield "http1, http2 and http3: one of them must be on"
    if config.ssl_crl and config.ssl_cert_reqs == "none":
        yield "ssl_crl: needs ssl_cert_reqs, since it is about client certificates"
    if config.ssl_cert_reqs != "none" and not config.ssl_ca_certs:
        yield "ssl_cert_reqs: needs ssl_ca_certs, the authorities to check against"
    if config.root_path and (not config.root_path.startswith("/") or config.root_path.endswith("/")):
        yield f"root_path: must start with / and not end with it, not {config.root_path!r}"
    if config.health_path is not None and not config.health_path.startswith("/"):
        yield f"health_path: must start with /, not {config.health_path!r}"
    for name, known in (("compress", CODINGS), ("decompress_requests", REQUEST_CODINGS)):
        unknown = [coding for coding in getattr(config, name) if coding not in known]
        if unknown:
            yield f"{name}: unknown coding {unknown[0]!r}; there are {', '.join(known)}"
    for prefix, _ in (*config.mount, *config.static):
        if not prefix.startswith("/"):
            yield f"a mounted prefix must start with /, not {prefix!r}"
    if config.worker_mode == "threads" and config.workers > MOST_WORKER_THREADS:
        yield f"workers: at most {MOST_WORKER_THREADS} with worker_mode threads, not {config.workers}"
    if config.reload and config.preload:
        yield "preload: keeps the code that was imported first, and reload replaces it"
    if config.preload and (config.spawn or (config.spawn is None and sys.platform == "darwin")):
        yield "preload: workers that are spawned import the application themselves; --no-spawn forks them"


def _check_addresses(config: ServerConfig) -> None:
    given = config.given_addresses
    over_tcp = [address for address in given if not address.address.startswith("unix:")]
    if config.http3 and not (config.has_tls or any(address.tls for address in given)):
        raise ConfigError("http3: needs ssl_certfile or acme, because QUIC is always encrypted (RFC 9001)")
    if config.http3 and not over_tcp:
        raise ConfigError("http3: needs an address with a port, because it runs over UDP")
    have_tls = any(address.tls for address in config.addresses)
    if config.acme and not have_tls:
        raise ConfigError("acme: needs an address with TLS, such as --bind https://:443")
    if config.acme and not config.acme_challenges:
        raise ConfigError("acme: needs http1 or http2, because the CA connects over TCP (RFC 8737)")
    if config.hsts is not None and not have_tls:
        raise ConfigError("hsts: needs an address of https://: without TLS browsers ignore it (RFC 6797 8.1)")
    resolved = [address.resolved(config) for address in over_tcp]
    if config.redirect_https is not None and all(address.tls for address in resolved):
        raise ConfigError("redirect_https: needs an address of http://, whose requests it redirects")
    if config.redirect_https == 0 and not any(address.tls and address.http != (3,) for address in resolved):
        raise ConfigError("redirect_https: needs an address of https://, or the port of one elsewhere")
    if config.metrics_address is not None:
        metrics = Address(config.metrics_address)
        if metrics not in (Address(metrics.address), Address(metrics.address, tls=False)):
            raise ConfigError("metrics_address: has no settings, and is always plain HTTP")


def _wrong_rate(config: ServerConfig) -> Iterator[str]:
    if config.limit_rate is None:
        for name in ("limit_rate_burst", "limit_rate_exempt"):
            if getattr(config, name):
                yield f"{name}: needs limit_rate"
        if config.limit_rate_key != "address":
            yield "limit_rate_key: needs limit_rate"
    elif config.rate is not None:
        if config.http3_early_data and config.limit_rate_key == "address":
            yield (
                "limit_rate: with http3_early_data it needs limit_rate_key, because clients can forge the addresses of early data"
            )
        count, seconds, burst = config.rate
        if burst * seconds > MAX_BURST_PERIOD * count:
            yield f"limit_rate_burst: {config.limit_rate} gives {burst} requests back in more than three days"
    for path in config.limit_rate_exempt:
        if not path.startswith("/"):
            yield f"limit_rate_exempt: must start with /, not {path!r}"


def _check_statsd(config: ServerConfig) -> None:
    if config.statsd is not None:
        try:
            statsd_target(config.statsd)
        except ValueError as error:
            raise ConfigError(f"statsd: {error}") from None
    if not re.fullmatch(r"[^\s:|@#]*", config.statsd_prefix):
        raise ConfigError(
            f"statsd_prefix: expected a name without spaces and : | @ #, not {config.statsd_prefix!r}"
        )
    for tag in config.statsd_tags:
        if not re.fullmatch(r"[^\s|,#]+", tag):
            raise ConfigError(f"statsd_tags: expected NAME:VALUE without spaces and | #, not {tag!r}")


def is_forwarded_headers(name: str, value: Any) -> None:
    """Check that a list names one kind of headers of proxies, and fields that this kind has."""
    kinds = [word for word in value if word in FORWARDED_KINDS]
    fields = [word for word in value if word not in FORWARDED_KINDS]
    unknown = [word for word in fields if word not in ("host", "port", "prefix")]
    if unknown:
        raise ConfigError(
            f"{name}: unknown word {unknown[0]!r}; there are {', '.join(FORWARDED_KINDS)}, host, port and prefix"
        )
    if len(kinds) != 1:
        raise ConfigError(f"{name}: expected one of {', '.join(FORWARDED_KINDS)}, not {','.join(value)!r}")
    if kinds == ["none"] and fields:
        raise ConfigError(f"{name}: none reads no header, so it cannot have {fields[0]}")
    if kinds == ["forwarded"] and set(fields) - {"host"}:
        raise ConfigError(
            f"{name}: Forwarded has no port or prefix of its own; host has the port (RFC 7239 5.3)"
        )


def is_store(name: str, value: Any) -> None:
    """Check a location of a store, if there is one."""
    if value is None:
        return
    try:
        scheme_of(value)
    except UsageError as error:
        raise ConfigError(f"{name}: {error}") from None
