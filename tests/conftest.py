"""Settings of all tests."""

from __future__ import annotations

import logging
import sys
from collections import Counter

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


FIRST = (
    "tests/pages/test_pages.py",
    "tests/state/test_crashes.py",
    "tests/bench/test_installed_servers.py",
    "tests/examples/test_chat.py",
    "tests/deploy/test_proxies.py",
    "tests/examples/test_webhooks.py",
    "tests/lifecycle/test_reloads.py",
    "tests/client/test_typing.py",
)
"""Files with few tests that take long. One that begins last has its worker for itself while the others have nothing left."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of files for xdist's workers: those above, then, as xdist has them itself, those with the most tests."""
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(_file(item) for item in items)
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: (ranks.get(_file(item), len(FIRST)), -tests[_file(item)], _file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
