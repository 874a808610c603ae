"""QPACK (RFC 9204) compared with ls-qpack, both ways: acknowledgements and instructions come early, late and in pieces."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pylsqpack
import pytest

ROOT = Path(__file__).resolve().parents[2]

Fields = list[tuple[bytes, bytes]]

TABLE_BYTES = 4096
BLOCKED_STREAMS = 16


class Codec:
    """Our codec, in a process of its own (crates/towline-testkit/examples/qpack.rs)."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._stdin, self._stdout = stdin, stdout

    def _call(self, command: bytes, stream: int = 0, data: bytes = b"") -> tuple[bytes, bytes]:
        self._stdin.write(command + stream.to_bytes(8, "big") + len(data).to_bytes(4, "big") + data)
        self._stdin.flush()
        head = self._stdout.read(5)
        return head[:1], self._stdout.read(int.from_bytes(head[1:], "big"))

    def _result(self, command: bytes, stream: int = 0, data: bytes = b"") -> bytes:
        letter, result = self._call(command, stream, data)
        assert letter == b"+", result
        return result

    def set_limits(self, table: int, blocked_streams: int) -> None:
        self._result(b"T", blocked_streams, table.to_bytes(8, "big"))

    def encode(self, stream: int, fields: Fields) -> tuple[bytes, bytes]:
        """The bytes for the encoder stream, and the section."""
        texts = [text for field in fields for text in field]
        section = self._result(b"E", stream, b"".join(len(text).to_bytes(4, "big") + text for text in texts))
        return self._result(b"I"), section

    def acknowledge(self, data: bytes) -> None:
        self._result(b"A", data=data)

    def instruct(self, data: bytes) -> None:
        self._result(b"R", data=data)

    def acknowledgements(self) -> bytes:
        return self._result(b"K")

    def decode(self, stream: int, section: bytes) -> Fields | None:
        letter, rest = self._call(b"D", stream, section)
        if letter == b"?":
            return None
        assert letter == b"+", rest
        texts = []
        while rest:
            end = 4 + int.from_bytes(rest[:4], "big")
            texts.append(rest[4:end])
            rest = rest[end:]
        return list(zip(texts[::2], texts[1::2], strict=True))


@pytest.fixture(scope="module")
def program() -> Path:
    # As `make cargo-test`, which has built it already.
    profile = ["--profile", "quick", "--config", "scripts/rust_tests.toml"]
    command = ["cargo", "build", "--quiet", "--locked", "--workspace", *profile, "--example", "qpack"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    found = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    target = found.stdout.split('"target_directory":"')[1].split('"')[0]
    return Path(target) / "quick" / "examples" / "qpack"


@pytest.fixture
def codec(program: Path) -> Iterator[Codec]:
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Codec(process.stdin, process.stdout)
        process.stdin.close()


def heads(chance: random.Random, count: int) -> Iterator[Fields]:
    """Requests and responses as browsers and servers send them: most fields repeat, some are new each time."""
    for number in range(count):
        if chance.random() < 0.5:
            yield [
                (b":method", chance.choice([b"GET", b"POST", b"PROPFIND"])),
                (b":scheme", b"https"),
                (b":authority", b"www.example.org"),
                (b":path", b"/page/%d?q=%d" % (number // 5, chance.randrange(4))),
                (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
                (b"accept", b"text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"),
                (b"accept-encoding", b"gzip, deflate, br"),
                (b"cookie", b"session=%030x" % (number // 40)),
                (b"x-request-id", b"%032x" % chance.getrandbits(128)),
                (b"authorization", b"Bearer token-%d" % (number // 30)),
            ]
        else:
            yield [
                (b":status", chance.choice([b"200", b"304", b"404", b"418"])),
                (b"server", b"towline"),
                (b"date", b"Tue, 24 Nov 2026 09:%02d:%02d GMT" % divmod(number // 8 % 3600, 60)),
                (
                    b"content-type",
                    chance.choice([b"text/html; charset=utf-8", b"application/json", b"image/avif"]),
                ),
                (b"content-length", b"%d" % chance.randrange(100_000)),
                (b"etag", b'"%x"' % chance.randrange(50)),
                (b"x-bytes", bytes(chance.randrange(0x20, 0x7F) for _ in range(chance.randrange(80)))),
                (b"x-empty", b""),
            ]


@pytest.mark.parametrize("blocked_streams", [0, 1])
@pytest.mark.parametrize("table", [0, 128, 1024, 4096, 65536])
@pytest.mark.parametrize("delay", [0, 1, 7])
def test_ls_qpack_decodes_our_sections(codec: Codec, table: int, delay: int, blocked_streams: int) -> None:
    chance = random.Random(table + delay)
    decoder = pylsqpack.Decoder(table, blocked_streams)
    codec.set_limits(table, blocked_streams)
    unacknowledged: list[bytes] = []
    plain = coded = 0
    for number, fields in enumerate(heads(chance, 1500)):
        instructions, section = codec.encode(4 * number, fields)
        # A section needs only entries of earlier instructions.
        early = chance.random() < 0.5
        if early:
            acknowledgement, headers = decoder.feed_header(4 * number, section)
        decoder.feed_encoder(instructions)
        if not early:
            acknowledgement, headers = decoder.feed_header(4 * number, section)
        assert headers == fields
        unacknowledged.append(bytes(acknowledgement))
        if chance.randrange(delay + 1) == 0:
            data = b"".join(unacknowledged)
            cut = chance.randrange(len(data) + 1)
            codec.acknowledge(data[:cut])
            codec.acknowledge(data[cut:])
            unacknowledged.clear()
        plain += sum(len(name) + len(value) for name, value in fields)
        coded += len(section) + len(instructions)
    # ls-qpack for Python acknowledges sections only, so that the table is of use only with blocked streams.
    share = coded / plain
    print(f"table {table}, delay {delay}, {blocked_streams} blocked: {share:.2f} of {plain} bytes")
    assert share < (0.55 if table >= TABLE_BYTES and blocked_streams else 0.65)


@pytest.mark.parametrize("table", [0, TABLE_BYTES])
@pytest.mark.parametrize("delay", [0, 1, 7])
def test_our_decoder_decodes_the_sections_of_ls_qpack(codec: Codec, table: int, delay: int) -> None:
    chance = random.Random(table + delay)
    encoder = pylsqpack.Encoder()
    late = (
        [encoder.apply_settings(max_table_capacity=table, blocked_streams=BLOCKED_STREAMS)] if table else []
    )
    blocked: dict[int, tuple[bytes, Fields]] = {}
    seen_blocked = 0
    for number, fields in enumerate(heads(chance, 1500)):
        stream = 4 * number
        instructions, section = encoder.encode(stream, fields)
        late.append(instructions)
        decoded = codec.decode(stream, section)
        if decoded is None:
            seen_blocked += 1
            blocked[stream] = (section, fields)
        else:
            assert decoded == fields
        if chance.randrange(delay + 1) == 0:
            data = b"".join(late)
            late.clear()
            while data:
                cut = 1 + chance.randrange(len(data))
                codec.instruct(data[:cut])
                data = data[cut:]
            for stream, (section, fields) in blocked.items():
                assert codec.decode(stream, section) == fields
            blocked.clear()
            acknowledgements = codec.acknowledgements()
            if acknowledgements:
                encoder.feed_decoder(acknowledgements)
    assert seen_blocked > 0 or not table
