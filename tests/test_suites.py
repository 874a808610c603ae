"""Runners of other projects' test suites: a report that is misread would let everything pass."""

import contextlib
import socket
import threading
from urllib.parse import urlsplit

import pytest

from tests.suites import h2spec


@contextlib.contextmanager
def answering(answer):
    """A server that says the same to everybody, then closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            conn, _ = listener.accept()
            with conn:
                conn.recv(4096)
                conn.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield urlsplit(f"http://127.0.0.1:{listener.getsockname()[1]}/")


def test_the_report_of_h2spec():
    outcome = h2spec.read(
        '<?xml version="1.0" encoding="UTF-8"?><testsuites><testsuite package="http2/3.5">'
        '<testcase package="http2/3.5" classname="one"></testcase>'
        '<testcase package="http2/3.5" classname="two"><error>it said <x> & more</error></testcase>'
        '<testcase package="http2/3.5" classname="three"><skipped></skipped></testcase>'
        '<testcase package="http2/3.5" classname="four"><failure>Expect: GOAWAY</failure></testcase>'
        "</testsuite></testsuites>"
    )
    assert (outcome.passed, outcome.skipped) == (1, 1)
    assert outcome.failed == {"http2/3.5/2": "two", "http2/3.5/4": "four"}


@pytest.mark.parametrize(
    ("answer", "false_case"),
    [
        (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", {"http2/3.5/2"}),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", set()),
        (b"\0\0\x08\x07\0\0\0\0\0" + bytes(7) + b"\x01", set()),
        (b"", set()),
    ],
)
def test_a_bad_preface_may_be_refused_by_http1_only(answer, false_case):
    with answering(answer) as url:
        assert h2spec.expected(url) == false_case


def test_no_case_may_fail_where_alpn_chose_http2():
    assert h2spec.expected(urlsplit("https://127.0.0.1:1/")) == set()
