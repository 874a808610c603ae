"""Hosts written as numbers, zones, certificate files, credentials that do not follow, pickled cookies, NO_PROXY."""

from __future__ import annotations

import copy
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
import towline
from towline.client.environment import parse_no_proxy

from tests.support.http1_peer import Peer, scripted

KINDS = pytest.mark.parametrize("kind", [towline.Client, towline.AsyncClient])


@pytest.mark.parametrize(
    "host",
    [
        "0x7f.1",
        "0x7f000001",
        "127.1",
        "2130706433",
        "0177.0.0.1",
        "0X7F.0.0.1",
        "1.2.3",
        "a.0x",
        "a.1",
        "256.1.1.1",
        "1..2",
    ],
)
def test_a_host_that_ends_in_a_number_is_an_address_of_four_numbers(host: str) -> None:
    """WHATWG URL 3.5: resolvers read these as addresses, which circumvents lists of hosts."""
    for call in (towline.URL, towline.get):
        with pytest.raises(towline.InvalidURL, match="IPv4"):
            call(f"http://{host}/")


@pytest.mark.parametrize(
    ("host", "read"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.1.", "127.0.0.1"), ("0x7g", "0x7g")]
)
def test_other_hosts(host: str, read: str) -> None:
    assert towline.URL(f"http://{host}/").host == read


@pytest.mark.parametrize("zone", ["%25lo", "%lo"])
def test_a_zone_selects_the_interface_and_is_not_sent(zone: str) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        with towline.Client() as client, pytest.raises(towline.TransportError):
            client.get(f"http://[::1{zone}]:{port}/x", timeout=towline.Timeout(3, read=0.05))
        sock, _ = listener.accept()
        with sock:
            head = sock.recv(4096)
    assert f"Host: [::1]:{port}\r\n".encode() in head
    url = towline.URL(f"http://[fe80::1{zone}]/")
    assert (url.host, str(url), url.netloc) == ("fe80::1%lo", "http://[fe80::1%25lo]/", b"[fe80::1]")
    assert towline.URL(str(url)) == url


@KINDS
def test_bad_certificate_files_fail_at_once(kind: Any, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    missing = str(tmp_path / "missing.pem")
    for arguments in (
        {"cert": missing},
        {"verify": missing},
        {"cert": str(garbage)},
        {"verify": str(garbage)},
        {"cert": (str(garbage), missing)},
        {"verify": towline.TLS(trust=missing)},
        {"proxy": towline.Proxy("https://127.0.0.1:1", tls=towline.TLS(cert=missing))},
    ):
        with pytest.raises(towline.ConfigError, match=r"(missing|garbage)\.pem"):
            kind(**arguments)


CREDENTIALS = [
    "Authorization",
    "Cookie",
    "Private-Token",
    "X-Vault-Token",
    "DD-API-KEY",
    "DD-APPLICATION-KEY",
    "X-Access-Token",
    "OpenAI-Organization",
    "OpenAI-Project",
    "x-api-key",
    "api-key",
    "Ocp-Apim-Subscription-Key",
    "X-Goog-Api-Key",
    "X-Amz-Security-Token",
    "X-Auth-Token",
    "X-Auth-Key",
    "CF-Access-Client-Secret",
    "X-Shopify-Access-Token",
    "X-GitHub-Token",
    "Job-Token",
    "X-Consul-Token",
    "Circle-Token",
    "X-Redmine-API-Key",
    "X-MBX-APIKEY",
    "APCA-API-SECRET-KEY",
    "CB-ACCESS-PASSPHRASE",
    "X-Session-Id",
    "X-CSRFToken",
    "X-Parse-REST-API-Key",
    "Fastly-Key",
    "X-Postmark-Server-Token",
    "X-JWT-Assertion",
    "X-Hub-Signature-256",
    "X-Own",
]
OTHERS = [
    "Accept",
    "User-Agent",
    "X-Request-Id",
    "Idempotency-Key",
    "X-Author",
    "anthropic-version",
    "Traceparent",
]


def test_credentials_do_not_follow_to_another_origin() -> None:
    heads: list[str] = []

    def target(peer: Peer) -> None:
        heads.append(peer.sock.recv(65536).decode())
        peer.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with scripted(target) as there:

        def redirecting(peer: Peer) -> None:
            heads.append(peer.sock.recv(65536).decode())
            peer.sock.sendall(f"HTTP/1.1 307 \r\nLocation: {there.url}\r\nContent-Length: 0\r\n\r\n".encode())

        headers = dict.fromkeys([*CREDENTIALS, *OTHERS], "value")
        with scripted(redirecting) as here, towline.Client(credential_headers=["x-own"]) as client:
            response = client.get(here.url, headers=headers)
            following = response.next_request
            client.get(here.url, headers=headers, follow_redirects=True)
    first, *_, last = ({line.partition(":")[0].lower() for line in head.splitlines()[1:]} for head in heads)
    assert {name.lower() for name in headers} <= first
    assert {name.lower() for name in OTHERS} <= last
    assert {name.lower() for name in CREDENTIALS} & last == set()
    assert following is not None
    assert {name.lower() for name in CREDENTIALS} & set(following.headers) == set()


def test_cookies_are_pickled_and_copied() -> None:
    cookies = towline.Cookies({"a": "b"})
    cookies.set("c", "d", domain="example.org", path="/x")
    for made in (pickle.loads(pickle.dumps(cookies)), copy.deepcopy(cookies)):
        assert made.get("a") == "b"
        assert made.get("c", domain="example.org", path="/x") == "d"
        made.set("a", "changed")
        assert cookies["a"] == "b"


@pytest.mark.parametrize(
    ("entry", "host", "matches"),
    [
        (".example.org", "example.org", True),
        (".example.org", "a.example.org", True),
        ("example.org.", "example.org", True),
        ("example.org", "a.example.org", True),
        ("example.org", "notexample.org", False),
        ("*.example.org", "example.org", False),
        ("*.example.org", "a.example.org", True),
    ],
)
def test_no_proxy_is_read_as_curl_reads_it(entry: str, host: str, matches: bool) -> None:
    assert parse_no_proxy(entry).matches(host, None, 443) is matches
