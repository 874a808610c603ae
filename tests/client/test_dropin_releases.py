"""Releases of the packages: `towline.requests` on an older urllib3, without one and on urllib3-future.

The older urllib3 is the installed one without what it has got since: 1.26 is the oldest that requests allows.
"""

from __future__ import annotations

import gzip
import subprocess
import sys

import pytest

from tests.support.http1_peer import Peer, scripted

pytest.importorskip("requests")

PROGRAM = """
import sys
import urllib3, urllib3.exceptions


class Older(urllib3.HTTPResponse):
    def __init__(self, *args, **named):
        assert "version_string" not in named
        super().__init__(*args, **named)
        del self.version_string


urllib3.HTTPResponse, urllib3.__version__ = Older, sys.argv[1]
del urllib3.response.BaseHTTPResponse.read1, urllib3.response.HTTPResponse.read1
del urllib3.exceptions.NameResolutionError, urllib3.HTTPHeaderDict

import requests
import towline.requests

session = requests.Session()
session.trust_env = False
session.mount("http://", towline.requests.Adapter())
for name in ("plain", "gzip"):
    with session.get(f"{sys.argv[2]}/{name}", stream=True) as response:
        print(response.raw.version, b"".join(response.iter_content(3)))
try:
    session.get("http://nowhere.invalid/")
except requests.ConnectionError as error:
    print(type(error.args[0].reason).__name__)
"""
CODED = gzip.compress(b"packed")
BODIES = {
    b"/plain": b"\r\n2\r\nab\r\n2\r\ncd\r\n",
    b"/gzip": b"content-encoding: gzip\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in CODED),
}


def handler(peer: Peer) -> None:
    while head := peer.head():
        body = BODIES[head.split(b" ")[1]]
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n" + body + b"0\r\n\r\n")


def run_with(version: str) -> subprocess.CompletedProcess[str]:
    with scripted(handler) as server:
        command = [sys.executable, "-c", PROGRAM, version, server.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_an_older_urllib3() -> None:
    run = run_with("1.26.20")
    assert run.stdout.splitlines() == ["11 b'abcd'", "11 b'packed'", "NewConnectionError"], run.stderr
    assert run.stderr == ""


def test_an_urllib3_that_is_too_old_is_refused_in_one_line() -> None:
    run = run_with("1.25.11")
    assert (
        "ImportError: towline.requests needs urllib3 1.26 or later, not 1.25.11"
        in run.stderr.splitlines()[-1]
    )


def test_urllib3_future_is_named() -> None:
    run = run_with("2.25.904")
    assert "urllib3-future 2.25.904, of niquests, has replaced urllib3" in run.stderr
    assert run.stdout.splitlines()[0] == "11 b'abcd'"
