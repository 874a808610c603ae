"""Flask and Django applications, as they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.wsgi_server import MODES, serving

FORM = (
    b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    b'--B\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n'
    + b"y" * 300_000
    + b"\r\n--B--\r\n"
)
MULTIPART = {"Content-Type": "multipart/form-data; boundary=B"}


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def threads(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def body_of(response: Any) -> bytes:
    content: bytes = response.content
    return content


def test_flask(threads: int) -> None:
    flask = pytest.importorskip("flask")
    app = flask.Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "hello", endpoint="hello")
    app.add_url_rule("/file", view_func=lambda: flask.send_file(__file__), endpoint="file")
    app.add_url_rule("/stream", view_func=lambda: flask.Response(iter(["a", "b"])), endpoint="stream")
    app.add_url_rule("/fail", view_func=lambda: str(1 // 0), endpoint="fail")

    def upload() -> Any:
        return f"{flask.request.form['a']} {len(flask.request.files['f'].read())}"

    app.add_url_rule("/upload", view_func=upload, methods=["POST"], endpoint="upload")
    with serving(app, threads=threads) as served:
        assert body_of(served.request()) == b"hello"
        assert body_of(served.request(path="/stream")) == b"ab"
        with open(__file__, "rb") as this:
            assert body_of(served.request(path="/file")) == this.read()
        assert served.request(path="/fail").status == 500
        assert body_of(served.request("POST", "/upload", body=FORM, headers=MULTIPART)) == b"1 300000"
        pieces = iter([FORM[:1000], FORM[1000:]])
        chunked = served.request("POST", "/upload", body=pieces, headers=MULTIPART, encode_chunked=True)
        assert body_of(chunked) == b"1 300000"


def test_django(threads: int) -> None:
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.http import FileResponse, HttpResponse, StreamingHttpResponse
    from django.urls import path

    class Urls:
        urlpatterns = (
            path("", lambda request: HttpResponse(f"{request.method} {len(request.body)}")),
            path("stream", lambda request: StreamingHttpResponse(iter([b"a", b"b"]))),
            path("file", lambda request: FileResponse(open(__file__, "rb"))),  # noqa: SIM115
        )

    if not settings.configured:
        settings.configure(ROOT_URLCONF=Urls, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
        django.setup()
    settings.ROOT_URLCONF = Urls
    from django.core.handlers.wsgi import WSGIHandler

    with serving(WSGIHandler(), threads=threads) as served:
        assert body_of(served.request()) == b"GET 0"
        assert body_of(served.request("POST", body=b"z" * 100_000)) == b"POST 100000"
        assert body_of(served.request(path="/stream")) == b"ab"
        with open(__file__, "rb") as this:
            assert body_of(served.request(path="/file")) == this.read()
