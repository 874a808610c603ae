"""TLS of the drop-ins: trust, client certificates and errors, for httpx, httpx2 and requests."""

from __future__ import annotations

import importlib
import ssl
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.support.http1_peer import OK, respond_with, scripted, tunnel
from tests.support.tls import Trust


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["httpx", "httpx2"])
def package(request: pytest.FixtureRequest) -> ModuleType:
    return pytest.importorskip(request.param)


@pytest.fixture
def ours(package: ModuleType) -> ModuleType:
    return importlib.import_module(f"towline.{package.__name__}")


@pytest.fixture
def session() -> Iterator[Any]:
    requests = pytest.importorskip("requests")
    import towline.requests

    with requests.Session() as created:
        created.trust_env = False
        created.mount("https://", towline.requests.Adapter())
        yield created


def test_verify_takes_a_path_a_context_or_false(ours: ModuleType, trust: Trust) -> None:
    with scripted(respond_with(OK), trust.server()) as server:
        for verify in (trust.path, trust.context(), False):
            with ours.Client(verify=verify) as client:
                assert client.get(server.url).text == "hello"


def test_an_unknown_authority_and_a_wrong_name_fail(
    package: ModuleType, ours: ModuleType, trust: Trust
) -> None:
    with scripted(respond_with(OK), trust.server()) as server, ours.Client() as client:
        with pytest.raises(package.ConnectError, match=r"(?i)certificate"):
            client.get(server.url)
    for verify in (trust.path, trust.context()):
        with (
            scripted(respond_with(OK), trust.server("other.test")) as server,
            ours.Client(verify=verify) as client,
        ):
            with pytest.raises(package.ConnectError):
                client.get(server.url)


def test_the_server_name_is_an_extension(package: ModuleType, ours: ModuleType, trust: Trust) -> None:
    names: list[str] = []
    context = trust.server("other.test")
    context.sni_callback = lambda sock, name, context: names.append(name)  # type: ignore[assignment]
    with scripted(respond_with(OK), context) as server, ours.Client(verify=trust.path) as client:
        assert client.get(server.url, extensions={"sni_hostname": "other.test"}).text == "hello"
        with pytest.raises(package.ConnectError):
            client.get(server.url)
    assert names[0] == "other.test"


def test_the_client_certificate_is_sent(ours: ModuleType, trust: Trust) -> None:
    context = trust.context()
    context.load_cert_chain(trust.cert)
    with scripted(respond_with(OK), trust.server(require_client_cert=True)) as server:
        with ours.Client(verify=context) as client:
            assert client.get(server.url).text == "hello"
        with ours.Client(transport=ours.Transport(verify=trust.path, cert=trust.cert)) as client:
            assert client.get(server.url).text == "hello"


def test_ssl_object_describes_the_handshake(ours: ModuleType, trust: Trust) -> None:
    with scripted(respond_with(OK), trust.server()) as server:
        for verify in (trust.path, trust.context()):
            with ours.Client(verify=verify) as client:
                stream = client.get(server.url).extensions["network_stream"]
                ssl_object = stream.get_extra_info("ssl_object")
                assert ssl_object.version() in ("TLSv1.2", "TLSv1.3")
                assert ssl_object.cipher()[0]
                assert ssl.DER_cert_to_PEM_cert(ssl_object.getpeercert(binary_form=True)).startswith(
                    "-----BEGIN"
                )


def test_requests_takes_verify_and_cert_with_every_request(session: Any, trust: Trust) -> None:
    import requests

    with scripted(respond_with(OK), trust.server()) as server:
        with pytest.raises(requests.exceptions.SSLError):
            session.get(server.url)
        assert session.get(server.url, verify=trust.path).text == "hello"
        assert session.get(server.url, verify=False).text == "hello"
        with pytest.raises(requests.exceptions.SSLError):  # a connection of lesser trust is not shared
            session.get(server.url)
        response = session.get(server.url, verify=trust.path, stream=True)
        assert response.raw.connection.sock.getpeercert(binary_form=True)
        assert response.text == "hello"
    with scripted(respond_with(OK), trust.server(require_client_cert=True)) as server:
        assert session.get(server.url, verify=trust.path, cert=trust.cert).text == "hello"


def test_requests_takes_a_context_through_init_poolmanager(trust: Trust) -> None:
    requests = pytest.importorskip("requests")
    import towline.requests

    class CustomAdapter(towline.requests.Adapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, ssl_context=trust.context(), **kwargs)

    with scripted(respond_with(OK), trust.server()) as server, requests.Session() as session:
        session.mount("https://", CustomAdapter())
        assert session.get(server.url).text == "hello"


def test_https_through_a_proxy(package: ModuleType, ours: ModuleType, trust: Trust) -> None:
    """CONNECT to the proxy, then TLS with the origin (RFC 9110 9.3.6)."""
    with scripted(respond_with(OK), trust.server()) as server, scripted(tunnel) as proxy:
        proxy_url = f"http://user:pass@127.0.0.1:{proxy.port}"
        for verify in (trust.path, trust.context()):
            with ours.Client(proxy=proxy_url, verify=verify) as client:
                assert client.get(server.url).text == "hello"
    head = proxy.heads[0].lower()
    assert head.startswith(b"connect 127.0.0.1:%d http/1.1" % server.port)
    assert b"proxy-authorization: basic dxnlcjpwyxnz" in head
    assert b"proxy-authorization" not in server.heads[0].lower()
