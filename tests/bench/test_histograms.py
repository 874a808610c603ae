"""The decoder of histograms compared with HdrHistogram's own, and invalid histograms."""

import base64
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from towline.bench.hdr import NotAHistogram, decode, merge

from . import synthetic

SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0)


def values(seed=1, n=3000):
    draw = random.Random(seed)
    return [draw.randrange(1, 10 ** draw.randrange(1, 12)) for _ in range(n)]


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
def test_as_the_reference_implementation(digits):
    hdrh = pytest.importorskip("hdrh.histogram")
    reference = hdrh.HdrHistogram(1, 1 << 42, digits)
    for value in values():
        reference.record_value(value)
    decoded = decode(reference.encode().decode())
    assert decoded.total == 3000
    for share in SHARES[1:]:
        assert decoded.at(share) == reference.get_value_at_percentile(share * 100)
    assert decoded == decode(synthetic.encode(values(), digits))


def test_as_the_reference_implementation_with_a_coarse_unit():
    hdrh = pytest.importorskip("hdrh.histogram")
    reference = hdrh.HdrHistogram(1000, 1 << 42, 3)
    for value in values():
        reference.record_value(value)
    decoded = decode(reference.encode().decode())
    for share in SHARES[1:]:
        assert decoded.at(share) == reference.get_value_at_percentile(share * 100)


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=60))
def test_within_its_precision(sample):
    found = decode(synthetic.encode(sample))
    ordered = sorted(sample)
    for share in (0.01, 0.5, 0.99, 1.0):
        truth = ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
        assert truth <= found.at(share) <= truth * 1.001 + 1
    curve = list(found.curve())
    assert curve[-1][0] == 1.0
    assert curve == sorted(curve)


def test_merging_is_adding_the_samples():
    parts = [values(seed, 500) for seed in range(4)]
    merged = merge(decode(synthetic.encode(part)) for part in parts)
    assert merged == decode(synthetic.encode([value for part in parts for value in part]))
    assert merge([]) is None
    with pytest.raises(NotAHistogram, match="precision"):
        merge([decode(synthetic.encode([1], 2)), decode(synthetic.encode([1], 3))])


def packed(plain, cookie=0x1C849314):
    body = zlib.compress(plain)
    return base64.b64encode(struct.pack(">ii", cookie, len(body)) + body).decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an HdrHistogram"),
        ("no base64 !", "not an HdrHistogram"),
        (base64.b64encode(b"\0" * 40).decode(), "cookie 0x0"),
        (packed(b"\0" * 40), "cookie 0x0"),
        (packed(b"short"), "not an HdrHistogram"),
        (packed(struct.pack(">iiiiqqd", 0x1C849313, 9, 0, 3, 1, 9, 1.0)), "ends early"),
        (packed(struct.pack(">iiiiqqd", 0x1C849313, 1, 0, 3, 1, 9, 1.0) + b"\x80"), "within a count"),
        (packed(struct.pack(">iiiiqqd", 0x1C849313, 0, 0, 99, 1, 9, 1.0)), "99 digits"),
    ],
)
def test_invalid_histograms_are_refused(text, message):
    with pytest.raises(NotAHistogram, match=message):
        decode(text)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_histogram_or_an_error(data):
    for text in (base64.b64encode(data).decode(), packed(data), packed(synthetic.HEADER + data)):
        try:
            decode(text)
        except NotAHistogram:
            pass


def test_a_bomb_stays_small():
    with pytest.raises(NotAHistogram):
        decode(packed(struct.pack(">iiiiqqd", 0x1C849313, 1 << 30, 0, 3, 1, 9, 1.0) + b"\2" * (80 << 20)))
