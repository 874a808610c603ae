"""The OpenAI SDK, unmodified, on Towline: `python openai_chat.py [BASE_URL]`.

Without an address it serves the mock endpoint and calls that.
"""

import asyncio

import openai
import towline.httpx2
from local import base_url

QUESTION = [{"role": "user", "content": "Good morning, how are you?"}]


def chat(client):
    completion = client.chat.completions.create(model="any", messages=QUESTION)
    print("whole:    ", completion.choices[0].message.content)

    print("streamed:  ", end="")
    for chunk in client.chat.completions.create(model="any", messages=QUESTION, stream=True):
        print(chunk.choices[0].delta.content or "", end="|", flush=True)
    print()

    retried = client.chat.completions.create(model="busy", messages=QUESTION)  # 429 first; the SDK comes back
    print("after 429:", retried.choices[0].message.content)


async def achat(client):
    response = await client.responses.create(model="any", input="Good evening")
    print("response: ", response.output_text)

    print("streamed:  ", end="")
    async for event in await client.responses.create(model="any", input="Good night", stream=True):
        if event.type == "response.output_text.delta":
            print(event.delta, end="|", flush=True)
    print()

    # One client, many conversations at once.
    calls = [client.chat.completions.create(model="any", messages=QUESTION) for _ in range(20)]
    print(
        "at once:  ",
        len({completion.choices[0].message.content for completion in await asyncio.gather(*calls)}),
        "kind",
    )


async def amain(url):
    http_client = towline.httpx2.AsyncClient()
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", http_client=http_client) as client:
        await achat(client)


def main():
    with base_url() as url:
        http_client = towline.httpx2.Client()
        with openai.OpenAI(base_url=url + "/v1", api_key="none", http_client=http_client) as client:
            chat(client)
        asyncio.run(amain(url))


if __name__ == "__main__":
    main()
