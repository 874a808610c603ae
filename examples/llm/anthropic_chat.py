"""The Anthropic SDK, unmodified, on Towline: `python anthropic_chat.py [BASE_URL]`.

Without an address it serves the mock endpoint and calls that.
"""

import asyncio

import anthropic
import towline.httpx2
from local import base_url

QUESTION = [{"role": "user", "content": "Good morning, how are you?"}]


def chat(client):
    message = client.messages.create(model="any", max_tokens=100, messages=QUESTION)
    print("whole:    ", message.content[0].text)

    print("streamed:  ", end="")
    with client.messages.stream(model="any", max_tokens=100, messages=QUESTION) as stream:
        for text in stream.text_stream:
            print(text, end="|", flush=True)
        print()
        print("stopped by", stream.get_final_message().stop_reason)

    retried = client.messages.create(model="busy", max_tokens=100, messages=QUESTION)  # 429 first
    print("after 429:", retried.content[0].text)


async def achat(client):
    print("streamed:  ", end="")
    async with client.messages.stream(model="any", max_tokens=100, messages=QUESTION) as stream:
        async for text in stream.text_stream:
            print(text, end="|", flush=True)
    print()

    calls = [client.messages.create(model="any", max_tokens=100, messages=QUESTION) for _ in range(20)]
    print("at once:  ", len({message.content[0].text for message in await asyncio.gather(*calls)}), "kind")


async def amain(url):
    http_client = towline.httpx2.AsyncClient()
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", http_client=http_client) as client:
        await achat(client)


def main():
    with base_url() as url:
        http_client = towline.httpx2.Client()
        with anthropic.Anthropic(base_url=url, api_key="none", http_client=http_client) as client:
            chat(client)
        asyncio.run(amain(url))


if __name__ == "__main__":
    main()
