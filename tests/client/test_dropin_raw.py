"""`response.raw` is created without urllib3's constructor; its attributes must be the same as with it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("urllib3")

from towline._dropins import _urllib3

PLAIN = [(b"Content-Type", b"text/plain"), (b"Content-Length", b"13")]


class Reply:
    version, reason = "HTTP/1.1", b"OK"

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, headers

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (200, "GET", PLAIN),
        (200, "HEAD", PLAIN),
        (204, "GET", []),
        (304, "GET", PLAIN),
        (200, "GET", []),
        (200, "GET", [(b"Content-Length", b"13"), (b"content-length", b"13")]),
        (200, "GET", [(b"Transfer-Encoding", b"gzip, Chunked")]),
        (200, "GET", [(b"transfer-encoding", b"gzip"), (b"Content-Length", b"13")]),
        (200, "GET", [(b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=\xe9"), (b"X", b"")]),
    ],
)
def test_both_constructions_agree(
    status: int, method: str, headers: list[tuple[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _urllib3._PATTERN is not None  # this urllib3 is known
    ours = _urllib3.Raw(Reply(status, headers), method, "/", None)
    monkeypatch.setattr(_urllib3, "_PATTERN", None)
    expected = _urllib3.Raw(Reply(status, headers), method, "/", None)
    assert plainly(ours) == plainly(expected)


def plainly(raw: Any) -> dict[str, Any]:
    """Everything it holds; of objects made for it alone, the class and the headers' own content."""
    state = dict(vars(raw))
    state["headers"] = (type(raw.headers), raw.headers._container)
    for name in ("_fp", "_original_response", "_connection", "_decoded_buffer"):
        state[name] = type(state[name])
    return state
