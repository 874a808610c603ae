"""The two clients: exported names, constructor, merging, hooks, streams, closing."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import pickle
import ssl

import pytest
import towline
from towline import (
    TLS,
    AsyncClient,
    Client,
    ClientClosed,
    ConfigError,
    DecodingError,
    InvalidURL,
    Limits,
    MockTransport,
    Progress,
    Proxy,
    Response,
    Retry,
    StatusError,
    UsageError,
    errors,
)
from towline.client.options import PoolOptions, Timeout, tls_of

from tests.support.client_callers import BACKENDS, Caller, Recorder


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


# --- names ---

EXPORTED = [
    "ASGITransport",
    "Address",
    "AsyncBaseTransport",
    "AsyncByteStream",
    "AsyncClient",
    "AsyncHTTPTransport",
    "AsyncWebSocket",
    "Auth",
    "BaseTransport",
    "BasicAuth",
    "BearerAuth",
    "Client",
    "ClientClosed",
    "ClientDisconnected",
    "ConfigError",
    "ConnectError",
    "ConnectTimeout",
    "CookieConflict",
    "Cookies",
    "DNSError",
    "DecodingError",
    "DecompressionLimit",
    "DigestAuth",
    "Error",
    "FunctionAuth",
    "HTTPError",
    "HTTPTransport",
    "Headers",
    "ImportFromStringError",
    "InvalidHeader",
    "InvalidURL",
    "JSONDecodeError",
    "Limits",
    "LocalProtocolError",
    "MockTransport",
    "NetRCAuth",
    "NetworkError",
    "PoolTimeout",
    "Progress",
    "ProtocolError",
    "Proxy",
    "ProxyError",
    "QueryParams",
    "ReadError",
    "ReadTimeout",
    "RemoteProtocolError",
    "Request",
    "RequestError",
    "RequestNotRead",
    "Response",
    "ResponseError",
    "ResponseNotRead",
    "ResponseStateError",
    "Retry",
    "Server",
    "ServerConfig",
    "ServerDisconnected",
    "ServerSentEvent",
    "StartupError",
    "StatusError",
    "StreamConsumed",
    "StreamError",
    "SyncByteStream",
    "TLS",
    "TLSError",
    "TimeoutError",
    "Timeout",
    "TooManyRedirects",
    "TotalTimeout",
    "TransportError",
    "URL",
    "UnsupportedProtocol",
    "UsageError",
    "WSGITransport",
    "WebSocket",
    "WebSocketClosed",
    "WebSocketRefused",
    "WriteError",
    "WriteTimeout",
    "__version__",
    "codes",
    "configure",
    "delete",
    "get",
    "head",
    "options",
    "patch",
    "post",
    "put",
    "request",
    "run",
    "serve",
    "stream",
]


def test_exported_names():
    assert sorted(towline.__all__) == sorted(EXPORTED)
    for name in EXPORTED:
        assert getattr(towline, name) is not None
    with pytest.raises(AttributeError):
        towline.nonsense


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_constructor(kind):
    parameters = inspect.signature(kind).parameters
    assert [name for name in parameters if name != "self"] == [
        *(
            "base_url",
            "headers",
            "params",
            "cookies",
            "auth",
            "verify",
            "cert",
            "trust_env",
            "http1",
            "http2",
            "http3",
            "early_data",
            "alt_svc",
            "proxy",
        ),
        *(
            "mounts",
            "transport",
            "follow_redirects",
            "max_redirects",
            "credential_headers",
            "event_hooks",
            "timeout",
            "limits",
            "retries",
        ),
        *(
            "stream_window",
            "max_stream_window",
            "max_header_size",
            "max_header_count",
            "max_interim_responses",
            "max_response_size",
            "max_decompressed_size",
            "tcp_keepalive",
        ),
        *(
            "happy_eyeballs_delay",
            "resolve",
            "local_address",
            "uds",
            "default_encoding",
            "json_loads",
            "json_dumps",
        ),
    ]
    options = kind(trust_env=False)._options
    # Without the environment, SSL_CERT_FILE and SSL_CERT_DIR are not used for the trust store either.
    assert options == PoolOptions(tls=TLS(trust="platform"))
    assert options.timeout == Timeout(connect=5, read=60, write=60, pool=None, total=None)
    assert options.limits == Limits(1000, 100, 100, 15.0, None, None)
    assert options.retries == Retry(1, True, (), 0.5, True, True, None)


# After the colon: further base classes, ours or builtin.
TREE = """
    Error
      HTTPError
        RequestError
          TransportError
            ConnectionError
              NetworkError:OSError
                ConnectError
                  DNSError
                  TLSError
                ReadError:ChunkedEncodingError
                WriteError
              ProxyError
            ChunkedEncodingError
            Timeout
              TimeoutError:TimeoutError
                ConnectTimeout:ConnectionError
                ReadTimeout
                WriteTimeout
                PoolTimeout:ConnectionError
                TotalTimeout
            ProtocolError
              RemoteProtocolError:ConnectionError,ChunkedEncodingError
                ServerDisconnected
              LocalProtocolError
                InvalidHeader:UsageError,ValueError
      UsageError
        ConfigError:ValueError
        ResponseStateError:RuntimeError
        InvalidURL:ValueError
          UnsupportedProtocol:TransportError
        StreamError:RuntimeError
          StreamConsumed
          ResponseNotRead
          RequestNotRead
        CookieConflict
        ClientClosed:RuntimeError
      StartupError
      ClientDisconnected:OSError
      ResponseError
        StatusError:HTTPError
        TooManyRedirects:RequestError
        DecodingError:RequestError
        DecompressionLimit
"""


def test_the_tree_of_errors():
    parents = [Exception]
    for line in TREE.strip("\n").splitlines():
        depth = (len(line) - len(line.lstrip()) - 4) // 2
        name, _, further = line.strip().partition(":")
        kind = getattr(errors, name)
        bases = [parents[depth]]
        for base in filter(None, further.split(",")):
            bases.append(getattr(builtins if base == name else errors, base, None) or getattr(builtins, base))
        assert kind.__bases__ == tuple(bases), name
        assert kind.__doc__
        parents[depth + 1 :] = [kind]


def test_errors_carry_facts_and_no_secret():
    error = errors.ReadError(
        "from http://user:hunter2@h/",
        phase="body",
        retryable=True,
        bytes_sent=1,
        bytes_received=2,
        reused=True,
        errno=104,
    )
    assert (error.phase, error.retryable, error.bytes_sent, error.bytes_received) == ("body", True, 1, 2)
    assert (error.reused, error.errno, error.request) == (True, 104, None)
    assert str(error) == "from http://[secure]@h/"
    assert isinstance(error, OSError)
    assert errors.RemoteProtocolError("x", rule="RFC 9112 6.3").rule == "RFC 9112 6.3"
    again = pickle.loads(pickle.dumps(errors.ReadTimeout("slow", phase="head")))
    assert (str(again), again.phase) == ("slow", "head")


# --- options ---


def test_timeouts():
    assert Timeout(5.0).as_dict() == {"connect": 5, "read": 5, "write": 5, "pool": 5, "total": None}
    assert Timeout((1, 2)).as_dict() == {"connect": 1, "read": 2, "write": None, "pool": None, "total": None}
    assert Timeout((1, 2, 3, 4)).pool == 4
    assert Timeout(None, connect=3).as_dict() == {
        "connect": 3,
        "read": None,
        "write": None,
        "pool": None,
        "total": None,
    }
    assert Timeout(10, total=30) == Timeout(connect=10, read=10, write=10, pool=10, total=30)
    assert Timeout(connect=1).read == 60
    assert Timeout.of(towline.Timeout(2)) == Timeout(2)
    assert Client(timeout=None).timeout == Timeout(None)
    for wrong in (-1, "5", True, (1,), float("nan")):
        with pytest.raises(ConfigError, match="timeout"):
            Timeout(wrong)


def test_option_errors_name_the_mistake():
    for make, message in [
        (lambda: Limits(max_connections=0), "limits.max_connections"),
        (lambda: Limits(keepalive_expiry=-1), "limits.keepalive_expiry"),
        (lambda: Client(limits=5), "limits"),
        (lambda: TLS(min_version="1.0"), "tls.min_version"),
        (lambda: TLS(key="k"), "tls.key"),
        (lambda: Client(verify=5), "verify"),
        (lambda: Client(verify=TLS(), cert="c"), "cert"),
        (lambda: Client(verify=ssl.create_default_context(), cert="c"), "cert"),
        (lambda: Client(http1=False, http2=False), "http1"),
        (lambda: Client(proxy="nonsense://h"), "proxy"),
        (lambda: Client(proxy="http://h", uds="/s"), "uds"),
        (lambda: Client(tcp_keepalive=(1, 2)), "tcp_keepalive"),
        (lambda: Client(stream_window=1), "stream_window"),
        (lambda: Client(event_hooks={"requests": []}), "event_hooks"),
    ]:
        with pytest.raises(ConfigError, match=message):
            make()


def test_tls_and_proxy_options():
    assert tls_of(False) == TLS(verify=False)
    assert tls_of("ca.pem", ("c", "k", "hunter2")) == TLS(
        trust="ca.pem", cert="c", key="k", password="hunter2"
    )
    assert "hunter2" not in repr(TLS(cert="c", password="hunter2"))
    context = ssl.create_default_context()
    assert tls_of(context) is context
    proxy = Proxy("http://user:hunter2@h:3128", headers={"Proxy-Authorization": "hunter2"})
    assert (proxy.scheme, proxy.host, proxy.port, proxy.auth) == ("http", "h", 3128, ("user", "hunter2"))
    assert proxy.raw_auth == (b"user", b"hunter2")
    assert "hunter2" not in repr(proxy)
    assert hash(proxy) == hash(
        Proxy("http://h:3128", auth=("user", "hunter2"), headers={"Proxy-Authorization": "hunter2"})
    )
    assert Client(resolve={"H": "127.0.0.1"})._options.resolve == {"h": ("127.0.0.1",)}


# --- calls ---


def test_merging(backend):
    recorder = Recorder()
    caller = Caller(
        backend,
        transport=MockTransport(recorder),
        base_url="https://h.example/api",
        params={"key": "1"},
        headers={"X-A": "client", "User-Agent": "mine"},
    )
    caller.get("/users")
    caller.get("users/5?x=y", params={"q": "z"}, headers={"x-a": "call"})
    caller.get("http://other.example/")
    caller.post("", json={"a": 1})
    assert recorder.lines == [
        "GET https://h.example/api/users?key=1",
        "GET https://h.example/api/users/5?x=y&key=1&q=z",
        "GET http://other.example/?key=1",
        "POST https://h.example/api/?key=1",
    ]
    first, second = recorder.requests[0].headers, recorder.requests[1].headers
    assert [name for name, _ in first.raw] == [b"Host", b"Accept", b"Accept-Encoding", b"X-A", b"User-Agent"]
    assert (first["user-agent"], first["x-a"], second["x-a"]) == ("mine", "client", "call")
    caller.client.base_url = "http://new"
    caller.client.headers["X-B"] = "later"
    caller.client.params = None
    caller.get("/")
    assert recorder.lines[-1] == "GET http://new/"
    assert recorder.requests[-1].headers["x-b"] == "later"


def test_hooks(backend):
    seen = []
    hooks = {
        "request": [lambda request: seen.append(request.url.path)],
        "response": [lambda response: seen.append(response.status_code)],
    }
    recorder = Recorder(a=Response(302, headers={"Location": "/b"}))
    caller = Caller(backend, transport=MockTransport(recorder), event_hooks=hooks, follow_redirects=True)
    caller.get("http://h/a")
    assert seen == ["/a", 302, "/b", 200]

    def refuses(response):
        response.raise_for_status()

    caller.client.event_hooks = {"response": [refuses]}
    recorder.responses["b"] = Response(500)
    with pytest.raises(StatusError):
        caller.get("http://h/b")


def test_asynchronous_hooks():
    seen = []

    async def hook(request):
        await asyncio.sleep(0)
        seen.append(request.method)

    Caller("asyncio", transport=MockTransport(Recorder()), event_hooks={"request": [hook]}).get("http://h/")
    assert seen == ["GET"]
    with pytest.raises(UsageError, match="asynchronous"):
        Caller("blocking", transport=MockTransport(Recorder()), event_hooks={"request": [hook]}).get(
            "http://h/"
        )


def test_streams_and_progress(backend):
    seen: list[Progress] = []
    respond = lambda request: Response(200, headers={"Content-Length": "6"}, content=pieces(backend))  # noqa: E731
    caller = Caller(backend, transport=MockTransport(Recorder(root=respond)))
    response, content = caller.read_stream("GET", "http://h/", progress=seen.append)
    assert content == b"abcdef"
    assert response.is_closed
    assert seen == [Progress("download", 3, 6), Progress("download", 6, 6)]
    assert caller.get("http://h/", progress=seen.append).content == b"abcdef"
    assert response.elapsed.total_seconds() >= 0


def pieces(backend):
    if backend == "blocking":
        return iter([b"abc", b"def"])

    async def parts():
        yield b"abc"
        yield b"def"

    return parts()


def test_events(backend):
    def respond(request):
        assert request.headers["accept"] == "text/event-stream"
        assert request.headers["x-a"] == "1"
        kind = "text/event-stream; charset=utf-8" if request.method == "POST" else "text/html"
        return Response(
            404 if request.url.path == "/gone" else 200,
            headers={"Content-Type": kind},
            content=b"data: 1\n\ndata: 2\n\n",
        )

    caller = Caller(backend, transport=MockTransport(respond), headers={"X-A": "1"})

    def blocking(url, **arguments):
        with caller.client.sse(url, **arguments) as events:
            return [event.data for event in events]

    async def asynchronous(url, **arguments):
        async with caller.client.sse(url, **arguments) as events:
            return [event.data async for event in events]

    read = blocking if backend == "blocking" else asynchronous
    assert caller.run(read, "http://h/", method="POST", json={}) == ["1", "2"]
    with pytest.raises(DecodingError, match="text/html"):
        caller.run(read, "http://h/")
    with pytest.raises(StatusError):
        caller.run(read, "http://h/gone")


def test_closing(backend):
    closed = []

    class Transport(MockTransport):
        def close(self):
            closed.append("blocking")

        async def aclose(self):
            closed.append("asynchronous")

    caller = Caller(backend, transport=Transport(Recorder()))
    caller.get("http://h/")
    caller.close()
    caller.close()
    assert caller.client.is_closed
    assert closed == ["blocking" if backend == "blocking" else "asynchronous"]
    with pytest.raises(ClientClosed):
        caller.get("http://h/")
    assert "closed" in repr(caller.client)


def test_an_invalid_request_is_refused(backend):
    caller = Caller(backend)
    for url in ("/relative", "ftp://h/", "mailto:a@b", "h", "http://"):
        with pytest.raises(InvalidURL):
            caller.get(url)
    with pytest.raises(UsageError):
        caller.prewarm("ftp://h/", 1)


def test_a_request_built_before_it_is_sent(backend):
    recorder = Recorder()
    caller = Caller(backend, transport=MockTransport(recorder), headers={"X-A": "1"})
    request = caller.client.build_request("PUT", "http://h/", content=b"x", timeout=3)
    assert request.extensions["timeout"]["read"] == 3
    assert caller.send(request).request is request
    assert recorder.requests[0].headers["x-a"] == "1"
    bare = towline.Request("GET", "http://h/")
    caller.send(bare)
    assert "x-a" not in recorder.requests[1].headers


def test_the_functions(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(
        "towline.client.transport_choice.configured", lambda *_: (MockTransport(recorder),) * 2
    )
    towline.get("http://h/")
    towline.post("http://h/", json=1, verify=False)
    with towline.stream("GET", "http://h/") as response:
        assert response.read() == b"end"
    for name in ("put", "patch", "delete", "options", "head"):
        getattr(towline, name)("http://h/")
    methods = [request.method for request in recorder.requests]
    assert methods == ["GET", "POST", "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]


def test_custom_json(backend):
    recorder = Recorder(root=Response(200, text="x"))
    caller = Caller(
        backend,
        transport=MockTransport(recorder),
        json_dumps=lambda value: f"<{value}>",
        json_loads=lambda text: [text],
    )
    assert caller.post("http://h/", json=5).json() == [b"x"]
    assert recorder.requests[0].content == b"<5>"


def test_the_largest_response_is_bounded(backend):
    caller = Caller(
        backend,
        transport=MockTransport(Recorder(root=lambda request: Response(200, content=pieces(backend)))),
        max_response_size=5,
    )
    with pytest.raises(towline.ResponseError, match="max_response_size"):
        caller.get("http://h/")
