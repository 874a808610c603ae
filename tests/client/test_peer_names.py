"""`import towline as httpx` and `import towline as requests`: each `except` that catches an error there catches ours.

Every situation is one function, which is called with the package and with `towline` in its place.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import pickle
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import requests
import towline
from towline.client.options import Timeout

from tests.support.http1_peer import Listener, Peer, scripted
from tests.support.tls import Trust

Situation = Callable[[Any, SimpleNamespace], Any]

ANSWERS = {
    "/ok": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "/missing": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    "/broken": b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",
    "/garbage": b"SSH-2.0-OpenSSH\r\n\r\n",
    "/cut": b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello",
    "/chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "/chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "/gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello",
    "/loop": b"HTTP/1.1 302 Found\r\nlocation: /loop\r\ncontent-length: 0\r\n\r\n",
    "/ftp": b"HTTP/1.1 302 Found\r\nlocation: ftp://h/\r\ncontent-length: 0\r\n\r\n",
    "/again": b"HTTP/1.1 307 Go\r\nlocation: /ok\r\ncontent-length: 0\r\n\r\n",
    "/two": b"HTTP/1.1 200 OK\r\nset-cookie: a=1; path=/\r\nset-cookie: a=2; path=/two\r\ncontent-length: 0\r\n\r\n",
}


def answer(peer: Peer) -> None:
    while head := peer.head():
        method, path, _ = head.split(b" ", 2)
        if method == b"CONNECT":
            peer.send(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        if method == b"POST" and b"chunked" in head.lower():
            peer.chunks()
        if path == b"/silent":
            peer.sock.recv(1)
        elif path == b"/silent-body":
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello")
            peer.sock.recv(1)
        elif path == b"/reset":
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return
        elif path in (b"/cut", b"/chunk", b"/chunks", b"/garbage"):
            peer.send(ANSWERS[path.decode()])
            return
        elif found := ANSWERS.get(path.decode()):
            peer.send(found)
        else:  # "/hangup"
            return


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    context = Trust(tmp_path_factory.mktemp("tls")).server()
    with scripted(answer) as server, Listener(answer, tls=context) as secure, socket.socket() as full:
        # A connection that is never accepted fills the queue, so that the next one is not established.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            yield SimpleNamespace(
                url=server.url,
                secure=secure.url,
                full=f"http://127.0.0.1:{full.getsockname()[1]}/",
                refused=f"http://127.0.0.1:{closed.getsockname()[1]}",
            )
        for one in waiting:
            one.close()


def getting(path: str, **options: Any) -> Situation:
    return lambda http, place: http.get(place.url + path, **options)


BOTH: dict[str, Situation] = {
    "refused": lambda http, place: http.get(place.refused),
    "no such host": lambda http, place: http.get("http://nothing.invalid/"),
    "connect timeout": lambda http, place: http.get(place.full, timeout=0.1),
    "read timeout": getting("/silent", timeout=0.2),
    "hang-up": getting("/hangup"),
    "reset": getting("/reset"),
    "no HTTP": getting("/garbage"),
    "cut body": getting("/cut"),
    "cut chunks": getting("/chunk"),
    "malformed chunk": getting("/chunks"),
    "malformed gzip": getting("/gzip"),
    "untrusted certificate": lambda http, place: http.get(place.secure),
    "status 404": lambda http, place: http.get(place.url + "/missing").raise_for_status(),
    "status 500": lambda http, place: http.get(place.url + "/broken").raise_for_status(),
    "no JSON": lambda http, place: http.get(place.url + "/ok").json(),
    "no JSON, with an argument": lambda http, place: http.get(place.url + "/ok").json(parse_float=str),
    "no scheme": lambda http, place: http.get("example.org/x"),
    "another scheme": lambda http, place: http.get("ftp://127.0.0.1/"),
    "a scheme that is a host": lambda http, place: http.get("localhost:1/x"),
    "no URL": lambda http, place: http.get("http://[::1/"),
    "header with a line break": lambda http, place: http.get(place.url + "/ok", headers={"a": "b\r\nc: d"}),
}


def with_client(call: Callable[[Any, Any, SimpleNamespace], Any], **options: Any) -> Situation:
    def run(http: Any, place: SimpleNamespace) -> Any:
        with http.Client(**options) as client:
            return call(http, client, place)

    return run


def use_after(step: Callable[[Any], Any]) -> Situation:
    """A streamed response, used in a wrong way."""

    def use(http: Any, client: Any, place: SimpleNamespace) -> Any:
        with client.stream("GET", place.url + "/ok") as response:
            step(response)

    return with_client(use)


def after_iteration(response: Any) -> None:
    list(response.iter_bytes())
    response.read()


def after_close(response: Any) -> None:
    response.close()
    response.read()


def pool_timeout(http: Any, client: Any, place: SimpleNamespace) -> Any:
    with client.stream("GET", place.url + "/silent-body"):
        client.get(place.url + "/ok")


def ambiguous(http: Any, client: Any, place: SimpleNamespace) -> Any:
    client.get(place.url + "/two")
    return client.cookies["a"], client.cookies.get("a")


def to_https(http: Any, client: Any, place: SimpleNamespace) -> Any:
    return client.get("https://h/")


OF_HTTPX: dict[str, Situation] = {
    **BOTH,
    "silent body": with_client(
        lambda http, client, place: client.get(place.url + "/silent-body", timeout=0.2)
    ),
    "endless redirect": with_client(
        lambda http, client, place: client.get(place.url + "/loop"), follow_redirects=True
    ),
    "redirect to ftp": with_client(
        lambda http, client, place: client.get(place.url + "/ftp"), follow_redirects=True
    ),
    "body sent twice": with_client(
        lambda http, client, place: client.post(place.url + "/again", content=(piece for piece in [b"x"])),
        follow_redirects=True,
    ),
    "pool timeout": lambda http, place: with_client(
        pool_timeout, limits=http.Limits(max_connections=1), timeout=http.Timeout(5, pool=0.1)
    )(http, place),
    "content before read": use_after(lambda response: response.content),
    "text before read": use_after(lambda response: response.text),
    "read after iteration": use_after(after_iteration),
    "read after close": use_after(after_close),
    "request not read": lambda http, place: http.Request("POST", place.url, content=iter([b"x"])).content,
    "two cookies": with_client(ambiguous),
    "proxy that refuses": lambda http, place: with_client(to_https, proxy=place.url)(http, place),
    "proxy that is away": lambda http, place: with_client(to_https, proxy=place.refused)(http, place),
    "no proxy": lambda http, place: http.Client(proxy="ftp://127.0.0.1"),
}


def with_session(call: Callable[[Any, SimpleNamespace], Any]) -> Situation:
    def run(http: Any, place: SimpleNamespace) -> Any:
        with http.Session() as session:
            return call(session, place)

    return run


OF_REQUESTS: dict[str, Situation] = {
    **BOTH,
    "endless redirect": with_session(lambda session, place: session.get(place.url + "/loop")),
    "redirect to ftp": with_session(lambda session, place: session.get(place.url + "/ftp")),
    "no host": lambda http, place: http.get("http:///x"),
    "no port": lambda http, place: http.get("http://127.0.0.1:70000/x"),
}


def caught_by(package: Any, names: list[str], error: BaseException) -> set[str]:
    return {name for name in names if isinstance(error, getattr(package, name))}


def raised(situation: Situation, http: Any, place: SimpleNamespace) -> Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            situation(http, place)
        except Exception as error:
            return error
    pytest.fail("no error")


def exception_names(package: Any) -> list[str]:
    return [
        name
        for name in dir(package)
        if not name.startswith("_")
        and isinstance(getattr(package, name), type)
        and issubclass(getattr(package, name), Exception)
        and getattr(package, name).__module__.startswith(("httpx", "requests"))
    ]


HTTPX_NAMES = exception_names(httpx)
REQUESTS_NAMES = exception_names(requests.exceptions)


@pytest.mark.parametrize("name", OF_HTTPX)
def test_an_except_of_httpx_catches_ours(name: str, place: SimpleNamespace) -> None:
    theirs, ours = (raised(OF_HTTPX[name], http, place) for http in (httpx, towline))
    expected = caught_by(httpx, HTTPX_NAMES, theirs)
    assert caught_by(towline, HTTPX_NAMES, ours) >= expected, (theirs, ours)
    for builtin in (ValueError, RuntimeError, json.JSONDecodeError):
        assert isinstance(ours, builtin) or not isinstance(theirs, builtin)


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_an_except_of_requests_catches_ours(name: str, place: SimpleNamespace) -> None:
    theirs, ours = (raised(OF_REQUESTS[name], http, place) for http in (requests, towline))
    expected = caught_by(requests.exceptions, REQUESTS_NAMES, theirs)
    assert expected
    assert caught_by(towline.exceptions, REQUESTS_NAMES, ours) >= expected, (theirs, ours)
    top = exception_names(requests)
    assert caught_by(towline, top, ours) >= caught_by(requests, top, theirs), (theirs, ours)


def relations(package: Any, names: list[str]) -> set[tuple[str, str]]:
    """Pairs of names of which the first is a subclass of the second."""
    kinds = {name: getattr(package, name) for name in names}
    return {(one, other) for one in names for other in names if issubclass(kinds[one], kinds[other])}


def test_the_exceptions_have_the_relations_of_httpx() -> None:
    assert len(HTTPX_NAMES) > 25
    theirs, ours = relations(httpx, HTTPX_NAMES), relations(towline, HTTPX_NAMES)
    # `StreamClosed` is `StreamConsumed` here, `CloseError` is `WriteError`.
    assert theirs - ours == set()
    for name, other in ours - theirs:
        assert {name, other} & {"StreamClosed", "CloseError", "InvalidURL", "StreamConsumed"}, (name, other)


def test_the_exceptions_have_the_relations_of_requests() -> None:
    assert len(REQUESTS_NAMES) > 20
    theirs, ours = (
        relations(requests.exceptions, REQUESTS_NAMES),
        relations(towline.exceptions, REQUESTS_NAMES),
    )
    assert theirs - ours == {
        ("InvalidProxyURL", "InvalidURL")
    }  # a proxy is an option of the client: `ConfigError`


def test_names_that_mean_something_else() -> None:
    """A name of both packages means what it means in httpx."""
    assert issubclass(towline.StatusError, towline.exceptions.HTTPError)
    assert not issubclass(towline.ConnectError, towline.exceptions.HTTPError)
    assert issubclass(towline.ConnectError, towline.HTTPError)


def test_timeout_is_a_setting_and_catches_timeouts() -> None:
    """A setting in httpx, an exception in requests."""
    name: Any = towline.Timeout  # type checkers know the setting
    setting = name(5, connect=2)
    assert setting == Timeout(5, connect=2)
    assert isinstance(setting, name)
    assert not isinstance(setting, Exception)
    assert pickle.loads(pickle.dumps(setting)) == copy.deepcopy(setting) == setting
    assert not isinstance(5.0, name)
    assert not isinstance(setting, towline.TimeoutError)
    with pytest.raises(towline.ConfigError, match="timeout"):
        name("soon")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(name) as caught,
    ):
        towline.get(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout=name(0.05))
    assert type(caught.value) is towline.ReadTimeout
    assert isinstance(caught.value, name)
    assert not issubclass(towline.ConnectError, name)


def test_an_error_without_a_response_has_none() -> None:
    """`if error.response is not None` is how programs of requests tell errors apart."""
    with pytest.raises(towline.exceptions.RequestException) as caught:
        towline.get("http://127.0.0.1:1/")
    assert caught.value.response is None
    assert caught.value.request.method == "GET"


OF_MODULES = [
    f"{module}.{name}"
    for module in ("adapters", "auth", "cookies", "exceptions", "models", "sessions", "structures", "utils")
    for name, value in vars(importlib.import_module(f"requests.{module}")).items()
    if not name.startswith("_") and getattr(value, "__module__", "") == f"requests.{module}"
]
# Programs use these, and they work.
WORKING = {
    *("auth.AuthBase", "auth.HTTPBasicAuth", "auth.HTTPDigestAuth", "cookies.RequestsCookieJar"),
    *("cookies.cookiejar_from_dict", "models.PreparedRequest", "models.Request", "models.Response"),
    *("sessions.Session", "sessions.session", "structures.CaseInsensitiveDict", "utils.dict_from_cookiejar"),
    *(f"exceptions.{name}" for name in REQUESTS_NAMES),
}
EXPORTED = {name for name in (*httpx.__all__, *requests.__all__) if not name.startswith("_")}
WITHOUT = {"create_ssl_context", "main", "packages.urllib3"}


@pytest.mark.parametrize("name", sorted({*EXPORTED, *OF_MODULES, *WITHOUT}))
def test_every_name_of_a_peer_works_or_the_error_says_what_to_write(name: str) -> None:
    found: Any = towline
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        assert name in WITHOUT or "." in name
        assert name not in WORKING
        assert "; " in str(error)
    else:
        assert name not in WITHOUT
        assert found is not None


def test_codes_of_requests() -> None:
    names = {name for name in vars(requests.codes) if re.fullmatch("[a-z_]+", name)}
    known = {name for name in names if hasattr(towline.codes, name)}
    assert {"ok", "okay", "moved", "bad", "not_found", "teapot", "server_error", "unavailable"} <= known
    for name in known - {"name", "request_uri_too_long"}:  # 122 in requests, 414 in RFC 2616
        assert getattr(towline.codes, name) == requests.codes[name], name


def test_names_of_peers_are_neither_listed_nor_imported() -> None:
    assert not {"HTTPStatusError", "Session", "exceptions", "RequestException"} & set(dir(towline))
    code = "import sys, towline; assert not {m for m in sys.modules if m.startswith('towline.')}, sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_other_names_of_httpx_work(place: SimpleNamespace) -> None:
    transport = towline.HTTPTransport(retries=2, http2=True, limits=towline.Limits(max_connections=3))
    with towline.Client(transport=transport) as client:
        assert client.get(place.url + "/ok", auth=towline.USE_CLIENT_DEFAULT).text == "hello"
    mounts = {"http://": towline.HTTPTransport(proxy=place.refused, trust_env=False)}
    with towline.Client(mounts=mounts) as client, pytest.raises(towline.ConnectError):
        client.get(place.url + "/ok")
    with towline.Client(
        transport=towline.MockTransport(lambda _: towline.Response(200, stream=towline.ByteStream(b"x")))
    ) as client:
        assert client.get("http://h/").content == b"x"

    async def main() -> str:
        async with towline.AsyncClient(transport=towline.AsyncHTTPTransport(uds=None)) as client:
            return (await client.get(place.url + "/ok", timeout=towline.USE_CLIENT_DEFAULT)).text

    assert asyncio.run(main()) == "hello"
    with pytest.raises(TypeError, match="proxies"):
        towline.HTTPTransport(proxies={})


def test_a_session_of_requests(place: SimpleNamespace) -> None:
    class Token(towline.auth.AuthBase):
        def __call__(self, request: Any) -> Any:
            request.headers["Authorization"] = "Bearer x"
            return request

    with towline.Session() as session:
        session.headers.update({"X-App": "demo"})
        session.auth = Token()
        response = session.get(place.url + "/loop", follow_redirects=False)
        assert response.request.headers["authorization"] == "Bearer x"
        assert response.status_code == towline.codes.found
        with pytest.raises(towline.exceptions.TooManyRedirects, match="30"):
            session.get(place.url + "/loop")
    assert towline.utils.quote("a b") == "a%20b"
    assert towline.utils.dict_from_cookiejar(towline.cookies.cookiejar_from_dict({"a": "1"})) == {"a": "1"}
