"""Authentication: basic, bearer, netrc, functions, generators of a program's own; digest by RFC 7616."""

from __future__ import annotations

import asyncio
import hashlib
import re

import httpx
import pytest
import towline
from hypothesis import given
from hypothesis import strategies as st
from towline import (
    Auth,
    BasicAuth,
    BearerAuth,
    Client,
    DigestAuth,
    MockTransport,
    NetRCAuth,
    Request,
    Response,
    UsageError,
)
from towline.client.digest import Challenge, strongest

from tests.support.client_callers import BACKENDS, Caller, Recorder


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def authorization(backend, auth, url="http://h/"):
    recorder = Recorder()
    Caller(backend, transport=MockTransport(recorder)).get(url, auth=auth)
    return recorder.requests[0].headers.get("authorization")


def test_simple_schemes(backend):
    assert authorization(backend, ("Aladdin", "open sesame")) == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert authorization(backend, BasicAuth("test", "123\u00a3")) == "Basic dGVzdDoxMjPCow=="
    assert authorization(backend, BearerAuth("token")) == "Bearer token"
    assert authorization(backend, BearerAuth(lambda: "fresh")) == "Bearer fresh"
    assert authorization(backend, None) is None
    assert (
        authorization(backend, None, "http://Aladdin:open%20sesame@h/")
        == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    )
    assert authorization(backend, httpx.BasicAuth("a", "b")) == "Basic YTpi"

    def function(request):
        request.headers["Authorization"] = "mine"
        return request

    assert authorization(backend, function) == "mine"


def test_netrc(backend, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine h.example login user password pass\n")
    auth = NetRCAuth(tmp_path / "netrc")
    assert authorization(backend, auth, "http://h.example/") == "Basic dXNlcjpwYXNz"
    assert authorization(backend, auth, "http://other.example/") is None
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert authorization(backend, NetRCAuth(), "http://h.example/") is not None
    with pytest.raises(UsageError, match="does not exist"):
        NetRCAuth(tmp_path / "none")
    (tmp_path / "bad").write_text("machine")
    with pytest.raises(UsageError, match="line 1"):
        NetRCAuth(tmp_path / "bad")


def test_the_client_and_the_call():
    recorder = Recorder()
    with Client(transport=MockTransport(recorder), auth=("a", "b")) as client:
        client.get("http://h/")
        client.get("http://h/", auth=None)
        client.auth = BearerAuth("x")
        client.get("http://h/")
    received = [request.headers.get("authorization") for request in recorder.requests]
    assert received == ["Basic YTpi", None, "Bearer x"]
    with pytest.raises(UsageError):
        Client(auth=5)


class Tokens(Auth):
    """Requests a token first, and again after a 401."""

    requires_response_body = True

    def auth_flow(self, request):
        token = (yield Request("POST", "http://h/token")).text
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            token = (yield Request("POST", "http://h/token")).text
            request.headers["Authorization"] = f"Bearer {token}"
            yield request


def test_a_generator_of_requests(backend):
    tokens = iter(["old", "new"])
    recorder = Recorder(
        token=lambda request: Response(200, text=next(tokens)),
        root=lambda request: Response(200 if request.headers["authorization"] == "Bearer new" else 401),
    )
    response = Caller(backend, transport=MockTransport(recorder), auth=Tokens()).get("http://h/")
    assert response.status_code == 200
    assert recorder.lines == ["POST http://h/token", "GET http://h/", "POST http://h/token", "GET http://h/"]
    assert [one.status_code for one in response.history] == [200, 401, 200]


def test_a_generator_of_each_backend():
    class Both(Auth):
        def sync_auth_flow(self, request):
            request.headers["Backend"] = "blocking"
            yield request

        async def async_auth_flow(self, request):
            await asyncio.sleep(0)
            request.headers["Backend"] = "asynchronous"
            yield request

    for backend, expected in [("blocking", "blocking"), ("asyncio", "asynchronous")]:
        recorder = Recorder()
        Caller(backend, transport=MockTransport(recorder)).get("http://h/", auth=Both())
        assert recorder.requests[0].headers["backend"] == expected


def test_no_secret_is_shown():
    for auth in (BasicAuth("u", "hunter2"), BearerAuth("hunter2"), DigestAuth("u", "hunter2")):
        assert "hunter2" not in repr(auth)


# --- digest ---

# RFC 7616 3.9.1
EXAMPLE = {
    "username": b"Mufasa",
    "password": b"Circle of Life",
    "count": 1,
    "cnonce": "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
}
RESPONSES = {
    "MD5": "8ca523f5e9506fed4657c9700eebdbec",
    "SHA-256": "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
}


@pytest.mark.parametrize(("algorithm", "proof"), RESPONSES.items())
def test_the_example_of_the_rfc(algorithm, proof):
    challenge = Challenge(
        realm="http-auth@example.org",
        nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
        algorithm=algorithm,
        qop=("auth", "auth-int"),
        opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS",
    )
    value = challenge.authorization(
        request=Request("GET", "http://www.example.org/dir/index.html"), **EXAMPLE
    )
    assert f'response="{proof}"' in value
    assert 'uri="/dir/index.html"' in value
    assert "nc=00000001" in value
    assert f"algorithm={algorithm}" in value
    assert 'opaque="FQhe' in value


def test_hashed_and_encoded_user_names():
    request = Request("GET", "http://api.example.org/doe.json")
    name = "J\u00e4s\u00f8n Doe"
    hashed = Challenge("api@example.org", "n", "SHA-256", ("auth",), userhash=True)
    value = hashed.authorization(name.encode(), b"Secret, or not?", request, 1, "c")
    assert f'username="{hashlib.sha256(f"{name}:api@example.org".encode()).hexdigest()}"' in value
    assert "userhash=true" in value
    plain = Challenge("api@example.org", "n", "SHA-256", ("auth",))
    assert "username*=UTF-8''J%C3%A4s%C3%B8n%20Doe" in plain.authorization(
        name.encode(), b"p", request, 1, "c"
    )
    assert r'username="a\"b"' in plain.authorization(b'a"b', b"p", request, 1, "c")


class Server:
    """Checks digests from the fields alone (RFC 7616 3.4)."""

    def __init__(self, qop="auth", algorithm="SHA-256", password="pass", nonces=None):
        self.qop, self.algorithm, self.password = qop, algorithm, password
        self.nonce, self.stale, self.seen = "nonce-1", False, []

    def __call__(self, request):
        value = request.headers.get("authorization", "")
        self.seen.append(value)
        if value.startswith("Digest ") and f'nonce="{self.nonce}"' in value and self.checks(value, request):
            return Response(200, text="in")
        stale = ", stale=true" if self.stale else ""
        qop = f', qop="{self.qop}"' if self.qop else ""
        field = f'Basic realm="x", Digest realm="a \\"b\\"", nonce="{self.nonce}", algorithm={self.algorithm}{qop}{stale}'
        return Response(401, headers={"WWW-Authenticate": field})

    def checks(self, value, request):
        given = {
            name: quoted or bare
            for name, quoted, bare in re.findall(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|([^,]+))', value)
        }
        plain = self.algorithm.removesuffix("-sess")

        def digest(text):
            return hashlib.new({"SHA-256": "sha256", "MD5": "md5"}[plain], text).hexdigest()

        first = digest(f'user:a "b":{self.password}'.encode())
        if plain != self.algorithm:
            first = digest(f"{first}:{given['nonce']}:{given['cnonce']}".encode())
        second = f"{request.method}:{given['uri']}"
        if given.get("qop") == "auth-int":
            second += ":" + digest(request.content)
        parts = [given["nonce"], given["nc"], given["cnonce"], given["qop"]] if self.qop else [given["nonce"]]
        return given["response"] == digest(":".join([first, *parts, digest(second.encode())]).encode())


@pytest.mark.parametrize("algorithm", ["MD5", "SHA-256", "MD5-sess", "SHA-256-sess"])
@pytest.mark.parametrize("qop", ["auth", "auth-int", "auth,auth-int", ""])
def test_digest_is_accepted(backend, algorithm, qop):
    if algorithm.endswith("-sess") and not qop:
        pytest.skip("-sess needs a cnonce")
    server = Server(qop, algorithm)
    client = Caller(backend, transport=MockTransport(server), auth=DigestAuth("user", "pass"))
    response = client.post("http://h/x?y=1", content=b"body")
    assert response.text == "in"
    assert [one.status_code for one in response.history] == [401]
    client.post("http://h/", content=b"other")
    assert len(server.seen) == 3  # the second call authenticates without a challenge
    if qop:
        assert "nc=00000002" in server.seen[2]


def test_a_wrong_password_is_tried_once(backend):
    server = Server(password="other")
    client = Caller(backend, transport=MockTransport(server), auth=DigestAuth("user", "pass"))
    assert client.get("http://h/").status_code == 401
    assert len(server.seen) == 2


def test_a_stale_nonce_is_renewed(backend):
    server = Server()
    client = Caller(backend, transport=MockTransport(server), auth=DigestAuth("user", "pass"))
    client.get("http://h/")
    server.nonce, server.stale = "nonce-2", True
    assert client.get("http://h/").text == "in"
    assert len(server.seen) == 4


def test_the_strongest_is_chosen():
    def chosen(*values):
        found = strongest(Response(401, headers=[("WWW-Authenticate", value) for value in values]))
        return found and found.algorithm

    md5, sha = 'Digest realm="r", nonce="n"', 'Digest realm="r", nonce="n", algorithm=SHA-256'
    assert chosen(md5, sha) == "SHA-256"
    assert chosen(f"{md5}, {sha}") == "SHA-256"
    assert chosen(f"Negotiate, {md5}") == "MD5"
    assert chosen("Basic realm=x") is None
    assert chosen('Digest realm="r"') is None
    assert chosen('Digest realm="r", nonce="n", algorithm=ROT13') is None
    assert chosen('Digest realm="r", nonce="n", qop="nonsense"') is None


def test_auth_int_of_a_stream_is_refused():
    server = Server(qop="auth-int")
    with Client(transport=MockTransport(server), auth=DigestAuth("user", "pass")) as client:
        client.post("http://h/", content=iter([b"x"]))  # MockTransport reads it, so that it can be hashed
    challenge = Challenge("r", "n", qop=("auth-int",))
    with pytest.raises(UsageError, match="bytes"):
        challenge.authorization(b"u", b"p", Request("POST", "http://h/", content=iter([b"x"])), 1, "c")


@given(st.binary(max_size=60))
def test_no_challenge_raises(value):
    response = Response(401)
    response.headers = towline.Headers._of_wire([(b"WWW-Authenticate", b"Digest " + value)])
    found = strongest(response)
    assert found is None or found.authorization(b"u", b"p", Request("GET", "http://h/"), 1, "c")
