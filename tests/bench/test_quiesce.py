"""The bench does not disturb its measurements: its thread on the driver's core, no garbage collection, all restored."""

import gc
import os

from towline.bench.runner.quiesce import gc_disabled, pinned


def test_the_thread_moves_to_another_core_and_back() -> None:
    before = os.sched_getaffinity(0)
    driver = max(before)
    with pinned((driver,)):
        assert os.sched_getaffinity(0) == {driver}
    assert os.sched_getaffinity(0) == before
    with pinned(None):
        assert os.sched_getaffinity(0) == before


def test_garbage_collection_is_disabled_inside_and_restored() -> None:
    assert gc.isenabled()
    with gc_disabled():
        assert not gc.isenabled()
        with gc_disabled():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
