"""Fast path and Python path: the native half sends the same bytes as the flow in Python.

Also the cases that the native half leaves to Python: redirects, cookies, status codes to retry.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from contextlib import contextmanager

import pytest
import towline
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from towline import AsyncClient, Client, Retry

RESPONSES = {
    "/redirect": b"HTTP/1.1 302 Found\r\nLocation: /end\r\nContent-Length: 5\r\n\r\nmoved",
    "/cookie": b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok",
    "/busy": b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
}
BODY = b"x" * 50_000
CODED = gzip.compress(BODY)
RESPONSES |= {
    "/large": b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + BODY,
    "/coded": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(CODED) + CODED,
    "/broken": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nxxxxx",
    "/cut": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdeZ\r\n",
    "/silent": b"",
}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Upstream:
    """Responds by path and records the bytes of each request, without the port number."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[bytes] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn):
        with conn, conn.makefile("rb") as stream:
            while head := self.head(stream):
                length = next(
                    (
                        line[15:]
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length:")
                    ),
                    b"0",
                )
                self.requests.append((head + stream.read(int(length))).replace(b"%d" % self.port, b"PORT"))
                path = head.split(b" ")[1].partition(b"?")[0].decode()
                conn.sendall(RESPONSES.get(path, OK))

    @staticmethod
    def head(stream):
        lines = []
        while (line := stream.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines)

    @property
    def lines(self):
        return [request.split(b" HTTP")[0].decode() for request in self.requests]


@pytest.fixture(scope="module")
def upstream():
    upstream = Upstream()
    yield upstream
    upstream.listener.close()


@contextmanager
def calls(backend, **arguments):
    """A function that calls on the backend, on one loop for all."""
    if backend == "blocking":
        with Client(**arguments) as client:
            yield client, lambda function, *args, **kwargs: function(*args, **kwargs)
        return
    loop = asyncio.new_event_loop()
    client = AsyncClient(**arguments)

    async def awaited(function, *args, **kwargs):
        return await function(*args, **kwargs)

    try:
        yield (
            client,
            lambda function, *args, **kwargs: loop.run_until_complete(awaited(function, *args, **kwargs)),
        )
    finally:
        loop.run_until_complete(client.aclose())
        loop.close()


TOKEN = st.text("abcXYZ-", min_size=1, max_size=8)
VALUE = st.text("abc XYZ;,=\"'", max_size=12).map(str.strip)
# requests that the fast path accepts, and those it must leave to Python
FORM_VALUE = st.one_of(
    st.text("aZ09-_.~ &=+%/?#é漢\U0001f600\x00\n*!'()", max_size=8),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "headers": st.dictionaries(
            st.sampled_from(["X-A", "accept", "User-Agent", "X-b", "Content-Type", "Host"]), VALUE, max_size=3
        ),
        "params": st.dictionaries(TOKEN, FORM_VALUE, max_size=2),
        "timeout": st.sampled_from(
            [20, 20.0, None, (5, 20), (5, None, 3.5, 1), towline.Timeout(connect=3, total=20)]
        ),
    },
)
BODIES = st.one_of(
    st.just({}),
    st.binary(max_size=30).map(lambda data: {"content": data}),
    st.text(max_size=10).map(lambda text: {"content": text}),
    st.dictionaries(TOKEN, st.one_of(st.integers(), st.none(), VALUE), max_size=3).map(
        lambda value: {"json": value}
    ),
    st.dictionaries(FORM_VALUE, FORM_VALUE, max_size=2).map(lambda value: {"data": value}),
    st.just({"data": {"a": "1"}, "json": 1}),
    st.just({"data": {"a": "1"}, "content": b"c"}),
    st.just({"data": {}, "json": 1}),
)
PATHS = st.text("ab/.?&=% üß+~:@", max_size=12).map(lambda text: "/" + text)


@pytest.mark.parametrize("backend", ["blocking", "asyncio"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "get", "BREW"]),
    path=PATHS,
    arguments=CALLS,
    body=BODIES,
    base=st.booleans(),
)
def test_both_paths_send_the_same_bytes(upstream, backend, method, path, arguments, body, base):
    sent = []
    # a hook requires Python: the same client without it uses the fast path if it can
    for hooks in ({}, {"request": [lambda request: None]}):
        upstream.requests.clear()
        base_url = upstream.url + "/base" if base else ""
        with calls(backend, base_url=base_url, event_hooks=hooks, headers={"X-Client": "1"}) as (
            client,
            call,
        ):
            assert client._fast_path is not bool(hooks)
            url = path if base else upstream.url + path
            try:
                call(client.request, method, url, **arguments, **body)
            except towline.Error as error:
                sent.append(type(error))
            else:
                sent.append(b"".join(upstream.requests))
    assert sent[0] == sent[1]


@pytest.mark.parametrize("backend", ["blocking", "asyncio"])
def test_a_timeout_means_the_same_in_every_form(upstream, backend):
    with calls(backend, timeout=None) as (client, call):
        for hooks in ([], [lambda request: None]):
            client.event_hooks["request"] = hooks
            for timeout, error in [
                (0.5, towline.ReadTimeout),
                ((5, 0.1), towline.ReadTimeout),
                ((5, None, None, None, 0.1), towline.TotalTimeout),
                (towline.Timeout(None, read=0.1), towline.ReadTimeout),
                (towline.Timeout(None, total=0.1), towline.TotalTimeout),
                ((5,), towline.ConfigError),
                ((5, -1), towline.ConfigError),
                ("5", towline.ConfigError),
            ]:
                with pytest.raises(error):
                    call(client.get, upstream.url + "/silent", timeout=timeout)


@pytest.mark.parametrize("backend", ["blocking", "asyncio"])
def test_hosts_in_capitals_and_ipv6_addresses(upstream, backend):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        other = Upstream.__new__(Upstream)
        other.listener, other.requests = listener, []
        other.port = listener.getsockname()[1]
        threading.Thread(target=other.accept, daemon=True).start()
        hosts = [(upstream, "LocalHost"), (other, "[::1]"), (other, "[0:0::1]")]
        for server, host in hosts:
            sent = []
            for hooks in ({}, {"request": [lambda request: None]}):
                server.requests.clear()
                with calls(backend, event_hooks=hooks, resolve={}) as (client, call):
                    response = call(client.get, f"http://{host}:{server.port}/a")
                sent.append((str(response.url), b"".join(server.requests)))
            assert sent[0] == sent[1]
            assert b"Host: %s:PORT" % host.lower().replace("0:0::", "::").encode() in sent[0][1]


@pytest.mark.parametrize("backend", ["blocking", "asyncio"])
def test_cases_that_the_native_half_leaves_to_python(upstream, backend):
    upstream.requests.clear()
    retries = Retry(status=(503,), backoff=0.001, times=2)
    with calls(backend, base_url=upstream.url, retries=retries) as (client, call):
        assert call(client.get, "/redirect").status_code == 302
        response = call(client.get, "/redirect", follow_redirects=True, headers={"X-A": "1"})
        assert (response.status_code, response.text, response.url.path) == (200, "ok", "/end")
        assert [one.text for one in response.history] == ["moved"]
        assert b"X-A: 1" in upstream.requests[-1]
        assert call(client.get, "/busy").status_code == 503
        assert upstream.lines[-3:] == ["GET /busy"] * 3
        response = call(client.get, "/cookie")
        assert dict(response.cookies) == {"a": "b"}
        assert "cookie" not in response.request.headers
        call(client.get, "/end")
        assert b"Cookie: a=b" in upstream.requests[-1]
        client.cookies.clear()
        call(client.get, "/end")
        assert b"Cookie:" not in upstream.requests[-1]
        client.follow_redirects = True
        assert call(client.get, "/redirect").url.path == "/end"


@pytest.mark.parametrize("backend", ["blocking", "asyncio"])
def test_settings_reach_the_native_half(upstream, backend):
    with calls(backend, base_url=upstream.url) as (client, call):
        client.headers["X-New"] = "1"
        call(client.get, "/end")
        assert b"X-New: 1" in upstream.requests[-1]
        del client.headers["X-New"]
        client.headers.update({"User-Agent": "other"})
        call(client.get, "/end")
        assert b"X-New" not in upstream.requests[-1]
        assert b"User-Agent: other" in upstream.requests[-1]
        client.params = {"q": "1"}
        call(client.get, "/end")
        assert upstream.lines[-1] == "GET /end?q=1"
        client.params = None
        client.auth = ("u", "p")
        call(client.get, "/end")
        assert b"Authorization: Basic dTpw" in upstream.requests[-1]
        client.auth = None
        seen = []
        client.event_hooks["request"].append(lambda request: seen.append(request.method))
        call(client.get, "/end")
        assert seen == ["GET"]
        client.base_url = upstream.url + "/base"
        call(client.get, "end")
        assert upstream.lines[-1] == "GET /base/end"
        call(client.get, upstream.url.replace("://", "://user:pass@") + "/end")
        assert b"Authorization: Basic dXNlcjpwYXNz" in upstream.requests[-1]
        assert b"user:pass" not in upstream.requests[-1]
        assert list(client.pool_status()) == ["active", "idle", "connecting", "waiting"]
        assert call(client.prewarm, upstream.url, 1) >= 1


@pytest.mark.parametrize("backend", ["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("path", "settings", "error"),
    [
        ("/large", {"max_response_size": 1000}, towline.ResponseError),
        ("/large", {"max_response_size": 50_000}, None),
        ("/coded", {"max_decompressed_size": 1000}, towline.DecompressionLimit),
        ("/coded", {"max_response_size": 1000}, None),
        ("/broken", {}, towline.DecodingError),
        ("/cut", {}, towline.RemoteProtocolError),
        ("/silent", {"timeout": 0.5}, towline.ReadTimeout),
        ("/silent", {"timeout": towline.Timeout(total=0.2)}, towline.TotalTimeout),
    ],
)
@pytest.mark.parametrize("way", ["short", "long", "stream"])
def test_bounds_and_errors_are_the_same_on_every_path(upstream, backend, path, settings, error, way):
    hooks = {"request": [lambda request: None]} if way == "long" else {}
    with calls(backend, base_url=upstream.url, event_hooks=hooks, **settings) as (client, call):

        def read():
            with client.stream("GET", path) as response:
                return b"".join(response.iter_bytes())

        async def aread():
            async with client.stream("GET", path) as response:
                return b"".join([piece async for piece in response.aiter_bytes()])

        if way == "stream":
            use = lambda: call(read if backend == "blocking" else aread)  # noqa: E731
        else:
            use = lambda: call(client.get, path).content  # noqa: E731
        if error is None:
            assert use() == BODY
            return
        with pytest.raises(error) as caught:
            use()
        if way == "stream":
            assert caught.value.request.url.path == path
        assert client.pool_status()["active"] == 0
