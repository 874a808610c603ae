"""httpx, urllib3 and aiohttp below our clients, over real sockets, where they are installed."""

from __future__ import annotations

import gzip
import http.server
import threading

import pytest
import towline
from towline import AsyncClient, Client

from tests.support.client_callers import Caller

BODY = b"hello " * 20_000


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/silent":
            self.server.stopped.wait(5)
            return
        if self.path == "/short":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"x")
            self.close_connection = True
            return
        coded = gzip.compress(BODY)
        self.send_response(302 if self.path == "/redirect" else 200)
        self.send_header("Location", "/end")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("X-Two", "1")
        self.send_header("X-Two", "2")
        self.send_header("Set-Cookie", "a=b")
        self.send_header("X-Seen", self.headers.get("Cookie", ""))
        self.send_header("Content-Length", str(len(coded)))
        self.end_headers()
        self.wfile.write(coded)

    do_POST = do_GET

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.stopped = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.stopped.set()
    server.shutdown()


@pytest.fixture(
    params=[("blocking", "httpx"), ("blocking", "urllib3"), ("asyncio", "httpx"), ("asyncio", "aiohttp")]
)
def client(request):
    backend, name = request.param
    pytest.importorskip(name)
    return lambda **settings: (Client if backend == "blocking" else AsyncClient)(
        transport=name, **settings
    ), backend


def outcome(client, use):
    """Runs `use(call)` in one loop; `call(name, ...)` calls the client's method."""
    make, backend = client
    created = make(follow_redirects=True)
    caller = Caller.__new__(Caller)
    caller.backend, caller.client = backend, created

    def blocking():
        with created:
            return use(lambda name, *args, **kwargs: getattr(created, name)(*args, **kwargs))

    async def asynchronous():
        async with created:
            return await use(lambda name, *args, **kwargs: getattr(created, name)(*args, **kwargs))

    return caller.run(blocking if backend == "blocking" else asynchronous)


def body(backend, *steps):
    """Runs the steps, awaited or not: each gets the results so far."""

    def blocking(call):
        results = []
        for step in steps:
            results.append(step(call, results))
        return results

    async def asynchronous(call):
        results = []
        for step in steps:
            results.append(await step(call, results))
        return results

    return blocking if backend == "blocking" else asynchronous


def test_exchanges(client, url):
    first, second, third = outcome(
        client,
        body(
            client[1],
            lambda call, _: call("get", f"{url}/"),
            lambda call, _: call("get", f"{url}/redirect"),
            lambda call, _: call("post", f"{url}/", content=b"x" * 1000),
        ),
    )
    assert first.content == BODY
    assert first.headers.get_list("x-two") == ["1", "2"]
    assert first.headers["content-encoding"] == "gzip"
    assert first.headers["x-seen"] == ""
    assert second.headers["x-seen"] == "a=b"
    assert [one.status_code for one in second.history] == [302]
    assert third.status_code == 200


@pytest.mark.parametrize(
    ("path", "settings", "error"),
    [
        ("/silent", {"timeout": 0.3}, towline.TimeoutError),
        ("/short", {}, towline.TransportError),
    ],
)
def test_errors_are_mapped_to_towline(client, url, path, settings, error):
    with pytest.raises(error) as caught:
        outcome(client, body(client[1], lambda call, _: call("get", url + path, **settings)))
    assert caught.value.__cause__ is not None


def test_refused(client):
    with pytest.raises(towline.ConnectError) as caught:
        outcome(client, body(client[1], lambda call, _: call("get", "http://127.0.0.1:1/")))
    assert caught.value.request.url == "http://127.0.0.1:1/"
