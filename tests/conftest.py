"""Settings of all tests."""

from __future__ import annotations

import logging
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A shell starts what runs in the background with Ctrl-C ignored, and the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.fixture(autouse=True)
def untouched_logs() -> Iterator[None]:
    """A server in this process sets levels and handlers of its loggers, which the next test must not see."""
    loggers = [logging.getLogger(name) for name in ("towline", "towline.server")]
    before = [(logger, logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, propagate, handlers in before:
        logger.setLevel(level)
        logger.propagate, logger.handlers[:] = propagate, handlers


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skip a test that reads /proc where there is none."""
    try:
        return (yield)
    except FileNotFoundError as error:
        if sys.platform == "linux" or not str(error.filename).startswith(("/proc", "/dev/full", "/dev/shm")):
            raise
        pytest.skip(f"needs {error.filename}")


FIRST = (
    "tests/bench/test_compare_servers.py",
    "tests/bench/test_compare_requests.py",
    "tests/bench/test_compare_parts.py",
    "tests/bench/test_compare_revisions.py",
    "tests/client/test_http3.py",
    "tests/bench/test_published_comparisons.py",
    "tests/http3/test_workers.py",
    "tests/bench/test_stalls.py",
    "tests/bench/test_run.py",
    "tests/lifecycle/test_reloads.py",
    "tests/bench/test_scenarios_run.py",
    "tests/bench/test_clients.py",
    "tests/faults/test_clients.py",
    "tests/lifecycle/test_stopping.py",
    "tests/client/test_http2_endings.py",
    "tests/client/test_http3_early_data.py",
    "tests/client/test_http2_servers.py",
    "tests/server/test_slow_clients.py",
    "tests/examples/test_webhooks.py",
    "tests/faults/test_application.py",
    "tests/bench/test_drivers.py",
    "tests/examples/test_ci.py",
    "tests/bench/test_installed_servers.py",
    "tests/lifecycle/test_workers.py",
    "tests/pages/test_pages.py",
    "tests/bench/test_verdicts.py",
    "tests/lifecycle/test_crashes.py",
    "tests/bench/test_figures.py",
    "tests/examples/test_fastapi_service.py",
    "tests/bench/test_llm.py",
    "tests/bench/test_load_clusters.py",
    "tests/client/test_http3_own_server.py",
    "tests/examples/test_chat.py",
    "tests/state/test_crashes.py",
    "tests/client/test_typing.py",
)
"""Files that take long, the longest first. One that begins last has its worker for itself while the others have nothing left."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of files for xdist's workers: those above, then, as xdist has them itself, those with the most tests."""
    if not hasattr(config, "workerinput"):
        return
    tests = Counter(_file(item) for item in items)
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: (ranks.get(_file(item), len(FIRST)), -tests[_file(item)], _file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
