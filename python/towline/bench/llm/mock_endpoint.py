"""A local endpoint that behaves like a language model: `python -m towline.bench.llm.mock_endpoint [--seed N] ...`.

It prints its base URL and serves POST /v1/chat/completions, streamed, until its standard input ends. The name of the
model selects the timing:

- `quick`: about 400 ms in total, log-normal, with a tail to 2.5 s; 8 to 24 pieces;
- `long`: about 1 s in 100 to 160 pieces;
- `flood`: `max_tokens` pieces of 8 KiB as fast as the client reads them.

Delays and text depend on the seed and the question only: every client gets the same response to the same question. The
last event has, besides the usage, the hash of the text and the duration in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

MEDIAN_S, SIGMA, MIN_S, MAX_S = 0.4, 0.6, 0.15, 2.5
LONG_S = 1.0
FIRST_SHARE = 0.4
"""Share of the total time until the first piece."""
MAX_REQUEST_BYTES = 1 << 20
WORDS = ("the", "answer", "is", "more", "than", "a", "question", "of", "time", "and", "tokens")


@dataclass(frozen=True)
class Expect:
    """Pieces of text, each with the pause before it."""

    pieces: tuple[tuple[float, str], ...]
    tokens: int


def response_to(seed: int, profile: str, question: str, max_tokens: int, scale: float) -> Expect:
    """The response; deterministic. `scale` shortens the pauses."""
    chance = random.Random(f"{seed}/{profile}/{question}")
    if profile == "flood":
        return Expect(tuple((0.0, "x" * 8192) for _ in range(max_tokens)), max_tokens)
    if profile == "long":
        number, whole_s = chance.randint(100, 160), LONG_S * chance.uniform(0.9, 1.1)
    else:
        number = chance.randint(8, 24)
        whole_s = min(MAX_S, max(MIN_S, chance.lognormvariate(math.log(MEDIAN_S), SIGMA)))
    weights = [chance.expovariate(1.0) for _ in range(number - 1)]
    rest_s = whole_s * (1 - FIRST_SHARE)
    pauses = [whole_s * FIRST_SHARE, *(rest_s * weight / sum(weights) for weight in weights)]
    words = [chance.choices(WORDS, k=chance.choice((1, 1, 1, 2))) for _ in pauses]
    pieces = tuple((pause * scale, " ".join(word) + " ") for pause, word in zip(pauses, words, strict=True))
    return Expect(pieces, sum(map(len, words)))


def is_refused(seed: int, question: str, share: float) -> bool:
    """Whether the response to this question is a 429."""
    return random.Random(f"{seed}/refuse/{question}").random() < share


@dataclass(frozen=True)
class Settings:
    seed: int = 1
    scale: float = 1.0
    refuse_share: float = 0.0


class MockEndpoint:
    """The subset of HTTP/1.1 that these clients need: a head, a body with a length, chunked responses."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the client has disconnected, or is not one of the bench
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        began = time.perf_counter()
        line, *fields = head.decode("latin-1").split("\r\n")
        named = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        length = int(named.get("content-length", "0"))
        if length > MAX_REQUEST_BYTES:
            raise ValueError("a question of that length is none")
        body = await reader.readexactly(length)
        if not line.startswith("POST /v1/chat/completions "):
            await plain(
                writer, 404, {"error": {"message": f"no such endpoint: {line}", "type": "not_found_error"}}
            )
            return True
        request_body = json.loads(body)
        question = str(request_body["messages"][-1]["content"])
        settings = self.settings
        if is_refused(settings.seed, question, settings.refuse_share):
            await plain(writer, 429, {"error": {"message": "come back later", "type": "rate_limit_error"}})
            return True
        profile, most = str(request_body["model"]), int(request_body.get("max_tokens", 64))
        response = response_to(settings.seed, profile, question, most, settings.scale)
        await stream(writer, response, profile, began)
        return True


async def plain(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    reason = {404: "Not Found", 429: "Too Many Requests"}[status]
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


async def stream(writer: asyncio.StreamWriter, response: Expect, model: str, began: float) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    text, due = hashlib.sha256(), began
    for pause_s, piece in response.pieces:
        due += pause_s  # by the schedule, not by the time of the wake-up: late timers do not add up
        if pause_s and (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        text.update(piece.encode())
        write(writer, event(model, [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]))
        await writer.drain()
    usage = {"prompt_tokens": 1, "completion_tokens": response.tokens, "total_tokens": response.tokens + 1}
    known = {"sha256": text.hexdigest(), "took_s": time.perf_counter() - began}
    write(writer, event(model, [{"index": 0, "delta": {}, "finish_reason": "stop"}]))
    write(writer, event(model, [], usage=usage, mock=known))
    write(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def event(model: str, choices: list[object], **more: object) -> bytes:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1750000000, "model": model}
    return f"data: {json.dumps({**base, 'choices': choices, **more})}\n\n".encode()


def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def arguments(given: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m towline.bench.llm.mock_endpoint")
    parser.add_argument("--seed", type=int, default=1, help="of all delays and texts")
    parser.add_argument("--scale", type=float, default=1.0, help="of all pauses")
    parser.add_argument("--refuse-share", type=float, default=0.0, help="of the questions that get a 429")
    found = parser.parse_args(given)
    return Settings(found.seed, found.scale, found.refuse_share)


async def main(settings: Settings) -> None:
    server = await asyncio.start_server(MockEndpoint(settings).serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    sys.stdout.write(f"http://{host}:{port}/v1\n")
    sys.stdout.flush()
    # The end of standard input means that the parent process has ended.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(arguments(sys.argv[1:])))
