"""Redirects: RFC 9110 15.4 and Fetch, on both backends."""

from __future__ import annotations

import pytest
from towline import MockTransport, RemoteProtocolError, Request, Response, TooManyRedirects, UsageError
from towline.client.redirects import redirect_request

from tests.support.client_callers import BACKENDS, Caller, Recorder


def to(where, status=302):
    return lambda request: Response(status, headers=[(b"Location", where.encode())], text="moved")


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def caller(backend, recorder, **settings):
    return Caller(backend, transport=MockTransport(recorder), follow_redirects=True, **settings)


@pytest.mark.parametrize(
    ("method", "status", "onward", "body"),
    [
        ("POST", 301, "GET", b""),
        ("POST", 302, "GET", b""),
        ("POST", 303, "GET", b""),
        ("PUT", 303, "GET", b""),
        ("POST", 307, "POST", b"body"),
        ("POST", 308, "POST", b"body"),
        ("PUT", 301, "PUT", b"body"),
        # As httpx, requests and Go: 302 changes every method but HEAD, 301 POST only.
        ("PUT", 302, "GET", b""),
        ("DELETE", 302, "GET", b""),
        ("DELETE", 301, "DELETE", b"body"),
        ("HEAD", 302, "HEAD", b"body"),
        ("PUT", 307, "PUT", b"body"),
        ("HEAD", 303, "HEAD", b"body"),
    ],
)
def test_methods(backend, method, status, onward, body):
    recorder = Recorder(a=to("/b", status))
    response = caller(backend, recorder).request(
        method, "http://h/a", content=b"body", headers={"Content-Type": "x/y"}
    )
    assert [(one.method, one.content) for one in recorder.requests] == [(method, b"body"), (onward, body)]
    assert ("content-length" in recorder.requests[1].headers) == (body != b"")
    assert ("content-type" in recorder.requests[1].headers) == (body != b"")
    assert [one.status_code for one in response.history] == [status]
    assert response.history[0].text == "moved"
    assert response.url == "http://h/b"


@pytest.mark.parametrize("status", [300, 304, 305, 306])
def test_a_response_that_is_no_redirect_is_returned(backend, status):
    recorder = Recorder(a=to("/b", status))
    assert caller(backend, recorder).get("http://h/a").status_code == status
    assert len(recorder.requests) == 1


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/b", "http://h:8/b"),
        ("b?c", "http://h:8/x/b?c"),
        ("//other/b", "http://other/b"),
        ("https://other:9/b", "https://other:9/b"),
        ("http:/b", "http://h/b"),
        ("#part", "http://h:8/x/a#part"),
        ("/ü b", "http://h:8/%C3%BC%20b"),
    ],
)
def test_locations(backend, location, url):
    recorder = Recorder(
        **{"x/a": lambda request: to(location)(request) if len(recorder.requests) == 1 else Response(200)}
    )
    response = caller(backend, recorder).get("http://h:8/x/a")
    assert str(response.url) == url


def test_the_fragment_is_kept(backend):
    assert str(caller(backend, Recorder(a=to("/b"))).get("http://h/a#frag").url) == "http://h/b#frag"
    assert str(caller(backend, Recorder(a=to("/b#x"))).get("http://h/a#frag").url) == "http://h/b#x"


SECRETS = {"Authorization": "a", "Cookie": "b", "Proxy-Authorization": "c", "X-Api-Key": "d", "Api-Key": "e"}


@pytest.mark.parametrize(
    ("start", "location", "is_sent"),
    [
        ("http://h/a", "http://h/b", True),
        ("http://h/a", "https://h/b", True),
        ("https://h/a", "http://h/b", False),
        ("http://h/a", "http://other/b", False),
        ("http://h/a", "http://h:8080/b", False),
        ("http://h:8000/a", "https://h/b", False),
        ("http://h/a", "http://sub.h/b", False),
    ],
)
def test_credentials_stay_with_their_origin(backend, start, location, is_sent):
    recorder = Recorder(a=to(location))
    caller(backend, recorder).get(start, headers={**SECRETS, "X-Other": "f"})
    onward = recorder.requests[1].headers
    assert onward["x-other"] == "f"
    for name in SECRETS:
        if name != "Cookie":  # it is the jar's business
            assert (name in onward) == is_sent
    assert "cookie" not in onward
    assert onward["host"] == recorder.requests[1].url.netloc.decode()


def test_auth_is_not_sent_after_a_redirect_to_another_origin(backend):
    recorder = Recorder(a=to("http://other/b"), b=to("http://h/c"))
    caller(backend, recorder, auth=("user", "pass")).get("http://h/a")
    assert ["authorization" in one.headers for one in recorder.requests] == [True, False, False]
    recorder = Recorder(a=to("/b"))
    caller(backend, recorder, auth=("user", "pass")).get("http://h/a")
    assert ["authorization" in one.headers for one in recorder.requests] == [True, True]


def test_too_many(backend):
    recorder = Recorder(a=to("/a"))
    with pytest.raises(TooManyRedirects, match="max_redirects") as caught:
        caller(backend, recorder).get("http://h/a")
    assert len(recorder.requests) == 21
    assert len(caught.value.response.history) == 20
    assert caught.value.request.url == "http://h/a"
    with pytest.raises(TooManyRedirects):
        caller(backend, Recorder(a=to("/a")), max_redirects=0).get("http://h/a")


@pytest.mark.parametrize(
    "location",
    ["ftp://h/", "file:///etc/passwd", "javascript:alert(1)", "http://h:99999/", "http://a b/", "mailto:a@b"],
)
def test_invalid_locations(backend, location):
    with pytest.raises(RemoteProtocolError, match="redirect") as caught:
        caller(backend, Recorder(a=to(location))).get("http://h/a")
    assert "RFC 9110" in caught.value.rule


def test_a_body_that_cannot_be_sent_again():
    request = Request("POST", "http://h/a", content=iter([b"x"]))
    with pytest.raises(UsageError, match="sending the body again"):
        redirect_request(request, Response(307, headers={"Location": "/b"}))
    assert redirect_request(request, Response(303, headers={"Location": "/b"})).content == b""


def test_not_followed(backend):
    recorder = Recorder(a=to("/b", 303))
    client = Caller(backend, transport=MockTransport(recorder))
    response = client.post("http://h/a", content=b"x")
    assert response.has_redirect_location
    assert response.next_request.method == "GET"
    assert response.next_request.url == "http://h/b"
    assert client.send(response.next_request).text == "end"
    assert client.get("http://h/a", follow_redirects=True).next_request is None


def test_a_long_body_of_a_redirect_is_not_kept(backend):
    def endless(request):
        return Response(302, headers={"Location": "/b"}, content=(b"x" * 65536 for _ in range(10_000)))

    def aendless(request):
        async def pieces():
            for _ in range(10_000):
                yield b"x" * 65536

        return Response(302, headers={"Location": "/b"}, content=pieces())

    response = caller(backend, Recorder(a=endless if backend == "blocking" else aendless)).get("http://h/a")
    assert response.text == "end"
    assert response.history[0].num_bytes_downloaded <= 2 * 65536
    assert response.history[0].is_closed
