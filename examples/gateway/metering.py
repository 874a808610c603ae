"""Tokens of a response, counted while it passes, and metrics in the text format of Prometheus.

The counters are in `towline.state`, so that the page has the figures of all workers, whichever responds.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any

from towline.state import AsyncState, StateError

log = logging.getLogger("gateway")

# Both match JSON of every API that is passed on: chat completions, responses, messages, whole or as events. Text that was
# generated cannot imitate them: its quotation marks are escaped. The byte after a match shows that it is complete.
TEXT = re.compile(rb'"(?:content|text|delta)"\s*:\s*"(?=[^"])')
USAGE = re.compile(rb'"(prompt|input|completion|output)_tokens"\s*:\s*(\d{1,12})(?=\D)')
KINDS = {b"prompt": "prompt", b"input": "prompt", b"completion": "completion", b"output": "completion"}
CARRIED = 64
"""Bytes kept of a piece, more than a match has: it may be cut anywhere."""

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MAX_MODELS = 50
"""Names of models in the metrics of one worker. Clients choose names, and each makes series that stay."""
FAMILIES = {
    "gateway_requests_total": ("counter", "Requests; 499: the client left before the end of its response"),
    "gateway_tokens_total": ("counter", "Tokens by the upstream's usage; without it, pieces of text"),
    "gateway_first_token_seconds": ("histogram", "From the request to the first text of its response"),
    "gateway_upstream_failures_total": ("counter", "Failures of the upstream, by exception"),
}


class TokenCounter:
    """Looks for text and usage in the pieces of a response; keeps none of them."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._tail = b""
        self._pieces_of_text = 0
        self._usage: dict[str, int] = {}
        self.first_token_seconds: float | None = None

    def feed(self, piece: bytes) -> None:
        window = self._tail + piece
        # A match that ends within the tail was complete, and counted, with an earlier piece.
        found = sum(match.end() >= len(self._tail) for match in TEXT.finditer(window))
        if found and self.first_token_seconds is None:
            self.first_token_seconds = time.monotonic() - self._began
        self._pieces_of_text += found
        for match in USAGE.finditer(window):
            self._usage[KINDS[match[1]]] = int(match[2])  # the last one counts: some APIs update it
        self._tail = window[-CARRIED:]

    def totals(self) -> dict[str, int]:
        """Tokens by kind. A response that was cancelled has no usage: its pieces of text count."""
        return {"completion": self._pieces_of_text, **self._usage}


class Meter:
    """Counters of all workers. A key is a series of the page, its value an integer."""

    def __init__(self, state: AsyncState[Any]) -> None:
        self._state = state
        self._models: set[str] = set()

    async def record(self, model: str, tokens: TokenCounter, *, status: int, failure: str) -> None:
        """Counts one request. A store that fails must not fail the request."""
        model = self._label(model)
        try:
            await self._add("gateway_requests_total", 1, model=model, status=str(status))
            for kind, count in tokens.totals().items():
                await self._add("gateway_tokens_total", count, model=model, kind=kind)
            if tokens.first_token_seconds is not None:
                await self._observe("gateway_first_token_seconds", tokens.first_token_seconds, model)
            if failure:
                await self._add("gateway_upstream_failures_total", 1, reason=failure)
        except StateError as error:
            log.warning("a request is not in the metrics: %s", error)

    async def page(self) -> bytes:
        found = sorted([item async for item in self._state.scan()], key=lambda item: _place(item[0]))
        lines = []
        for family, (kind, description) in FAMILIES.items():
            lines += [f"# HELP {family} {description}.", f"# TYPE {family} {kind}"]
            for series, value in found:
                if series.startswith(family):
                    scale = 1e-6 if series.startswith(f"{family}_sum") else 1
                    lines.append(f"{series} {value * scale:g}" if scale != 1 else f"{series} {value}")
        return "\n".join([*lines, ""]).encode()

    async def _add(self, name: str, amount: int, **labels: str) -> None:
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        await self._state.increment(f"{name}{{{text}}}", amount)

    async def _observe(self, name: str, seconds: float, model: str) -> None:
        for bound in BUCKETS:  # by 0, too: a bucket exists from the first observation on
            await self._add(f"{name}_bucket", int(seconds <= bound), model=model, le=str(bound))
        await self._add(f"{name}_bucket", 1, model=model, le="+Inf")
        await self._add(f"{name}_sum", int(seconds * 1e6), model=model)
        await self._add(f"{name}_count", 1, model=model)

    def _label(self, model: str) -> str:
        model = re.sub(r"[^\w.:/@+-]", "_", model, flags=re.ASCII)[:64]
        if model not in self._models and len(self._models) >= MAX_MODELS:
            return "other"
        self._models.add(model)
        return model


def _place(series: str) -> tuple[str, float]:
    """Sorts buckets by their bound, as the text format requires."""
    rest, _, bound = series.partition('le="')
    return rest, float(bound.partition('"')[0]) if bound else 0.0
