"""`environ` of an application (PEP 3333)."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any
from wsgiref.validate import validator

import pytest
import trustme
from cryptography import x509

from tests.support.running_server import RunningServer
from tests.support.sockets import read_all
from tests.support.wsgi_server import MODES, serving

KEYS_AS_TEXT = (str, int, bool)


def show(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    shown = {key: value for key, value in environ.items() if isinstance(value, KEYS_AS_TEXT)}
    shown["wsgi.version"] = environ["wsgi.version"]
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(shown).encode()]


def environ_of(served: RunningServer, wire: bytes) -> dict[str, Any]:
    response = served.raw(wire)
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), response
    loaded: dict[str, Any] = json.loads(body)
    return loaded


def get(target: bytes = b"/", *fields: bytes) -> bytes:
    lines = [b"GET " + target + b" HTTP/1.1", b"Host: example.org:81", b"Connection: close", *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def served(request: pytest.FixtureRequest) -> Any:
    with serving(show, threads=request.param) as served:
        served.threads = request.param  # type: ignore[attr-defined]
        yield served


def test_every_key_of_pep_3333(served: Any) -> None:
    environ = environ_of(served, get(b"/a/b?x=1&y=%20"))
    expected = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/a/b",
        "QUERY_STRING": "x=1&y=%20",
        "RAW_URI": "/a/b?x=1&y=%20",
        "REQUEST_URI": "/a/b?x=1&y=%20",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": str(served.port),
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "example.org:81",
        "wsgi.url_scheme": "http",
        "wsgi.version": [1, 0],
        "wsgi.multithread": served.threads > 1,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.input_terminated": True,
    }
    assert {key: environ.get(key) for key in expected} == expected
    assert int(environ["REMOTE_PORT"]) > 0
    assert "CONTENT_LENGTH" not in environ
    assert "CONTENT_TYPE" not in environ


def test_requests_do_not_see_each_other(served: Any) -> None:
    first = environ_of(served, get(b"/one?q=1", b"X-Only: 1", b"Cookie: a=b"))
    second = environ_of(served, get(b"/two"))
    assert first["HTTP_X_ONLY"] == "1"
    assert second["QUERY_STRING"] == ""
    assert second["PATH_INFO"] == "/two"
    assert not {"HTTP_X_ONLY", "HTTP_COOKIE"} & second.keys()


def test_a_cached_environ_is_complete_for_every_request(served: Any) -> None:
    """The template follows the requests: any order of them must give what each would alone."""
    lines = [b"GET /a?q HTTP/1.1", b"GET /a HTTP/1.1", b"PURGE /a HTTP/1.1", b"GET /%61?q HTTP/1.0"]
    keys = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "RAW_URI", "REQUEST_URI", "SERVER_PROTOCOL")
    for line in lines + lines[::-1] + [lines[0], lines[2], lines[0], lines[3], lines[1]]:
        method, target, version = line.decode().split()
        query = target.partition("?")[2]
        response = served.raw(line + b"\r\nHost: a\r\nConnection: close\r\n\r\n")
        environ = json.loads(response.partition(b"\r\n\r\n")[2])
        assert tuple(environ[key] for key in keys) == (method, "/a", query, target, target, version)
        assert environ["REMOTE_ADDR"] == environ["SERVER_NAME"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/caf%C3%A9", "/cafÃ©"),
        (b"/a%2Fb%20c", "/a/b c"),
        (b"/bad%zz%2", "/bad%zz%2"),
        (b"http://example.org/there?q", "/there"),
        (b"http://example.org", "/"),
        (b"/x%3Fy", "/x?y"),
    ],
)
def test_path_info_is_decoded_bytes_as_latin_1(served: Any, target: bytes, path: str) -> None:
    fields = get(target)
    if target.startswith(b"http:"):
        fields = fields.replace(b"example.org:81", b"example.org")
    environ = environ_of(served, fields)
    assert environ["PATH_INFO"] == path
    assert environ["RAW_URI"] == target.decode()


def test_repeated_fields_are_joined(served: Any) -> None:
    environ = environ_of(
        served, get(b"/", b"Accept: a", b"ACCEPT: b", b"accept: a", b"Cookie: x=1", b"cookie: y=2")
    )
    assert environ["HTTP_ACCEPT"] == "a,b,a"
    assert environ["HTTP_COOKIE"] == "x=1; y=2"


def test_names_with_underscores_cannot_stand_in_for_others(served: Any) -> None:
    environ = environ_of(served, get(b"/", b"X_User: root", b"X-Real: me", b"X_Real: you"))
    assert "HTTP_X_USER" not in environ
    assert environ["HTTP_X_REAL"] == "me"


def test_values_are_latin_1(served: Any) -> None:
    assert environ_of(served, get(b"/", b"X-Name: \xe9\xff"))["HTTP_X_NAME"] == "éÿ"


def test_more_names_than_are_cached(served: Any) -> None:
    for start in range(0, 900, 90):
        fields = [b"X-N%d: %d" % (n, n) for n in range(start, start + 90)]
        environ = environ_of(served, get(b"/", *fields))
        assert all(environ[f"HTTP_X_N{n}"] == str(n) for n in range(start, start + 90))


def test_content_type_and_length(served: Any) -> None:
    wire = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Type: a/b\r\nConnection: close\r\n\r\nabc"
    environ = environ_of(served, wire)
    assert environ["CONTENT_LENGTH"] == "3"
    assert environ["CONTENT_TYPE"] == "a/b"
    assert environ["REQUEST_METHOD"] == "POST"
    assert not {"HTTP_CONTENT_LENGTH", "HTTP_CONTENT_TYPE"} & environ.keys()


def test_http_1_0(served: Any) -> None:
    response = served.raw(b"GET / HTTP/1.0\r\n\r\n")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["SERVER_PROTOCOL"] == "HTTP/1.0"


@pytest.mark.parametrize(
    ("path", "script", "info"),
    [("/app/x", "/app", "/x"), ("/app", "/app", ""), ("/x", "/app", "/x"), ("/apple", "/app", "/apple")],
)
def test_root_path(path: str, script: str, info: str) -> None:
    with serving(show, root_path="/app") as served:
        environ = environ_of(served, get(path.encode()))
        assert (environ["SCRIPT_NAME"], environ["PATH_INFO"]) == (script, info)


@pytest.mark.parametrize("threads", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE"])
def test_the_validator_finds_no_violation(method: str, threads: int) -> None:
    @validator
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read(10)
        environ["wsgi.errors"].write("noted\n")
        environ["wsgi.errors"].flush()
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        assert callable(write)
        return iter([b"body:", body])

    with serving(app, threads=threads) as served:
        response = served.request(method, "/a?b=c", body=b"hello" if method == "POST" else None)
        assert response.status == 200, served.log
        if method != "HEAD":
            assert response.content == (b"body:hello" if method == "POST" else b"body:")  # type: ignore[attr-defined]
        assert [text for _, text, _ in served.log] == ["noted"]


def test_each_request_has_a_context_of_its_own() -> None:
    import contextvars

    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        before = seen.get()
        seen.set(environ["PATH_INFO"])
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield before.encode()
        yield seen.get().encode()

    with serving(app) as served:
        for path in ("/one", "/two"):
            assert served.request(path=path).content == b"nothing" + path.encode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("threads", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("shows_certificate", [True, False])
def test_tls(threads: int, shows_certificate: bool, tmp_path: Path) -> None:
    authority = trustme.CA()
    server, client = authority.issue_cert("localhost"), authority.issue_cert("client@example.org")
    chain, key, roots = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    server.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(roots))
    context = ssl.create_default_context(cafile=str(roots))
    if shows_certificate:
        client.configure_cert(context)
    options = {
        "ssl_certfile": str(chain),
        "ssl_keyfile": str(key),
        "ssl_ca_certs": str(roots),
        "ssl_cert_reqs": "optional",
    }
    with (
        serving(show, threads=threads, **options) as served,
        context.wrap_socket(served.connect(), server_hostname="localhost") as conn,
    ):
        conn.sendall(get())
        environ = json.loads(read_all(conn).partition(b"\r\n\r\n")[2])
    assert environ["wsgi.url_scheme"] == "https"
    assert environ["HTTPS"] == "on"
    assert environ["SSL_PROTOCOL"] == "TLSv1.3"
    assert environ["SSL_TLS_SNI"] == "localhost"
    if shows_certificate:
        assert environ["SSL_CLIENT_VERIFY"] == "SUCCESS"
        shown = ssl.PEM_cert_to_DER_cert(environ["SSL_CLIENT_CERT"])
        assert shown == ssl.PEM_cert_to_DER_cert(client.cert_chain_pems[0].bytes().decode())
        assert environ["SSL_CLIENT_S_DN"] == x509.load_der_x509_certificate(shown).subject.rfc4514_string()
    else:
        assert environ["SSL_CLIENT_VERIFY"] == "NONE"
        assert not [key for key in environ if key.startswith("SSL_CLIENT_CERT")]


def test_a_client_cannot_name_its_certificate(served: Any) -> None:
    environ = environ_of(served, get(b"/", b"SSL-Client-Verify: SUCCESS", b"SSL_CLIENT_VERIFY: SUCCESS"))
    assert "SSL_CLIENT_VERIFY" not in environ
    assert "HTTPS" not in environ


def test_connect_is_not_for_applications(served: Any) -> None:
    """A tunnel has no place in PEP 3333: the application is not called, and the connection ends."""
    request = b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n"
    response = served.raw(request + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
    assert response.count(b"HTTP/1.1 ") == 1
    assert served.server.requests == 0
