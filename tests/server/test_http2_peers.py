"""Independent clients of HTTP/2, and of WebSocket over it, where they are installed: nghttp, h2load, curl, httpx2, Chromium."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from towline.testing import Running
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.extensions import PerMessageDeflate

from tests.support.asgi_server import Receive, Scope, Send, respond
from tests.support.browser import Browser, program
from tests.support.feature_server import serving
from tests.support.http2_apps import APPS, payload
from tests.support.http2_client import Client, connected_client, open_websocket
from tests.support.websocket_server import echo

every_kind = pytest.mark.parametrize("kind", APPS)
SECURE = [pytest.param(False, id="plain"), pytest.param(True, id="tls")]


class Authority:
    """A certificate of our own for 127.0.0.1, and whom to trust for it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.certificate, self.trust = folder / "cert.pem", folder / "ca.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(self.certificate))
        authority.cert_pem.write_to_path(str(self.trust))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=SECURE)
def options(request: pytest.FixtureRequest, authority: Authority) -> dict[str, str]:
    return {"ssl_certfile": str(authority.certificate)} if request.param else {}


def run(name: str, *arguments: str) -> str:
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([name, *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout.decode("latin-1")


@every_kind
def test_curl(kind: str, options: dict[str, str], authority: Authority, tmp_path: Path) -> None:
    if "HTTP2" not in run("curl", "--version"):
        pytest.skip("this curl does not speak HTTP/2")
    sent, came = tmp_path / "sent", tmp_path / "came"
    sent.write_bytes(payload(1_000_000))
    how = ["--http2", "--cacert", str(authority.trust)] if options else ["--http2-prior-knowledge"]
    with serving(kind, APPS[kind], **options) as server:
        output = run("curl", "-sS", *how, "-w", " %{http_version} %{http_code}", f"{server.url}/version")
        version = "2" if kind == "asgi" else "HTTP/2.0"
        assert output == f"{version} {'https' if options else 'http'} 2 200"
        run("curl", "-sS", *how, "-o", str(came), "--data-binary", f"@{sent}", f"{server.url}/echo")
        assert came.read_bytes() == sent.read_bytes()
        if not options:
            return  # curl 7.88 breaks its own connection when it uses one of prior knowledge again, nghttpd's too
        urls = [f"{server.url}/pieces/{number}" for number in range(1, 9)]
        parallel = ["--parallel", "--no-progress-meter", "-w", "%{http_version} %{size_download}\n"]
        outputs = [part for url in urls for part in ("-o", "/dev/null", url)]
        lines = run("curl", "-S", *how, *parallel, *outputs).split("\n")
        assert sorted(lines) == ["", *sorted(f"2 {number * 8192}" for number in range(1, 9))]


@every_kind
def test_nghttp(kind: str, options: dict[str, str], tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(payload(300_000))
    with serving(kind, APPS[kind], **options) as server:
        output = run("nghttp", "--no-verify-peer", f"--data={sent}", f"{server.url}/echo")
        assert output.encode("latin-1") == sent.read_bytes()
        statistics = run("nghttp", "--no-verify-peer", "-nsm", "20", f"{server.url}/pieces/3")
        # Code and size of each, after its times.
        assert len(re.findall(r" 200 +24K /pieces/3", statistics)) == 20


@every_kind
def test_h2load(kind: str, options: dict[str, str]) -> None:
    with serving(kind, APPS[kind], **options) as server:
        for path in ("/", "/pieces/10"):
            output = run("h2load", "-n", "600", "-c", "4", "-m", "16", f"{server.url}{path}")
            assert "600 total, 600 started, 600 done, 600 succeeded, 0 failed, 0 errored, 0 timeout" in output
            assert "status codes: 600 2xx, 0 3xx, 0 4xx, 0 5xx" in output


@every_kind
def test_httpx2(kind: str, options: dict[str, Any], authority: Authority) -> None:
    httpx2 = pytest.importorskip("httpx2")
    body = payload(200_000)
    verify = ssl.create_default_context(cafile=str(authority.trust))

    async def talk(server: Running) -> None:
        async with httpx2.AsyncClient(http1=False, http2=True, verify=verify, timeout=20) as client:
            responses = await asyncio.gather(
                *(client.post(f"{server.url}/echo", content=body) for _ in range(10)),
                *(client.get(f"{server.url}/pieces/{number}") for number in range(10)),
            )
        assert {(one.http_version, one.status_code) for one in responses} == {("HTTP/2", 200)}
        assert [one.content for one in responses[:10]] == [body] * 10
        assert [len(one.content) for one in responses[10:]] == [number * 8192 for number in range(10)]

    with serving(kind, APPS[kind], **options) as server:
        asyncio.run(talk(server))


@pytest.mark.parametrize("deflate", [False, True])
def test_wsproto_on_a_stream(deflate: bool) -> None:
    """The package wsproto keeps the handshake apart from the frames, as RFC 8441 does."""
    extension = PerMessageDeflate()
    offer = [("sec-websocket-extensions", f"permessage-deflate; {extension.offer()}")] if deflate else []
    with connected_client("asgi", echo) as client:
        stream = open_websocket(client, "/", *offer)
        exchange = client.exchanges[stream]
        if deflate:
            extension.finalize(exchange.fields["sec-websocket-extensions"])
        conn = Connection(ConnectionType.CLIENT, [extension] if deflate else [])
        big = bytes(range(256)) * 1000
        for event in (TextMessage(data="é" * 1000), Ping(payload=b"?"), BytesMessage(data=big)):
            client.write(stream, conn.send(event))
        got = events(client, stream, conn)
        text = "".join(iter_until(got, TextMessage))
        assert text == "é" * 1000
        assert next(got) == Pong(payload=b"?")
        assert b"".join(bytes(part) for part in iter_until(got, BytesMessage)) == big
        client.write(stream, conn.send(CloseConnection(code=4000, reason="enough")))
        closed = next(got)
        assert (type(closed), closed.code) == (CloseConnection, 4000)
        assert client.finish(stream)[0].ended


def events(client: Client, stream: int, conn: Connection) -> Iterator[Any]:
    exchange = client.exchanges[stream]
    while True:
        client.until(lambda: exchange.body)
        data, exchange.body = exchange.body, b""
        conn.receive_data(data)
        yield from conn.events()


def iter_until(got: Iterator[Any], kind: type) -> Iterator[Any]:
    """The parts of one message."""
    for event in got:
        assert isinstance(event, kind), event
        yield event.data
        if event.message_finished:
            return


TALK = """(async () => {
    const answers = await Promise.all([1, 2, 3].map(() => fetch('/version').then(answer => answer.text())));
    const socket = new WebSocket(`wss://${location.host}/chat`, ['chat']);
    socket.binaryType = 'arraybuffer';
    const next = () => new Promise((done, fail) => {
        socket.onmessage = event => done(event.data);
        socket.onerror = () => fail(new Error('no WebSocket'));
    });
    await new Promise((done, fail) => { socket.onopen = done; socket.onerror = () => fail(new Error('refused')); });
    socket.send('hello'.repeat(1000));
    const text = await next();
    socket.send(new Uint8Array(300000).fill(7));
    const bytes = new Uint8Array(await next());
    const closed = new Promise(done => { socket.onclose = done; });
    socket.close(3000, 'enough');
    const {code, wasClean} = await closed;
    return {answers, text, bytes: bytes.length, sum: bytes.reduce((a, b) => a + b, 0), code, wasClean,
            protocol: socket.protocol, extensions: socket.extensions};
})()"""


@pytest.mark.skipif(program() is None, reason="no Chromium is installed (scripts/browser.sh)")
def test_chromium(authority: Authority) -> None:
    """Over TLS; its WebSocket goes over the connection of the page's requests (RFC 8441)."""
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        if scope["type"] == "http":
            fields = [(b"content-type", b"text/html")]
            return await respond(send, scope["http_version"].encode(), headers=fields)
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "chat"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({**message, "type": "websocket.send"})
        return None

    with (
        serving("asgi", app, ssl_certfile=str(authority.certificate)) as server,
        Browser("--ignore-certificate-errors") as browser,
    ):
        target = browser.call("Target.createTarget", url=f"{server.url}/")["targetId"]
        session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        ready = {"expression": f"location.href === '{server.url}/' && document.readyState === 'complete'"}
        while not browser.call("Runtime.evaluate", session, **ready)["result"].get("value"):
            pass
        output = browser.call(
            "Runtime.evaluate", session, expression=TALK, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in output, output
        found = output["result"]["value"]
    assert found["answers"] == ["2"] * 3
    assert (found["text"], found["bytes"], found["sum"]) == ("hello" * 1000, 300_000, 7 * 300_000)
    assert (found["code"], found["wasClean"]) == (3000, True)
    assert found["protocol"] == "chat"
    assert found["extensions"].startswith("permessage-deflate")
    assert {(scope["type"], scope["http_version"]) for scope in scopes} == {("http", "2"), ("websocket", "2")}
    assert len({tuple(scope["client"]) for scope in scopes}) == 1
