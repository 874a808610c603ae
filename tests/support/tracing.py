"""Spans of a server in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind

from tests.support.waiting import until


class Spans:
    """The spans that have ended, first those of requests."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def of(self, kind: SpanKind, count: int = 1) -> list[ReadableSpan]:
        def found() -> list[ReadableSpan]:
            return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

        until(lambda: len(found()) >= count)
        assert len(found()) == count
        return found()

    def one(self) -> ReadableSpan:
        """The span of the only request."""
        return self.of(SpanKind.SERVER)[0]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The spans of a provider that is the global one during a test."""
    spans = Spans()
    provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans.exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield spans
    provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
