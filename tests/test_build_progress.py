"""The estimate of scripts/build.py, on the crates of a clean build."""

import pytest

from tests.test_house import load

# Seconds at which the larger crates begin on two cores, by the processor time that each took; small ones are in between.
LARGE = [
    (2, "syn"), (3, "syn"), (7, "ring"), (15, "zlib-rs"), (18, "pyo3-macros-backend"), (20, "zstd-sys"), (26, "rustls"),
    (32, "brotli-decompressor"), (37, "quinn-proto"), (39, "pyo3"), (44, "ratatui-core"), (45, "brotli"), (47, "towline-proto"),
    (51, "towline-io"), (56, "zerocopy"), (61, "bitvec"), (64, "ratatui-widgets"), (69, "nom"), (80, "jiter"), (82, "lmdb-master-sys"),
    (84, "towline-load"), (85, "towline-state"), (88, "towline-py-client"), (98, "towline-py-server"), (121, "towline-py"),
]  # fmt: skip
# One in ten of the small ones.
SMALL = [0, 2, 5, 6, 7, 9, 13, 15, 17, 21, 25, 31, 35, 37, 39, 48, 54, 67, 74]
STARTS = sorted([*LARGE, *((at, f"small-{n}") for at in SMALL for n in range(10))])
TOOK_S = 129


@pytest.mark.parametrize("slowness", [0.5, 1, 3])
def test_the_estimate_is_right_within_a_quarter(slowness):
    build = load("build")
    progress = build.Progress("fast-build", [crate for _, crate in STARTS], jobs=2, began=1000.0)
    for second in range(TOOK_S // 10, TOOK_S):
        progress.started = [(crate, 1000 + at * slowness) for at, crate in STARTS if at <= second]
        left = progress.left_s(1000 + second * slowness)
        assert left is not None
        assert second * slowness + left == pytest.approx(TOOK_S * slowness, rel=0.25), second


def test_the_last_crate_alone_is_not_nearly_done():
    """All other crates have been compiled, and one that takes minutes has begun: its time is still to come."""
    build = load("build")
    progress = build.Progress("release", [crate for _, crate in STARTS], jobs=2, began=0.0)
    progress.started = [(crate, at) for at, crate in STARTS]
    left = progress.left_s(TOOK_S)
    assert left is not None
    assert left > 0.9 * build.LTO_S
    assert "towline-py), about" in progress.line(TOOK_S)


def test_a_later_build_has_no_estimate():
    progress = load("build").Progress("quick", [], jobs=2, began=0.0)
    progress.started = [("towline-io", 1.0)]
    assert progress.line(75.0) == "quick build, 1 min 15 s: towline-io"
