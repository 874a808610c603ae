"""Which transport carries a request: mounts, proxies of the environment, names, per call."""

from __future__ import annotations

import warnings

import certifi
import httpx
import pytest
import towline
from towline import AsyncClient, BaseTransport, Client, ConfigError, MockTransport, Proxy, Response
from towline.client import environment, transport_choice
from towline.client.mounts import Mounts, URLPattern
from towline.client.url import URL

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in (
        *PROXY_VARIABLES,
        "TOWLINE_TRANSPORT",
        "TOWLINE_STREAM_TRANSPORT",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def named(name):
    return MockTransport(lambda request: Response(200, text=name))


class Named(BaseTransport):
    def handle_request(self, request):
        return Response(200, text="named")


# --- mounts ---


@pytest.mark.parametrize(
    ("pattern", "url", "matches"),
    [
        ("all://", "http://h/", True),
        ("https://", "http://h/", False),
        ("all://h.example", "https://h.example:8/", True),
        ("all://h.example", "https://a.h.example/", False),
        ("all://*.h.example", "https://a.h.example/", True),
        ("all://*.h.example", "https://h.example/", False),
        ("all://*h.example", "https://h.example/", True),
        ("all://*h.example", "https://a.h.example/", True),
        ("all://*h.example", "https://ah.example/", False),
        ("http://h:8", "http://h:8/", True),
        ("http://h:8", "http://h/", False),
        ("all://*", "http://h/", True),
        ("all://[::1]", "http://[::1]/", True),
        ("", "http://h/", True),
    ],
)
def test_patterns(pattern, url, matches):
    assert URLPattern(pattern).matches(URL(url)) is matches


def test_the_most_specific_pattern_wins():
    patterns = [
        "all://",
        "https://",
        "all://*.h.example",
        "all://a.h.example",
        "https://a.h.example",
        "all://h:8",
    ]
    mounts = Mounts({pattern: pattern for pattern in patterns})
    for url, expected in [
        ("http://x/", "all://"),
        ("https://x/", "https://"),
        ("http://b.h.example/", "all://*.h.example"),
        ("http://a.h.example/", "all://a.h.example"),
        ("https://a.h.example/", "https://a.h.example"),
        ("http://h:8/", "all://h:8"),
    ]:
        assert mounts.find(URL(url)) == (True, expected)
    with pytest.raises(ConfigError, match="https://"):
        Mounts({"https": None})


def test_mounts_of_a_client():
    mounts = {"https://": named("tls"), "all://h": named("h"), "all://own": None}
    with Client(mounts=mounts, transport=named("own")) as client:
        texts = [client.get(url).text for url in ("http://x/", "https://x/", "http://h/", "http://own/")]
        assert texts == ["own", "tls", "h", "own"]
        assert client.get("http://x/", transport=named("call")).text == "call"
        assert client.get("http://x/", extensions={"transport": named("extension")}).text == "extension"


# --- the environment ---


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ("example.org", ["http://example.org/", "http://a.example.org:8/"], ["http://xexample.org/"]),
        (".example.org", ["http://a.example.org/", "http://example.org/"], ["http://xexample.org/"]),
        ("*.example.org", ["http://a.example.org/"], ["http://example.org/"]),
        ("10.0.0.0/8", ["http://10.1.2.3/"], ["http://11.0.0.1/", "http://10.example/"]),
        ("192.168.1.5", ["http://192.168.1.5/"], ["http://192.168.1.6/"]),
        ("fd00::/8", ["http://[fd12::1]/"], ["http://[fe80::1]/"]),
        ("[::1]", ["http://[::1]:8/"], ["http://[::2]/"]),
        ("[::1]:8", ["http://[::1]:8/"], ["http://[::1]/"]),
        ("h:8080", ["http://h:8080/"], ["http://h/"]),
        ("http://h:8080", ["http://h:8080/"], ["http://h/"]),
        ("a.example b.example", ["http://a.example/", "http://b.example/"], ["http://c.example/"]),
        ("LOCALHOST", ["http://localhost/", "http://LocalHost./"], ["http://127.0.0.1/"]),
        ("*", ["http://any/", "https://10.1.1.1/"], []),
    ],
)
def test_no_proxy(monkeypatch, entry, inside, outside):
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", f"unused.example,{entry}")
    client = Client()
    for url, direct in [*((url, True) for url in inside), *((url, False) for url in outside)]:
        parsed = URL(url)
        found = client._proxies.of(parsed.scheme, parsed.raw_host.decode(), parsed.port or 80)
        assert (found is None) is direct, url


def test_proxies_of_the_environment(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "one.example:3128")
    monkeypatch.setenv("https_proxy", "http://user:p%40ss@two.example:3128")
    found = environment.read_proxies()
    assert found.of("http", "h", 80) == Proxy("http://one.example:3128")
    assert found.of("https", "h", 443).auth == ("user", "p@ss")
    assert found.of("ftp", "h", 21) is None
    assert "p@ss" not in repr(found)
    assert Client(trust_env=False)._proxies.of("http", "h", 80) is None
    assert Client(transport=named("x"))._proxies.of("http", "h", 80) is None
    assert Client(proxy="socks5://three.example")._proxies.of("http", "h", 80).port == 1080
    monkeypatch.setenv("REQUEST_METHOD", "GET")  # a CGI program: HTTP_PROXY is the field Proxy of its caller
    assert environment.read_proxies().of("http", "h", 80) is None
    monkeypatch.setenv("ALL_PROXY", "gopher://x")
    with pytest.raises(ConfigError, match="socks5"):
        Client()


def test_the_environment_is_read_once(monkeypatch):
    client = Client()
    monkeypatch.setenv("HTTP_PROXY", "http://late.example")
    assert client._proxies.of("http", "h", 80) is None
    assert client._origin_pool("http", "h", 80) is client._origin_pool("http", "other", 80)


def test_trust_of_the_environment(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "some/ca.pem")
    assert Client()._options.tls.trust == "environment"
    assert Client(trust_env=False)._options.tls.trust == "platform"
    assert Client(verify=certifi.where())._options.tls.trust == certifi.where()
    proxy = towline.Proxy("https://u:p@proxy.example", headers={"x": "y"}, tls=towline.TLS())
    confined = Client(proxy=proxy, trust_env=False)._proxies.of("http", "h", 80)
    assert confined.tls.trust == "platform"
    assert (confined.url, confined.auth, confined.headers) == (proxy.url, proxy.auth, proxy.headers)


# --- names ---


def test_names():
    assert transport_choice.by_name("native", True) is None
    assert isinstance(transport_choice.by_name(f"{__name__}:Named", False), Named)
    assert Client(transport=f"{__name__}:Named").get("http://h/").text == "named"
    with Client(transport=named("own")) as client:
        assert client.get("http://h/", transport=f"{__name__}:Named").text == "named"
    for name, message in [
        ("nonsense", "native, urllib3"),
        ("no_such_module:X", "no module named no_such_module"),
        (f"{__name__}:Missing", "no Missing"),
        ("aiohttp", "AsyncClient"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Client(transport=name)
    with pytest.raises(ConfigError, match="Client"):
        AsyncClient(transport="urllib3")


def test_the_environment_names_one(monkeypatch):
    monkeypatch.setenv("TOWLINE_TRANSPORT", f"{__name__}:Named")
    assert Client().get("http://h/").text == "named"
    assert Client(transport=named("own")).get("http://h/").text == "own"
    assert Client(trust_env=False)._transport is None
    monkeypatch.setenv("TOWLINE_TRANSPORT", "native")
    monkeypatch.setenv("TOWLINE_STREAM_TRANSPORT", f"{__name__}:Named")
    client = Client()
    assert client._transport is None
    with client.stream("GET", "http://h/") as response:
        assert response.read() == b"named"


def test_an_unknown_name_in_the_environment_warns_and_falls_back(monkeypatch):
    monkeypatch.setenv("TOWLINE_TRANSPORT", "nonsense")
    with pytest.warns(RuntimeWarning, match="TOWLINE_TRANSPORT=nonsense"):
        client = Client()
    assert client._transport is None
    monkeypatch.setenv("TOWLINE_TRANSPORT", "aiohttp")
    with pytest.warns(RuntimeWarning, match="AsyncClient only"):
        Client()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Client(transport=named("x"))


def test_the_configuration_is_the_last_choice(monkeypatch):
    try:
        towline.configure(transport=f"{__name__}:Named")
        assert Client().get("http://h/").text == "named"
        monkeypatch.setenv("TOWLINE_TRANSPORT", "native")
        assert Client()._transport is None
        towline.configure(transport="aiohttp")
        monkeypatch.delenv("TOWLINE_TRANSPORT")
        assert Client()._transport is None
        with pytest.raises(ConfigError):
            towline.configure(transport="nonsense")
    finally:
        towline.configure()


# --- other libraries ---


def test_a_transport_of_httpx(caplog):
    def handler(request):
        assert request.headers.raw[0][0] == b"Host"
        if request.url.path == "/fail":
            raise httpx.ReadTimeout("slow")
        return httpx.Response(200, content=request.content, headers=[("X-A", "1"), ("X-A", "2")])

    with Client(transport=httpx.MockTransport(handler)) as client:
        response = client.post("http://h/", content=b"abc")
        assert (response.content, response.headers.get_list("x-a")) == (b"abc", ["1", "2"])
        with pytest.raises(towline.ReadTimeout, match="slow"):
            client.get("http://h/fail")
