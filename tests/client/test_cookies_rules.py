"""Cookies: RFC 6265bis, case by case; no input of a peer raises."""

from __future__ import annotations

import http.cookiejar
import sys
import types

import pytest
import towline
from hypothesis import given
from hypothesis import strategies as st
from towline import URL, Client, Cookies, MockTransport, Response, UsageError
from towline.client import cookies as rules

NOW = 1_700_000_000.0
DAY = 86400


def jar(url, *fields, now=NOW):
    cookies = Cookies()
    cookies.store(URL(url), [field.encode("utf-8", "surrogateescape") for field in fields], now)
    return cookies


def sent(cookies, url, now=NOW):
    return cookies.header_for(URL(url), now=now).decode()


@pytest.mark.parametrize(
    ("origin", "field", "goes_to", "stays_from"),
    [
        ("http://a.b.example/x", "n=v", "http://a.b.example/x", "http://b.example/"),
        ("http://a.b.example/x", "n=v", "http://a.b.example/", "http://c.a.b.example/"),
        ("http://a.b.example/", "n=v; Domain=b.example", "http://c.b.example/", "http://xb.example/"),
        ("http://a.b.example/", "n=v; Domain=.B.Example", "http://b.example/", "http://example/"),
        ("http://h.example/a/b/c", "n=v", "http://h.example/a/b/d", "http://h.example/a/bc"),
        ("http://h.example/a/b/c", "n=v; Path=/a", "http://h.example/a", "http://h.example/ab"),
        ("http://h.example/", "n=v; Path=/a/", "http://h.example/a/x", "http://h.example/a"),
        ("http://h.example/", "n=v; Path=relative", "http://h.example/z", "http://other.example/"),
        ("https://h.example/", "n=v; Secure", "https://h.example/", "http://h.example/"),
        ("http://127.0.0.1/", "n=v", "http://127.0.0.1:99/", "http://10.127.0.0.1.example/"),
        ("http://[::1]/", "n=v", "http://[::1]/", "http://[::2]/"),
        ("http://localhost/", "n=v", "http://localhost/", "http://x.localhost/"),
        ("https://h.example/", "__Host-n=v; Secure; Path=/", "https://h.example/", "https://a.h.example/"),
        ("https://h.example/", "__Secure-n=v; Secure", "https://h.example/", "http://h.example/"),
        ("https://h.example/", "n=v; SameSite=None; Secure", "https://h.example/", "https://x.example/"),
        ("http://h.example/", "n=v; SameSite=Lax", "http://h.example/", "http://x.example/"),
    ],
)
def test_requests_that_get_a_cookie(origin, field, goes_to, stays_from):
    cookies = jar(origin, field)
    assert "=v" in sent(cookies, goes_to)
    assert sent(cookies, stays_from) == ""


@pytest.mark.parametrize(
    ("origin", "field"),
    [
        ("http://a.example/", "n=v; Domain=b.example"),
        ("http://a.example/", "n=v; Domain=sub.a.example"),
        ("http://a.example/", "n=v; Domain=example"),
        ("http://127.0.0.1/", "n=v; Domain=0.0.1"),
        ("http://h.example/", "n=v; Secure"),
        ("http://h.example/", "n=v; SameSite=None"),
        ("http://h.example/", "__Secure-n=v"),
        ("https://h.example/", "__secure-n=v"),
        ("https://h.example/", "__Host-n=v; Secure"),
        ("https://h.example/", "__Host-n=v; Secure; Path=/a"),
        ("https://h.example/", "__Host-n=v; Secure; Path=/; Domain=h.example"),
        ("https://h.example/", "=__Host-n=v; Secure; Path=/"),
        ("https://h.example/", "=__Secure-n; Secure"),
        ("http://h.example/", "n=" + "v" * 4096),
        ("http://h.example/", "n=v\x01"),
        ("http://h.example/", "n=v; Path=/\x7f"),
        ("http://h.example/", ""),
        ("http://h.example/", "="),
        ("http://h.example/", "n=v; Max-Age=0"),
        ("http://h.example/", "n=v; Max-Age=-5"),
        ("http://h.example/", "n=v; Expires=Thu, 01 Jan 1970 00:00:00 GMT"),
    ],
)
def test_an_invalid_cookie_is_not_stored(origin, field):
    assert len(jar(origin, field)) == 0


def test_cookie_expiry():
    url = "http://h.example/"
    assert sent(jar(url, "n=v; Max-Age=10"), url, NOW + 9) == "n=v"
    assert sent(jar(url, "n=v; Max-Age=10"), url, NOW + 11) == ""
    both = jar(url, "n=v; Max-Age=10; Expires=Thu, 01 Jan 1970 00:00:00 GMT")
    assert sent(both, url, NOW + 5) == "n=v"
    assert sent(jar(url, "n=v; Max-Age=999999999999"), url, NOW + 401 * DAY) == ""
    assert sent(jar(url, "n=v; Expires=Fri, 31 Dec 9999 23:59:59 GMT"), url, NOW + 401 * DAY) == ""
    assert sent(jar(url, "n=v; Expires=nonsense"), url, NOW + 1000 * DAY) == "n=v"
    expired = jar(url, "n=v")
    expired.store(URL(url), [b"n=; Max-Age=0"], NOW)
    assert len(expired) == 0


def test_order_and_replacement():
    cookies = jar("http://h.example/a/b", "x=1; Path=/", "y=2; Path=/a", "x=3; Path=/", "z=4; Path=/a/b")
    assert sent(cookies, "http://h.example/a/b") == "z=4; y=2; x=3"
    assert sent(jar("http://h.example/", "=only"), "http://h.example/") == "only"
    assert sent(jar("http://h.example/", 'n="a b"'), "http://h.example/") == 'n="a b"'


def test_value_bytes_are_sent_unchanged():
    cookies = Cookies()
    cookies.store(URL("http://h.example/"), [b"n=\xff\xc3\xbc"], NOW)
    assert cookies.header_for(URL("http://h.example/"), now=NOW) == b"n=\xff\xc3\xbc"


def test_a_secure_cookie_is_not_overlaid_in_the_clear():
    cookies = jar("https://h.example/", "n=safe; Secure")
    cookies.store(URL("http://h.example/"), [b"n=evil"], NOW)
    assert sent(cookies, "https://h.example/") == "n=safe"


def test_bounds():
    cookies = Cookies()
    for number in range(400):
        cookies.store(URL("http://h.example/"), [b"n%d=v" % number], NOW + number)
    assert len(cookies) == rules.MAX_PER_DOMAIN
    assert "n399" in cookies
    assert "n0" not in cookies
    for number in range(rules.MAX_COOKIES + 50):
        cookies.store(URL(f"http://h{number}.example/"), [b"n=v"], NOW + 1000 + number)
        assert number % 500 or len(cookies) <= rules.MAX_COOKIES
    assert rules.MAX_COOKIES - 200 < len(cookies) <= rules.MAX_COOKIES


def test_public_suffixes_where_the_list_is_installed(monkeypatch):
    class PublicSuffixList:
        def __init__(self, accept_unknown):
            assert accept_unknown is False

        def publicsuffix(self, domain):
            return "co.example" if domain.endswith("co.example") else None

    module = types.ModuleType("publicsuffixlist")
    module.PublicSuffixList = PublicSuffixList
    monkeypatch.setitem(sys.modules, "publicsuffixlist", module)
    monkeypatch.setattr(rules, "_suffixes", [])
    assert len(jar("http://a.co.example/", "n=v; Domain=co.example")) == 0
    assert len(jar("http://a.co.example/", "n=v; Domain=a.co.example")) == 1
    assert sent(jar("http://co.example/", "n=v; Domain=co.example"), "http://a.co.example/") == ""


def test_the_mapping():
    cookies = Cookies({"a": "1"})
    cookies.set("a", "2", domain="h.example", path="/p")
    cookies["b"] = "3"
    assert len(cookies) == 3
    assert cookies.get("a", domain="h.example") == "2"
    assert cookies.get("c", "none") == "none"
    with pytest.raises(UsageError, match="domain="):
        cookies["a"]
    with pytest.raises(KeyError):
        cookies["c"]
    assert sent(cookies, "http://x.h.example/p") in ("a=2; a=1; b=3",)
    cookies.delete("a", domain="h.example", path="/p")
    assert cookies["a"] == "1"
    cookies.clear()
    assert not cookies
    with pytest.raises(UsageError):
        cookies.set("a", "x\r\ny")
    with pytest.raises(UsageError):
        cookies.set("a", "x; y")
    assert "hunter2" not in repr(Cookies({"session": "hunter2"}))


def test_jars_of_the_standard_library(tmp_path):
    stored = http.cookiejar.MozillaCookieJar(tmp_path / "cookies.txt")
    cookies = Cookies(stored)
    cookies.store(URL("http://h.example/"), [b"n=v; Max-Age=1000"], None)
    stored.save()
    loaded = http.cookiejar.MozillaCookieJar(tmp_path / "cookies.txt")
    loaded.load()
    assert Cookies(loaded).header_for(URL("http://h.example/")) == b"n=v"


def test_a_client_stores_cookies_and_sends_its_own_only_to_the_first_origin():
    seen = []

    def handler(request):
        seen.append((str(request.url), request.headers.get("cookie")))
        if request.url.path == "/away":
            return Response(302, headers={"Location": "http://other.example/"})
        return Response(200, headers=[("Set-Cookie", "s=1"), ("Set-Cookie", "broken\x01=")][:1])

    with Client(transport=MockTransport(handler), cookies={"own": "secret"}, follow_redirects=True) as client:
        client.get("http://h.example/")
        client.get("http://h.example/", cookies={"call": "2"})
        client.get("http://h.example/away")
        assert client.cookies.get("s", domain="h.example") == "1"
    assert seen == [
        ("http://h.example/", "own=secret"),
        ("http://h.example/", "s=1; own=secret; call=2"),
        ("http://h.example/away", "s=1; own=secret"),
        ("http://other.example/", None),
    ]


@given(st.binary(max_size=80), st.sampled_from(["http://h.example/a", "https://127.0.0.1/", "http://[::1]/"]))
def test_no_cookie_of_a_peer_raises(field, url):
    cookies = Cookies()
    cookies.store(URL(url), [field], NOW)
    value = cookies.header_for(URL(url), now=NOW)
    assert not set(value) & set(b"\r\n\x00")
    assert len(value) <= len(field) + 1
    repr(cookies)
    assert towline.Headers._of_wire([(b"Cookie", value)])["cookie"] is not None


@given(
    st.lists(
        st.sampled_from(
            ["Domain=", "Path=/", "Secure", "Max-Age=", "Expires=", "SameSite=", "h.example", "9" * 30, "; "]
        )
    )
)
def test_any_order_of_attributes(parts):
    jar("https://h.example/", "n=v;" + ";".join(parts))
