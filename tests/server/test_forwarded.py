"""Proxy fields over real sockets: believed from trusted addresses only."""

from __future__ import annotations

import pytest

from tests.support.feature_server import every_kind, fetch, serving


@every_kind
def test_a_trusted_proxy_names_client_and_scheme(kind: str) -> None:
    with serving(kind, forwarded_allow_ips=("127.0.0.1",)) as server:
        response = fetch(server, "/client", "X-Forwarded-For: 6.6.6.6, 192.0.2.9", "X-Forwarded-Proto: https")
        assert response.body == b"https 192.0.2.9 0"
        assert fetch(server, "/client", "X-Forwarded-For: 192.0.2.9:77").body == b"http 192.0.2.9 77"


@every_kind
def test_nobody_else_is_believed(kind: str) -> None:
    fields = ("X-Forwarded-For: 192.0.2.9", "X-Forwarded-Proto: https")
    with serving(kind, forwarded_allow_ips=("10.0.0.0/8",)) as server:
        assert fetch(server, "/client", *fields).body.startswith(b"http 127.0.0.1 ")
    with serving(kind, proxy_headers=False) as server:
        assert fetch(server, "/client", *fields).body.startswith(b"http 127.0.0.1 ")


@pytest.mark.parametrize("value", ["unknown", "1.2.3", "", "192.0.2.9, junk"])
def test_nonsense_is_no_address(value: str) -> None:
    with serving("asgi") as server:
        assert fetch(server, "/client", f"X-Forwarded-For: {value}").body.startswith(b"http 127.0.0.1 ")


def test_other_fields_change_nothing() -> None:
    with serving("asgi") as server:
        response = fetch(server, "/client", "Forwarded: for=192.0.2.9;proto=https", "X-Forwarded-Host: evil")
        assert response.body.startswith(b"http 127.0.0.1 ")
