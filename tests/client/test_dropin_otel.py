"""OpenTelemetry's own instrumentors of httpx and httpx2 with the drop-ins: they replace methods of the package's transports."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from tests.support.http1_peer import OK, Listener, respond_with, scripted
from tests.support.tracing import Spans, attributes, spans

__all__ = ["spans"]

instrumentation = pytest.importorskip("opentelemetry.instrumentation.httpx")


@pytest.fixture(params=["httpx", "httpx2"])
def package(request: pytest.FixtureRequest) -> ModuleType:
    return pytest.importorskip(request.param)


@pytest.fixture
def ours(package: ModuleType) -> ModuleType:
    return importlib.import_module(f"towline.{package.__name__}")


@pytest.fixture
def instrumentor(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http")
    return getattr(instrumentation, f"{package.__name__.upper()}ClientInstrumentor")()


@pytest.fixture
def server() -> Iterator[Listener]:
    with scripted(respond_with(OK)) as listener:
        yield listener


async def acall(client: Any, url: str) -> str:
    async with client:
        return str((await client.get(url)).text)


def check(spans: Spans, server: Listener) -> None:
    """Two calls, each with one span, whose id the request carries."""
    found = spans.of(SpanKind.CLIENT, 2)
    for span, head in zip(found, server.heads, strict=True):
        assert span.name == "GET"
        assert attributes(span)["http.response.status_code"] == 200
        assert b"%032x-%016x" % (span.context.trace_id, span.context.span_id) in head


def test_one_client(ours: ModuleType, instrumentor: Any, spans: Spans, server: Listener) -> None:
    with ours.Client() as client:
        instrumentor.instrument_client(client)
        assert client.get(server.url).text == "hello"
        instrumentor.uninstrument_client(client)
        aclient = ours.AsyncClient()
        instrumentor.instrument_client(aclient)
        assert asyncio.run(acall(aclient, server.url)) == "hello"
        check(spans, server)
        assert client.get(server.url).text == "hello"
    spans.of(SpanKind.CLIENT, 2)


def test_every_client(ours: ModuleType, instrumentor: Any, spans: Spans, server: Listener) -> None:
    """A client that was there before is instrumented too."""
    with ours.Client() as client:
        instrumentor.instrument()
        try:
            assert client.get(server.url).text == "hello"
            assert asyncio.run(acall(ours.AsyncClient(), server.url)) == "hello"
        finally:
            instrumentor.uninstrument()
        check(spans, server)
        assert client.get(server.url).text == "hello"
    spans.of(SpanKind.CLIENT, 2)
