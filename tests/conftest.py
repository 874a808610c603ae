"""Settings of all tests."""

from __future__ import annotations

import logging
import sys

import pytest
from hypothesis import settings

# A busy machine is slow now and then; what hangs meets pytest's own timeout. In CI, Hypothesis's profile for it stays.
settings.register_profile("towline", parent=settings(), deadline=None)
settings.load_profile("towline")


@pytest.fixture(autouse=True)
def unobserved_calls() -> None:
    """Calls take the fast path in each test, whatever an earlier one has left: a level of a log, a tracer, a mock."""
    logging.getLogger("towline.client").setLevel(logging.WARNING)
    observe = sys.modules.get("towline.client.observe")
    if observe is not None and observe._tracer is not None:
        observe.set_tracer(None)
    if observe is not None:
        for interceptor in list(observe._interceptors):
            observe.remove_interceptor(interceptor)
