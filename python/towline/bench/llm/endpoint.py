"""The endpoint: an OpenAI-compatible one from the environment, or the mock endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

OPENROUTER = "https://openrouter.ai/api/v1"
MODEL, MAX_TOKENS = "openai/gpt-4o-mini", 64


class BadEndpoint(ValueError):
    """The environment is invalid; the message says what to change."""


@dataclass(frozen=True)
class Endpoint:
    """`key` None: the mock endpoint, whose `base_url` is known once it runs."""

    base_url: str
    key: str | None
    model: str = MODEL
    max_tokens: int = MAX_TOKENS

    @property
    def is_remote(self) -> bool:
        return self.key is not None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, base_url: str | None = None
    ) -> Endpoint:
        """From OPENROUTER_API_KEY, OPENROUTER_MODEL, OPENROUTER_MAX_TOKENS, OPENROUTER_BASE_URL. Raises BadEndpoint."""
        given = os.environ if environment is None else environment
        key = given.get("OPENROUTER_API_KEY") or None
        tokens = given.get("OPENROUTER_MAX_TOKENS") or str(MAX_TOKENS)
        if not tokens.isascii() or not tokens.isdigit() or int(tokens) < 1:
            raise BadEndpoint(f"OPENROUTER_MAX_TOKENS is {tokens!r}; it must be a number of at least 1")
        url = base_url or given.get("OPENROUTER_BASE_URL") or OPENROUTER
        if not url.startswith(("http://", "https://")):
            raise BadEndpoint(f"the base URL {url!r} must begin with http:// or https://")
        return cls(url.rstrip("/"), key, given.get("OPENROUTER_MODEL") or MODEL, int(tokens))

    def body(self, question: str, max_tokens: int | None = None) -> dict[str, object]:
        """A request for a streamed response that ends with its token count."""
        return {
            "model": self.model,
            "max_tokens": max_tokens or self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": question}],
        }
