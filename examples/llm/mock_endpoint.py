"""A local mock of the two vendors' endpoints: `towline serve mock_endpoint:app --app-dir examples/llm`.

POST /v1/chat/completions and /v1/responses (OpenAI), /v1/messages (Anthropic): complete responses and event streams in
the format that the SDKs parse. The response repeats the question word by word. The first request for the model `busy`
gets 429 with Retry-After.
"""

import asyncio
import json
import os

WORD_PAUSE = float(os.environ.get("WORD_PAUSE", "0.01"))
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def words_of(request):
    """The reply: the last question, as a list of words with their spaces."""
    last = request.get("messages", request.get("input"))
    while isinstance(last, list):
        last = last[-1]
    while isinstance(last, dict):
        last = last.get("content", last.get("text", ""))
        last = last[-1] if isinstance(last, list) else last
    first, *rest = f"You said: {last}".split(" ")
    return [first, *(f" {word}" for word in rest)]


# --- OpenAI: chat completions ---------------------------------------------------------------------


def chat(request, words):
    message = {"role": "assistant", "content": "".join(words), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {**chat_base(request, "chat.completion"), "choices": [choice], "usage": USAGE}


def chat_events(request, words):
    base = chat_base(request, "chat.completion.chunk")

    def chunk(delta, finish=None):
        return None, {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for word in words:
        yield chunk({"content": word})
    yield chunk({}, "stop")
    if request.get("stream_options", {}).get("include_usage"):
        yield None, {**base, "choices": [], "usage": USAGE}
    yield None, "[DONE]"


def chat_base(request, kind):
    return {"id": "chatcmpl-1", "object": kind, "created": 1750000000, "model": request["model"]}


# --- OpenAI: responses ----------------------------------------------------------------------------


def response(request, words, status="completed"):
    part = {"type": "output_text", "text": "".join(words), "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": [part]}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1750000000,
        "status": status,
        "model": request["model"],
        "output": [item] if words else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, **details},
    }


def response_events(request, words):
    number = -1

    def event(kind, **fields):
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number, **fields}

    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    (done,) = response(request, words)["output"]
    (part,) = done["content"]
    yield event("response.created", response=response(request, [], "in_progress"))
    item = {**done, "status": "in_progress", "content": []}
    yield event("response.output_item.added", output_index=0, item=item)
    yield event("response.content_part.added", **place, part={**part, "text": ""})
    for word in words:
        yield event("response.output_text.delta", **place, delta=word, logprobs=[])
    yield event("response.output_text.done", **place, text="".join(words), logprobs=[])
    yield event("response.content_part.done", **place, part=part)
    yield event("response.output_item.done", output_index=0, item=done)
    yield event("response.completed", response=response(request, words))


# --- Anthropic: messages --------------------------------------------------------------------------


def message(request, words, stop="end_turn"):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": [{"type": "text", "text": "".join(words)}] if words else [],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }


def message_events(request, words):
    def event(kind, **fields):
        return kind, {"type": kind, **fields}

    yield event("message_start", message=message(request, [], None))
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield event("ping")
    for word in words:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield event("content_block_stop", index=0)
    yield event(
        "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 4}
    )
    yield event("message_stop")


# --- the application ------------------------------------------------------------------------------

ENDPOINTS = {
    "/v1/chat/completions": (chat, chat_events),
    "/v1/responses": (response, response_events),
    "/v1/messages": (message, message_events),
}
LATER = {"type": "error", "error": {"type": "rate_limit_error", "message": "come back later", "code": None}}


async def app(scope, receive, send):
    if scope["type"] != "http":
        # ASGI lets an application refuse a protocol with an exception: the server continues without lifespan.
        raise NotImplementedError(f"this example supports http only, not {scope['type']}")
    fields = dict(scope["headers"])
    request = json.loads(await read_body(receive) or b"{}")
    if scope["path"] not in ENDPOINTS:
        await respond(send, 404, {"error": {"message": "no such endpoint", "type": "not_found_error"}})
    elif request["model"] == "busy" and fields.get(b"x-stainless-retry-count", b"0") == b"0":
        await respond(send, 429, LATER, [(b"retry-after", b"1"), (b"retry-after-ms", b"50")])
    else:
        complete, events = ENDPOINTS[scope["path"]]
        if request.get("stream"):
            await stream(send, events(request, words_of(request)))
        else:
            await respond(send, 200, complete(request, words_of(request)))


async def read_body(receive):
    parts, more = [], True
    while more:
        received = await receive()
        if received["type"] == "http.disconnect":
            raise ConnectionError("the client left before its body was complete")
        parts.append(received.get("body", b""))
        more = received.get("more_body", False)
    return b"".join(parts)


async def respond(send, status, value, fields=()):
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *fields]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(send, events):
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for name, value in events:
        data = value if isinstance(value, str) else json.dumps(value)
        text = f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await asyncio.sleep(WORD_PAUSE)
    await send({"type": "http.response.body", "body": b""})
