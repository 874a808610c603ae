"""The readiness request in HTTP/2 frames (RFC 9113), as simple as possible: one stream, nothing indexed, no Huffman
code.

Bytes in, bytes out: `readiness` has the socket. The bench's checker verifies the server's responses later.
"""

from __future__ import annotations

from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS, GOAWAY = 1, 3, 4, 7
END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20
STREAM = 1
FRAME_HEADER_BYTES = 9
AUTHORITY, METHOD_GET, PATH, SCHEME_HTTP, SCHEME_HTTPS = 1, 2, 4, 6, 7
STATUSES = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
"""Indexes of the static table (RFC 7541 A); a literal uses the name of the first."""
DIGITS = {f"{n:05b}": str(n) for n in range(3)} | {f"{n + 22:06b}": str(n) for n in range(3, 10)}
"""Huffman's codes (RFC 7541 B)."""


def request(authority: str, path: str, *, secure: bool) -> bytes:
    """Everything that a client sends: its preface and a GET."""
    scheme = SCHEME_HTTPS if secure else SCHEME_HTTP
    block = bytes([0x80 | METHOD_GET, 0x80 | scheme]) + _literal(PATH, path) + _literal(AUTHORITY, authority)
    return PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(HEADERS, END_STREAM | END_HEADERS, STREAM, block)


def status(received: bytes) -> int | None:
    """The status in the received frames; None if there is none yet. Raises ValueError if there will be none."""
    for number, (kind, flags, stream, payload) in enumerate(_frames(received)):
        if number == 0 and (kind, stream) != (SETTINGS, 0):
            raise ValueError(f"its response is not HTTP/2: {received[:60]!r}")
        if kind == GOAWAY or (kind == RST_STREAM and stream == STREAM):
            code = int.from_bytes(payload[-4:] if kind == RST_STREAM else payload[4:8], "big")
            raise ValueError(f"it aborted the request with HTTP/2 error {code}")
        if kind == HEADERS and stream == STREAM:
            begin = (flags & PADDED > 0) + 5 * (flags & PRIORITY > 0)
            found = _status_of(payload[begin:])
            if found >= 200:
                return found
    if (
        len(received) >= FRAME_HEADER_BYTES and received[3] != SETTINGS
    ):  # do not wait for a frame of any length
        raise ValueError(f"its response is not HTTP/2: {received[:60]!r}")
    return None


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _frames(received: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, stream and payload of the complete frames."""
    at = 0
    while at + FRAME_HEADER_BYTES <= len(received):
        end = at + FRAME_HEADER_BYTES + int.from_bytes(received[at : at + 3], "big")
        if end > len(received):
            return
        stream = int.from_bytes(received[at + 5 : at + 9], "big") & 0x7FFFFFFF
        yield received[at + 3], received[at + 4], stream, received[at + FRAME_HEADER_BYTES : end]
        at = end


def _literal(name: int, value: str) -> bytes:
    """Not indexed (RFC 7541 6.2.2); the length an integer with a prefix of 7 bits (5.1)."""
    data, length = value.encode("ascii"), len(value)
    if length < 127:
        return bytes([name, length]) + data
    coded, rest = [127], length - 127
    while rest >= 128:
        coded.append(0x80 | rest & 0x7F)
        rest >>= 7
    return bytes([name, *coded, rest]) + data


def _status_of(block: bytes) -> int:
    """Pseudo-headers come first (RFC 9113 8.3), and a response has this one only."""
    at = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:  # dynamic table size update (RFC 7541 6.3)
        at += 1
        if block[at - 1] & 0x1F == 0x1F:
            while block[at : at + 1] and block[at] & 0x80:
                at += 1
            at += 1
    first = block[at] if at < len(block) else 0
    if first & 0x80 and first & 0x7F in STATUSES:
        return STATUSES[first & 0x7F]
    if first in (0x08, 0x18, 0x48) and len(block) > at + 1:
        length = block[at + 1] & 0x7F
        value = block[at + 2 : at + 2 + length]
        text = _digits(value) if block[at + 1] & 0x80 else value.decode("latin-1")
        if len(text) == 3 and text.isdigit():
            return int(text)
    raise ValueError(f"its response over HTTP/2 does not begin with a status: {block[:20]!r}")


def _digits(coded: bytes) -> str:
    bits, text = "".join(f"{byte:08b}" for byte in coded), ""
    while len(text) < 3:
        code = next((code for code in DIGITS if bits.startswith(code)), None)
        if code is None:
            break
        text, bits = text + DIGITS[code], bits[len(code) :]
    return text
