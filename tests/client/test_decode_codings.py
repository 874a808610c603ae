"""Content codings decoded by the native decoder: complete, truncated, bounded, pulled."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest
from towline._native import Decoder
from towline.client.decode import DecodedReader
from towline.errors import DecodingError, DecompressionLimit

BODY = b"".join(b"%d " % number for number in range(5000))
RAW = zlib.compressobj(wbits=-15)
CODED = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY[:7]) + gzip.compress(BODY[7:]),
    "deflate": zlib.compress(BODY),
    "Deflate": RAW.compress(BODY) + RAW.flush(),
    "deflate, gzip": gzip.compress(zlib.compress(BODY)),
    "identity": BODY,
    "": BODY,
    "utf-8": BODY,
    "gzip, utf-8": gzip.compress(BODY),
}


class Source:
    """Returns chunks and counts the bytes requested."""

    def __init__(self, data: bytes, cut: int) -> None:
        self.data, self.cut, self.given = data, cut, 0

    def read(self, n: int) -> bytes:
        piece = self.data[self.given : self.given + min(n, self.cut)]
        self.given += len(piece)
        return piece

    async def aread(self, n: int) -> bytes:
        return self.read(n)


def decoded(
    codings: str, wire: bytes, cut: int = 1 << 20, n: int = 65_536, max_size: int | None = None
) -> bytes:
    source, decoder = Source(wire, cut), DecodedReader(codings, max_size)
    return b"".join(iter(lambda: decoder.read(source.read, n), b""))


@pytest.mark.parametrize("codings", CODED)
@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
@pytest.mark.parametrize("n", [1000, 1 << 20])
def test_codings_are_decoded(codings: str, cut: int, n: int) -> None:
    assert decoded(codings, CODED[codings], cut, n) == BODY


def test_names_that_change_nothing_are_not_active() -> None:
    for codings in (b"", b"identity", b"utf-8", b"identity, aws-chunked"):
        assert not Decoder(codings).active
    assert Decoder(b"GZIP").active


@pytest.mark.parametrize("codings", ["gzip", "deflate", "deflate, gzip"])
def test_a_truncated_body_is_an_error(codings: str) -> None:
    with pytest.raises(DecodingError, match="ends inside"):
        decoded(codings, CODED[codings][:-1])


def test_data_before_a_corrupt_part_is_returned() -> None:
    source, decoder = Source(CODED["gzip"][:-8] + b"\0" * 8, 1 << 20), DecodedReader("gzip")
    received: list[bytes] = []
    with pytest.raises(DecodingError, match="not valid gzip"):
        received.extend(iter(lambda: decoder.read(source.read, 1000), b""))
    assert b"".join(received) == BODY


def test_more_codings_than_five() -> None:
    with pytest.raises(DecompressionLimit, match="more than 5"):
        Decoder(b"gzip, gzip, gzip, gzip, gzip, gzip")


@pytest.mark.parametrize("codings", ["gzip", "identity"])
def test_the_bound_is_exact(codings: str) -> None:
    assert decoded(codings, CODED[codings], max_size=len(BODY)) == BODY
    with pytest.raises(DecompressionLimit, match="max_decompressed_size"):
        decoded(codings, CODED[codings], max_size=len(BODY) - 1)


def test_nothing_is_read_or_inflated_ahead() -> None:
    bomb = gzip.compress(bytes(50 << 20))
    source, decoder = Source(bomb, 100), DecodedReader("gzip")
    for _ in range(100):
        assert len(decoder.read(source.read, 100)) == 100
    assert source.given <= 200


def test_feeding_twice_is_an_error_of_the_caller() -> None:
    decoder = Decoder(b"gzip")
    decoder.feed(CODED["gzip"])
    with pytest.raises(RuntimeError):
        decoder.feed(b"more")


def test_random_cuts() -> None:
    rng = random.Random(5)
    for _ in range(50):
        codings = rng.choice(list(CODED))
        assert decoded(codings, CODED[codings], rng.randint(1, 5000), rng.randint(1, 9000)) == BODY


async def aread_all(codings: str) -> bytes:
    source, decoder = Source(CODED[codings], 100), DecodedReader(codings)
    pieces = []
    while piece := await decoder.aread(source.aread, 1000):
        pieces.append(piece)
    return b"".join(pieces)


def test_asynchronously() -> None:
    import asyncio

    for codings in CODED:
        assert asyncio.run(aread_all(codings)) == BODY
