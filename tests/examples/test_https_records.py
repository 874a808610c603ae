"""The example of HTTPS records, with a DNS server of its own."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import towline

pytest.importorskip("dns", reason="dnspython is not installed")

import dns.flags
import dns.message
import dns.resolver
import dns.rrset

from tests.support.http3.connected import serving

ROOT = Path(__file__).resolve().parent.parent.parent
TTL = 300


@pytest.fixture(scope="module")
def alternatives() -> Callable[..., dict[str, str]]:
    path = ROOT / "examples" / "https_records" / "https_records.py"
    spec = importlib.util.spec_from_file_location("https_records", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.alternatives  # type: ignore[no-any-return]


@contextmanager
def dns_server(zone: dict[str, list[str]]) -> Iterator[dns.resolver.Resolver]:
    """A resolver that asks a server on loopback: HTTPS records by name. A name without any is not answered."""
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                data, address = server.recvfrom(65_536)
                if not data:
                    return
                query = dns.message.from_wire(data)
                name = query.question[0].name.to_text(omit_final_dot=True)
                if name not in zone:
                    continue
                response = dns.message.make_response(query)
                response.flags |= dns.flags.RA
                if zone[name]:
                    response.answer.append(dns.rrset.from_text(f"{name}.", TTL, "IN", "HTTPS", *zone[name]))
                server.sendto(response.to_wire(), address)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            resolver = dns.resolver.Resolver(configure=False)
            resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
            yield resolver
        finally:
            with socket.socket(type=socket.SOCK_DGRAM) as last:
                last.sendto(b"", server.getsockname())
            thread.join()


def test_records_become_alternatives(alternatives: Callable[..., dict[str, str]]) -> None:
    zone = {
        "plain.test": ["1 . alpn=h2,h3"],
        "_8443._https.port.test": ["1 . alpn=h3 port=9443"],
        "_8443._https.same.test": ["1 . alpn=h3"],
        "target.test": ["2 . alpn=h3", "1 other.test. alpn=h3 port=444"],
        "h2.test": ["1 . alpn=h2"],
        "alias.test": ["0 other.test."],
        "mandatory.test": ["1 . mandatory=ipv4hint alpn=h3 ipv4hint=192.0.2.1", "2 . alpn=h3 port=445"],
        "none.test": [],
    }
    hosts = [name for name in zone if name[0] != "_"] + ["port.test:8443", "same.test:8443"]
    with dns_server(zone) as resolver:
        assert alternatives(hosts, resolver, timeout=20) == {
            "plain.test": 'h3=":443"; ma=300',
            "port.test:8443": 'h3=":9443"; ma=300',
            "same.test:8443": 'h3=":8443"; ma=300',
            "target.test": 'h3="other.test:444"; ma=300',
            "mandatory.test": 'h3=":445"; ma=300',
        }


def test_a_server_that_does_not_answer_costs_the_timeout_once(
    alternatives: Callable[..., dict[str, str]],
) -> None:
    with dns_server({}) as resolver:
        began = time.monotonic()
        assert alternatives([f"{n}.test" for n in range(50)], resolver, timeout=0.2) == {}
        assert time.monotonic() - began < 5


async def app(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["http_version"].encode()})


def test_the_first_call_is_over_http3(alternatives: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    with serving("asgi", app, tmp_path) as (server, certificates):
        origin = f"localhost:{server.port}"
        zone = {f"_{server.port}._https.localhost": ["1 . alpn=h3"]}
        with dns_server(zone) as resolver:
            found = alternatives([origin], resolver, timeout=20)
        with towline.Client(http3=True, alt_svc=found, verify=str(certificates.ca)) as client:
            response = client.get(f"https://{origin}/")
            assert (response.text, response.http_version) == ("3", "HTTP/3")
