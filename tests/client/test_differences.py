"""The differences that docs/migrate-client.md lists: each is seen with httpx, requests and Towline against one server.

A subject of the table needs a probe here, and each argument of theirs is the same here or in a table.
"""

from __future__ import annotations

import inspect
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import towline
from towline.client.call_options import SingleCallOptions

from tests.client.test_migrate_client import NAMES
from tests.support.http1_peer import Peer, scripted
from tests.support.tls import Trust

PACKAGES = (httpx, requests, towline)


def answer(peer: Peer) -> None:
    seen = 0
    while head := peer.head():
        seen += 1
        path = head.split(b" ")[1].partition(b"?")[0]
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        body = peer.body(int(length)) if length else b""
        if path == b"/stale" and seen > 1:
            return
        if path == b"/slow":
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na")
            peer.sock.settimeout(0.3)
            try:
                peer.sock.recv(1)
            except TimeoutError:
                peer.send(b"b")
            peer.sock.settimeout(None)
            continue
        place = {
            b"/redirect": b"/echo",
            b"/loop": b"/loop",
            b"/away": b"http://localhost:%d/echo" % PORT[0],
        }.get(path)
        if place:
            peer.send(b"HTTP/1.1 302 Found\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % place)
        elif path == b"/text":
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n\xc3\xa9")
        elif path == b"/304":
            peer.send(b"HTTP/1.1 304 Not Modified\r\n\r\n")
        else:
            echo = head + b"\r\n\r\n" + body
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(echo), echo))


PORT = [0]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with scripted(answer) as server:
        PORT[0] = server.port
        yield server.url


def client_of(http: Any, **options: Any) -> Any:
    return http.Session() if http is requests else http.Client(**options)


def following(http: Any) -> dict[str, bool]:
    return {} if http is requests else {"follow_redirects": True}


def kind(call: Callable[[], Any]) -> str:
    """Name of the error, or of nothing."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def default_timeout(http: Any, url: str) -> Any:
    if http is requests:
        return inspect.signature(requests.Session.request).parameters["timeout"].default
    with http.Client() as client:
        return tuple(client.timeout.as_dict().values())


def body_timeout(http: Any, url: str) -> str:
    return kind(lambda: http.get(url + "/slow", timeout=0.1))


def connections(http: Any, url: str) -> Any:
    if http is requests:
        adapter = requests.adapters.HTTPAdapter()
        return adapter._pool_connections, adapter._pool_maxsize, adapter._pool_block
    limits = httpx._config.DEFAULT_LIMITS if http is httpx else towline.Limits()
    own = (limits.max_connections_per_host,) if http is towline else ()
    return limits.max_connections, *own, limits.max_keepalive_connections, limits.keepalive_expiry


def failed_connect(http: Any, url: str) -> Any:
    """Further attempts; test_flow_retries.py sees them."""
    if http is requests:
        return requests.adapters.HTTPAdapter().max_retries.total
    if http is httpx:
        return inspect.signature(httpx.HTTPTransport).parameters["retries"].default
    return towline.Retry().connect


def stale(http: Any, url: str) -> str:
    with client_of(http) as client:
        client.get(url + "/stale")
        return kind(lambda: client.get(url + "/stale"))


def redirects(http: Any, url: str) -> Any:
    return http.get(url + "/redirect").status_code, http.head(url + "/redirect").status_code


def redirects_at_most(http: Any, url: str) -> Any:
    sessions = [towline.Session().max_redirects] if http is towline else []
    with client_of(http) as client:
        return [client.max_redirects, *sessions]


def api_key(http: Any, url: str) -> bool:
    fields = {"X-Api-Key": "k", "Authorization": "Bearer b"}
    with client_of(http, **following(http)) as client:
        text = client.get(url + "/away", headers=fields).text.lower()
    assert "authorization" not in text
    return "x-api-key" in text


def cookie(http: Any, url: str) -> bool:
    with client_of(http, **following(http)) as client:
        client.cookies.update({"a": "1"})
        assert "a=1" in client.get(url + "/echo").text
        return "a=1" in client.get(url + "/away").text


def target(http: Any, url: str, **params: Any) -> str:
    return str(http.get(url + "/x?a=1&b=2", params=params).text.split()[1])


def plain(http: Any, url: str, value: Any) -> str:
    sent = http.get(url + "/x", params={"a": value, "b": "2"}).text.split()[1].partition("?")[2]
    assert sent == http.post(url + "/x", data={"a": value, "b": "2"}).text.partition("\r\n\r\n")[2]
    return str(sent)


def always_sent(http: Any, url: str) -> list[str]:
    return [line.partition(":")[0] for line in http.get(url + "/x").text.split("\r\n")[1:] if line]


def accept_encoding(http: Any, url: str) -> str:
    line = next(
        line for line in http.get(url + "/x").text.split("\r\n") if line.startswith("Accept-Encoding")
    )
    return str(line.partition(": ")[2])


def none_header(http: Any, url: str) -> str:
    return kind(lambda: http.get(url + "/x", headers={"Accept": None}))


def json_body(http: Any, url: str) -> str:
    return str(http.post(url + "/x", json={"a": "é"}).text.partition("\r\n\r\n")[2])


def without_charset(http: Any, url: str) -> str:
    return str(http.get(url + "/text").text)


def for_status(http: Any, url: str) -> Any:
    return kind(lambda: http.get(url + "/304").raise_for_status()), http.get(url).raise_for_status() is None


def response_url(http: Any, url: str) -> str:
    found = type(http.get(url).url)
    return f"{found.__module__.partition('.')[0]}.{found.__name__}"


def lines(http: Any, url: str) -> type:
    return type(next(iter(http.get(url).iter_lines())))


def elapsed(http: Any, url: str) -> bool:
    """Whether the body counts, which takes 0.3 s."""
    return bool(http.get(url + "/slow").elapsed.total_seconds() > 0.2)


def again(http: Any, url: str) -> Any:
    if http is requests:
        response = http.get(url, stream=True)
        list(response.iter_content(10))
        return kind(lambda: list(response.iter_content(10))), kind(lambda: response.content)
    with http.Client() as client, client.stream("GET", url) as response:
        list(response.iter_bytes())
        return kind(lambda: list(response.iter_bytes())), kind(response.read)


def hooks(http: Any, url: str) -> list[Any]:
    seen: list[Any] = []
    with client_of(http, **following(http)) as client:
        if http is requests:
            client.hooks["response"].append(lambda response, **options: seen.append(response.status_code))
        else:
            client.event_hooks = {
                "request": [lambda request: seen.append(request.method)],
                "response": [lambda response: seen.append(response.status_code)],
            }
        client.get(url + "/redirect")
    return seen


def json_error(http: Any, url: str) -> Any:
    with pytest.raises(ValueError) as caught:
        http.get(url).json()
    of_all = {httpx: httpx.HTTPError, requests: requests.RequestException, towline: towline.Error}[http]
    return isinstance(caught.value, of_all)


def no_scheme(http: Any, url: str) -> Any:
    return kind(lambda: http.get("example.org/x")), kind(lambda: http.get("ftp://127.0.0.1/"))


def port(http: Any, url: str) -> str:
    return kind(lambda: http.get("http://127.0.0.1:70000/"))


def proxy_away(http: Any, url: str) -> str:
    with socket.socket() as closed, pytest.MonkeyPatch.context() as patch:
        closed.bind(("127.0.0.1", 0))
        patch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed.getsockname()[1]}")
        patch.setenv("http_proxy", os.environ["HTTP_PROXY"])
        return kind(lambda: http.get("http://example.org/"))


def closed_client(http: Any, url: str) -> str:
    client = client_of(http)
    client.close()
    return kind(lambda: client.get(url))


def proxy_argument(http: Any, url: str) -> bool:
    return "proxy" in inspect.signature(http.Session.request if http is requests else http.Client).parameters


def netrc(http: Any, url: str) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        path = Path(os.environ["PYTEST_NETRC"])
        path.write_text("machine 127.0.0.1 login u password p\n")
        path.chmod(0o600)
        patch.setenv("NETRC", str(path))
        return "authorization" in http.get(url + "/x").text.lower()


def bundle(http: Any, url: str) -> list[bool]:
    """Whether a variable with the file of an authority makes its server trusted."""
    found = []
    trust = Trust(Path(os.environ["PYTEST_NETRC"]).parent)
    with scripted(answer, trust.server()) as server:
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(name, trust.path)
                found.append(kind(lambda: http.get(server.url)) == "nothing")
    return found


def common_name(http: Any, url: str) -> bool:
    trust = Trust(Path(os.environ["PYTEST_NETRC"]).parent)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.ca.issue_cert(common_name="localhost").configure_cert(context)
    with scripted(answer, context) as server:
        return kind(lambda: http.get(f"https://localhost:{server.port}/", verify=trust.path)) == "nothing"


def http2(http: Any, url: str) -> Any:
    return http is not requests and inspect.signature(http.Client).parameters["http2"].default


def keepalive(http: Any, url: str) -> Any:
    return http is towline and inspect.signature(towline.Client).parameters["tcp_keepalive"].default


def early_response(http: Any, url: str) -> bool:
    """Whether the response of a server that answers before it has read the body arrives."""

    def respond(peer: Peer) -> None:
        peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na")
        answered.wait(5)
        peer.chunks()

    answered = threading.Event()

    def body() -> Iterator[bytes]:
        yield b"x"
        answered.wait(0.5)
        yield b"y"

    with scripted(respond) as server:
        if http is requests:
            requests.post(server.url, data=body(), stream=True)
            return False  # nothing returns before the whole body was sent
        with http.Client() as client, client.stream("POST", server.url, content=body()) as response:
            first = not answered.is_set() and response.is_stream_consumed is False
            answered.set()
            response.read()
            return bool(first and http is towline)


# Subject -> probe, and what it returns for httpx, requests and Towline.
PROBES: dict[str, tuple[Callable[[Any, str], Any], tuple[Any, Any, Any]]] = {
    "default timeout": (default_timeout, ((5.0,) * 4, None, (5.0, 60.0, 60.0, None, None))),
    "read timeout inside a body": (body_timeout, ("ReadTimeout", "ConnectionError", "ReadTimeout")),
    "connections of a client": (connections, ((100, 20, 5.0), (10, 10, False), (1000, 100, 100, 15.0))),
    "failed connect": (failed_connect, (0, 0, 1)),
    "kept connection that the server has closed": (
        stale,
        ("RemoteProtocolError", "ConnectionError", "nothing"),
    ),
    "redirects": (redirects, ((302, 302), (200, 302), (302, 302))),
    "redirects at most": (redirects_at_most, ([20], [30], [20, 30])),
    "API-key headers after a redirect to another origin": (api_key, (True, True, False)),
    "client cookie without a domain after a redirect to another host": (cookie, (True, True, False)),
    "`params=` and the query of a URL": (
        lambda http, url: target(http, url, b="3"),
        ("/x?b=3", "/x?a=1&b=2&b=3", "/x?a=1&b=3"),
    ),
    "None in `params=` and `data=`": (lambda http, url: plain(http, url, None), ("a=&b=2", "b=2", "a=&b=2")),
    "True in `params=` and `data=`": (
        lambda http, url: plain(http, url, True),
        ("a=true&b=2", "a=True&b=2", "a=true&b=2"),
    ),
    "headers that are always sent": (
        always_sent,
        (
            ["Host", "Accept", "Accept-Encoding", "Connection", "User-Agent"],
            ["Host", "User-Agent", "Accept-Encoding", "Accept", "Connection"],
            ["Host", "Accept", "Accept-Encoding", "User-Agent"],
        ),
    ),
    "header with the value None": (none_header, ("TypeError", "nothing", "InvalidHeader")),
    "`json=`": (json_body, ('{"a":"é"}', '{"a": "\\u00e9"}', '{"a":"é"}')),
    "text without a charset": (without_charset, ("é", "Ã©", "é")),
    "`raise_for_status()`": (
        for_status,
        (("HTTPStatusError", False), ("nothing", True), ("StatusError", False)),
    ),
    "`response.url`": (response_url, ("httpx.URL", "builtins.str", "towline.URL")),
    "`response.iter_lines()`": (lines, (str, bytes, str)),
    "`response.elapsed`": (elapsed, (True, False, True)),
    "stream read again after iteration": (
        again,
        (
            ("StreamConsumed", "StreamConsumed"),
            ("StreamConsumedError", "RuntimeError"),
            ("nothing", "StreamConsumed"),
        ),
    ),
    "event hooks": (hooks, (["GET", 302, "GET", 200], [302, 200], ["GET", 302, "GET", 200])),
    "error of `response.json()`": (json_error, (False, True, True)),
    "URL without http:// or https://": (
        no_scheme,
        (("UnsupportedProtocol",) * 2, ("MissingSchema", "InvalidSchema"), ("UnsupportedProtocol",) * 2),
    ),
    "port above 65535": (port, ("ConnectError", "InvalidURL", "InvalidURL")),
    "proxy that is away": (proxy_away, ("ConnectError", "ProxyError", "ConnectError")),
    "closed client": (closed_client, ("RuntimeError", "nothing", "ClientClosed")),
    "proxy": (proxy_argument, (True, False, True)),
    "netrc": (netrc, (False, True, False)),
    "trusted certificates": (bundle, ([True, False], [False, True], [True, False])),
    "certificate with a common name only": (common_name, (True, False, False)),
    "HTTP/2": (http2, (False, False, False)),
    "TCP keep-alive": (keepalive, (False, False, (60, 30, 5))),
    "streamed upload and an early response": (early_response, (False, False, True)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("subject", PROBES)
def test_a_difference_is_as_the_page_says(
    subject: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_NETRC", str(tmp_path / "netrc"))
    probe, expected = PROBES[subject]
    assert tuple(probe(http, url) for http in PACKAGES) == expected


def test_each_subject_of_the_page_has_a_probe() -> None:
    assert {*NAMES.differences()} - {"`Accept-Encoding`"} == {*PROBES}
    assert all(len(cells) == 4 for cells in NAMES.differences().values())


def test_what_towline_accepts_by_itself(url: str) -> None:
    assert accept_encoding(towline, url) == "gzip, deflate, br, zstd"


def test_the_page_names_the_versions_that_were_measured() -> None:
    assert f"httpx {httpx.__version__} and requests {requests.__version__}" == NAMES.VERSIONS


# --- arguments ---

SENTINELS = (httpx.USE_CLIENT_DEFAULT, towline.USE_CLIENT_DEFAULT, ...)


def parameters(function: Any) -> dict[str, Any]:
    """Name -> default; those of a `TypedDict` are all optional."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and "Unpack" in str(parameter.annotation):
            found |= dict.fromkeys(SingleCallOptions.__annotations__, "optional")
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            found[name] = parameter.default
    return found


def same_default(theirs: Any, ours: Any) -> bool:
    return ours == "optional" or theirs == ours or (theirs in SENTINELS and ours in SENTINELS)


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_each_argument_of_httpx_is_the_same_here_or_in_the_table(kind: str) -> None:
    theirs, ours = getattr(httpx, kind), getattr(towline, kind)
    methods = [
        name for name in dir(theirs) if not name.startswith("_") and inspect.isfunction(getattr(theirs, name))
    ]
    assert len(methods) > 10
    for method in ["__init__", *methods]:
        here = parameters(getattr(ours, method))
        differing = {
            name
            for name, default in parameters(getattr(theirs, method)).items()
            if name not in here or not same_default(default, here[name])
        }
        assert differing == (NAMES.arguments("httpx.Client") if method == "__init__" else set()), method


def test_each_argument_of_requests_is_the_same_here_or_in_the_table() -> None:
    here = parameters(towline.Client.request)
    theirs = parameters(requests.Session.request)
    differing = {
        name for name, default in theirs.items() if not same_default(default, here.get(name, "missing"))
    }
    assert differing == NAMES.arguments("requests.Session.request")
    assert parameters(requests.Session) == {}


def test_each_argument_of_a_transport_of_httpx_is_taken_here_or_in_the_table() -> None:
    refused = set()
    for name, default in parameters(httpx.HTTPTransport).items():
        try:
            if name != "self":
                towline.HTTPTransport(**{name: default}).close()
        except TypeError:
            refused.add(name)
    assert refused | {"limits", "retries"} == NAMES.arguments("httpx.HTTPTransport")


def test_each_function_of_httpx_takes_the_same_arguments() -> None:
    for name in ("get", "post", "put", "patch", "delete", "head", "options", "request", "stream"):
        assert parameters(getattr(httpx, name)).keys() <= parameters(getattr(towline, name)).keys(), name
