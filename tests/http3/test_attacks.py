"""Attacks on HTTP/3 and QUIC (tests/wire/http3_attacks.py): the server ends the connection or bears it, and serves others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("aioquic", reason="aioquic is not installed")

from tests.support.http3.client import Client
from tests.support.http3.servers import Running, Site, ours
from tests.support.interop_app import SMALL
from tests.support.process import children
from tests.support.server_processes import MAX_WAIT
from tests.wire.http3_attacks import ATTACKS, attack

ENDED = {
    *("rapid_reset", "reset_uploads", "push_ids", "second_settings", "qpack_blocked", "priority_updates"),
    *("priority_updates_ahead", "reserved_control_frames", "unidirectional_streams"),
    *("crypto_gaps", "optimistic_ack", "new_connection_ids"),
}
"""Attacks that break a rule or a rate: the server ends their connection."""
MOST_GROWN_KIB = 16_384
"""Windows of the streams of one connection, and the memory that Python takes for its first requests."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("http3"))


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[Running]:
    with ours(site) as running:
        yield running


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_ended_or_borne(server: Running, site: Site, name: str) -> None:
    (worker,) = children(server.process.pid)
    outcome = attack(name, ("127.0.0.1", site.port), MAX_WAIT if name in ENDED else 0.5, worker)
    assert not (name in ENDED and outcome.closed is None), outcome
    if name == "handshake_flood":
        # RFC 9000 8.1, until the client has proved its address.
        assert 0 < outcome.received_bytes <= 3 * outcome.sent_bytes
    assert outcome.rss_growth_bytes is not None
    assert outcome.rss_growth_bytes < MOST_GROWN_KIB * 1024, outcome
    with Client(("127.0.0.1", site.port), ca=site.ca) as client:
        assert client.fetch("GET", "/small").body == SMALL
