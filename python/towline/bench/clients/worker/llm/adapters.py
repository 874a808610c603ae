"""The chat clients: each parses the stream into content, a token count, and data of the mock endpoint."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Chunk:
    """One event of the stream."""

    content: str = ""
    tokens: int | None = None
    """Tokens of the whole response, if the event has them."""
    server: dict[str, Any] | None = None
    """Data that the mock endpoint adds about its response."""


class Refused(Exception):
    """A status other than 200."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(f"{status} {text}".strip()[:200])
        self.status = status


def chunk_of(data: str) -> Chunk | None:
    """The parsed data of one event; None for the end marker."""
    if data == "[DONE]":
        return None
    found = json.loads(data)
    choices = found.get("choices") or [{}]
    usage = found.get("usage") or {}
    content = (choices[0].get("delta") or {}).get("content") or ""
    return Chunk(content, usage.get("completion_tokens"), found.get("mock"))


class Chat(ABC):
    """One open client; `base` is the URL before /chat/completions."""

    def __init__(self, base: str, key: str) -> None:
        self.url = base.rstrip("/") + "/chat/completions"
        self.base, self.key = base, key
        self.headers = {"Authorization": f"Bearer {key}"}

    @abstractmethod
    async def open(self) -> None:
        """Creates the client, inside the loop."""

    @abstractmethod
    def stream(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        """Yields the events of one response. Raises Refused."""


class Towline(Chat):
    """towline.AsyncClient with its own event parser."""

    async def open(self) -> None:
        self.client: Any = import_module("towline").AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        async with self.client.stream("POST", self.url, json=body, headers=self.headers) as response:
            if response.status_code != 200:
                raise Refused(response.status_code, (await response.aread()).decode(errors="replace"))
            async for event in response.aiter_sse():
                if (chunk := chunk_of(event.data)) is None:
                    return
                yield chunk


class _Lines(Chat):
    """Clients that yield lines: an event of these endpoints is one line."""

    async def events(self, lines: AsyncIterable[str]) -> AsyncGenerator[Chunk, None]:
        async for line in lines:
            if line.startswith("data: "):
                if (chunk := chunk_of(line[6:].strip())) is None:
                    return
                yield chunk


class Httpx(_Lines):
    """httpx.AsyncClient."""

    library = "httpx"

    async def open(self) -> None:
        self.client: Any = import_module(self.library).AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        async with self.client.stream("POST", self.url, json=body, headers=self.headers) as response:
            if response.status_code != 200:
                raise Refused(response.status_code, (await response.aread()).decode(errors="replace"))
            async for chunk in self.events(response.aiter_lines()):
                yield chunk


class Httpx2(Httpx):
    """httpx2.AsyncClient."""

    library = "httpx2"


class Aiohttp(_Lines):
    """aiohttp.ClientSession."""

    async def open(self) -> None:
        aiohttp: Any = import_module("aiohttp")
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        async with self.session.post(self.url, json=body, headers=self.headers) as response:
            if response.status != 200:
                raise Refused(response.status, await response.text())
            async for chunk in self.events(line.decode() async for line in response.content):
                yield chunk


class OpenAI(Chat):
    """The vendor's SDK on the HTTP client in `clients`."""

    clients = "httpx2"

    async def open(self) -> None:
        self.openai: Any = import_module("openai")
        http_client = import_module(self.clients).AsyncClient(timeout=TIMEOUT_S, trust_env=False)
        self.client = self.openai.AsyncOpenAI(
            base_url=self.base, api_key=self.key, http_client=http_client, max_retries=0
        )

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        try:
            async for found in await self.client.chat.completions.create(**body):
                content = found.choices[0].delta.content if found.choices else None
                tokens = found.usage.completion_tokens if found.usage is not None else None
                yield Chunk(content or "", tokens, (found.model_extra or {}).get("mock"))
        except self.openai.APIStatusError as error:
            raise Refused(error.status_code, str(error)) from None


class OpenAIOnHttpx(OpenAI):
    clients = "httpx"


class OpenAIOnTowline(OpenAI):
    clients = "towline.httpx2"
