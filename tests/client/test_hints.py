"""Mistakes of people who know httpx, requests or aiohttp: the error says what to write."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import towline

from tests.support.http1_peer import OK, Peer, scripted

MISTAKES = [
    ("client.get(url, allow_redirects=True)", TypeError, "follow_redirects=True"),
    ("client.get(url, verify=False)", TypeError, "Client(verify=...)"),
    ("client.get(url, verify=None)", TypeError, "Client(verify=...)"),
    ("client.get(url, ssl=False)", TypeError, "Client(verify=...)"),
    ("client.get(url, cert='x.pem')", TypeError, "Client(cert="),
    ("client.get(url, stream=True)", TypeError, "with client.stream('GET', url)"),
    ("client.get(url, proxies={'http': 'http://x'})", TypeError, "Client(proxy="),
    ("client.get(url, proxy='http://x')", TypeError, "Client(proxy="),
    ("client.get(url, {'page': 1})", TypeError, "params={...}"),
    ("client.post(url, {'page': 1})", TypeError, "data={...}"),
    ("client.request('GET', url, {'page': 1})", TypeError, "params={...}"),
    ("client.build_request('GET', url, 1)", TypeError, "params="),
    ("client.get(url, headers='x: y')", TypeError, "headers={'name': 'value'}"),
    ("client.get(url, headers=['x: y'])", TypeError, "headers={'name': 'value'}"),
    ("client.get(url, headers={'a': 1})", towline.InvalidHeader, "write str(...)"),
    ("client.get(url, cookies='a=b')", TypeError, "cookies={'name': 'value'}"),
    ("client.post(url, files='x.txt')", TypeError, "files={'name': 'value'}"),
    ("client.post(url, files={'f': 3})", TypeError, "expected bytes, str or a binary file"),
    ("client.get(url, params=3)", TypeError, "params={'name': 'value'}"),
    ("client.get(url, params=[1, 2])", TypeError, "params={'name': 'value'}"),
    ("client.get(url, timeout='3')", towline.ConfigError, "expected seconds or None"),
    ("client.get(url, auth='user:password')", towline.UsageError, "(user, password)"),
    ("client.get(url, retry=3)", TypeError, "retries="),
    ("client.get(url, raise_for_status=True)", TypeError, ".raise_for_status()"),
    ("client.get(url, max_redirects=3)", TypeError, "Client(max_redirects=...)"),
    ("client.get(url, base_url='http://x')", TypeError, "Client(base_url=...)"),
    ("client.get(url, hooks={'response': print})", TypeError, "event_hooks="),
    ("client.get(url, tiemout=3)", TypeError, "did you mean timeout=?"),
    ("client.post(url, body=b'x')", TypeError, "content=b'...'"),
    ("client.post(url, payload={})", TypeError, "json={...}"),
    ("client.post(url, content={'a': 1})", TypeError, "json="),
    ("client.get('example.org/path')", towline.InvalidURL, "https://..."),
    ("client.get('ftp://x/')", towline.InvalidURL, "https://..."),
    ("client.stream('GET', url).text", AttributeError, "with client.stream(...) as response:"),
    ("client.stream('GET', url, allow_redirects=True).__enter__()", TypeError, "follow_redirects=True"),
    ("client.fetch(url)", AttributeError, "client.get(url)"),
    ("client.mount('https://', 3)", AttributeError, "mounts="),
    ("client.aclose()", AttributeError, "client.close()"),
    ("client.websockets", AttributeError, "did you mean websocket?"),
    ("client.get(url).ok", AttributeError, "is_success"),
    ("client.get(url).status", AttributeError, "status_code"),
    ("client.get(url).reason", AttributeError, "reason_phrase"),
    ("client.get(url).iter_content()", AttributeError, "iter_bytes()"),
    ("client.get(url).body", AttributeError, "response.content"),
    ("client.get(url).is_succes", AttributeError, "did you mean is_success?"),
    ("towline.get(url, {'page': 1})", TypeError, "params={...}"),
    ("towline.post(url, {'page': 1})", TypeError, "data={...}"),
    ("towline.get(url, session=3)", TypeError, "make a Client"),
    ("towline.get(url, allow_redirects=True)", TypeError, "follow_redirects=True"),
    ("towline.Client(proxies={'http': 'http://x'})", TypeError, "Client(proxy="),
    ("towline.Client(max_connections=3)", TypeError, "Limits(max_connections=...)"),
    ("towline.Client('http://x')", TypeError, "base_url="),
    ("towline.Client(timout=3)", TypeError, "did you mean timeout=?"),
    ("towline.AsyncClient(connector=3)", TypeError, "Limits("),
    ("towline.ClientSession()", AttributeError, "here it is AsyncClient"),
    ("towline.adapters.HTTPAdapter", AttributeError, "here it is Client(limits=..., retries=...)"),
    ("towline.utils.super_len", AttributeError, "keep the package requests for it"),
    ("towline.packages.urllib3.disable_warnings()", AttributeError, "verify=False does not warn"),
    ("towline.exceptions.RequestExcepton", AttributeError, "did you mean RequestError?"),
    ("setattr(towline.Session(), 'verify', False)", AttributeError, "write Client(verify=...)"),
    ("setattr(towline.Session(), 'proxies', {})", AttributeError, "write Client(proxy=...)"),
    ("towline.ClientTimeout(3)", AttributeError, "here it is Timeout"),
    ("towline.ClientResponseError", AttributeError, "here it is StatusError"),
    ("towline.AsynClient()", AttributeError, "did you mean AsyncClient?"),
    ("unawaited().text", AttributeError, "has not been awaited"),
    ("asynchronous.close()", AttributeError, "await client.aclose()"),
    ("asynchronous.stream('GET', url).text", AttributeError, "async with client.stream(...)"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("mistake", "kind", "hint"), MISTAKES, ids=[mistake for mistake, _, _ in MISTAKES])
def test_the_error_names_the_replacement(mistake: str, kind: type[Exception], hint: str) -> None:
    def respond(peer: Peer) -> None:
        while peer.sock.recv(65536):
            peer.sock.sendall(OK)

    asynchronous = towline.AsyncClient()
    with scripted(respond) as server, towline.Client() as client:
        names: dict[str, Any] = {
            "towline": towline,
            "client": client,
            "url": server.url,
            "asynchronous": asynchronous,
            "unawaited": lambda: asynchronous.get(server.url),
        }
        with pytest.raises(kind) as caught:
            eval(mistake, names)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "BaseClient" not in str(caught.value)


def test_missing_attributes_are_missing() -> None:
    with towline.Client() as client:
        assert not hasattr(client, "fetch")
        assert not hasattr(client, "_private")
    response = towline.Response(200, content=b"x")
    assert not hasattr(response, "ok")
    assert copy.copy(response).content == b"x"
    assert not hasattr(towline, "ClientSession")
    asyncio.run(towline.AsyncClient().aclose())
