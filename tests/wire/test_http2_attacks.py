"""Every attack on HTTP/2 is cut off soon, or costs next to nothing."""

from __future__ import annotations

import pytest
from towline.bench.responder import Responder

from tests.wire.http2_attacks import ATTACKS, attack

# The attack must end within 1,000 frames, or under a mebibyte and 50 ms of CPU. Of the frames some are on their way when it
# is cut off; a machine that is busy makes CPU time dearer; and the kernel counts resident pages by processor, 128 KiB of each
# kind at a time, so that a difference of two readings is that exact only.
MOST_FRAMES = 1_200
MOST_KIB = 1_024 + 512
MOST_CPU_MS = 200


@pytest.fixture(scope="module")
def responder():
    """The engine without Python: what an attack costs here is the wire's cost."""
    with Responder() as responder:
        yield responder


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_cut_off_or_borne(responder, name):
    host, _, port = responder.address.rpartition(":")
    outcome = attack((host, int(port)), name, responder.pid)
    assert (outcome.is_cut and outcome.frames <= MOST_FRAMES) or outcome.cpu_ms < MOST_CPU_MS, outcome
    assert outcome.grown_kib < MOST_KIB, outcome
