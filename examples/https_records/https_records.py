"""HTTP/3 from the first call where DNS says so: HTTPS records (RFC 9460), looked up with dnspython.

    pip install dnspython
    python examples/https_records/https_records.py https://cloudflare-quic.com/

The system's resolver does not return these records, so a program that wants them asks a DNS server itself. `alternatives`
waits `TIMEOUT_S` at most for all of its hosts, and without a response the client does what it does without it: TCP
until a response has advertised HTTP/3.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

import dns.exception
import dns.name
import dns.resolver
import towline
from dns.rdtypes.svcbbase import ParamKey

TIMEOUT_S = 0.3
SUPPORTED = {ParamKey.MANDATORY, ParamKey.ALPN, ParamKey.NO_DEFAULT_ALPN, ParamKey.PORT}
"""Parameters that `alternatives` takes into account. A record with another mandatory one is not used (RFC 9460 8)."""


def alternatives(
    hosts: Iterable[str], resolver: dns.resolver.Resolver | None = None, timeout: float = TIMEOUT_S
) -> dict[str, str]:
    """The HTTP/3 services of `host` or `host:port`, as `alt_svc=` of a client takes them."""
    resolver = resolver or dns.resolver.Resolver()
    until = time.monotonic() + timeout
    found = {}
    for host in hosts:
        left = until - time.monotonic()
        if left > 0 and (value := _alternative(host, resolver, left)):
            found[host] = value
    return found


def _alternative(host: str, resolver: dns.resolver.Resolver, timeout: float) -> str | None:
    name, _, port = host.partition(":")
    # RFC 9460 9.1.
    query = name if port in ("", "443") else f"_{port}._https.{name}"
    try:
        answer = resolver.resolve(dns.name.from_text(query), "HTTPS", lifetime=timeout)
    except dns.exception.DNSException:
        return None
    ttl = answer.rrset.ttl if answer.rrset is not None else 0
    for record in sorted(answer, key=lambda record: record.priority):
        mandatory = record.params.get(ParamKey.MANDATORY)
        if record.priority == 0 or (mandatory and not SUPPORTED.issuperset(mandatory.keys)):
            continue  # an alias, or one that this client cannot use
        alpn = record.params.get(ParamKey.ALPN)
        if alpn and b"h3" in alpn.ids:
            other = record.params.get(ParamKey.PORT)
            target = "" if record.target == dns.name.root else record.target.to_text(omit_final_dot=True)
            return f'h3="{target}:{other.port if other else port or 443}"; ma={ttl}'
    return None


def main() -> None:
    for url in sys.argv[1:]:
        with towline.Client(http3=True, http2=True, alt_svc=alternatives([urlsplit(url).netloc])) as client:
            response = client.get(url)
            print(response.http_version, response.status_code, url)


if __name__ == "__main__":
    main()
