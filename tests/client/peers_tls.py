"""Trust settings of each client for one authority, and its errors for servers that it refuses."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path
from typing import Any

AUTHORITY = "TOWLINE_TEST_AUTHORITY"  # the path of its certificate, in the environment


def failure_of(subject: str, url: str, behaviour: str) -> dict[str, Any]:
    """Returns `error` and `message`, or `answered` if the client accepted the server. `good` must pass first."""
    path, started = os.environ[AUTHORITY], time.monotonic()
    try:
        response = CLIENTS[subject.removesuffix("-sync")](url, path)
    except Exception as error:
        seconds = round(time.monotonic() - started, 1)
        return {"error": type(error).__name__, "message": in_full(error), "seconds": seconds}
    return {"answered": bytes(response).decode()}


def in_full(error: BaseException) -> str:
    """Error text as shown to the user, without addresses of objects."""
    return str(error)[:400]


def towline(url: str, path: str) -> bytes:
    import towline

    with towline.Client(verify=path, trust_env=False) as client:
        return client.get(url).content


def aiohttp(url: str, path: str) -> bytes:
    import aiohttp

    async def main() -> bytes:
        async with aiohttp.ClientSession() as session:
            async with session.get(url, ssl=ssl.create_default_context(cafile=path)) as response:
                return await response.read()

    return asyncio.run(main())


def httpx(url: str, path: str) -> bytes:
    import httpx

    with httpx.Client(verify=ssl.create_default_context(cafile=path), trust_env=False) as client:
        return client.get(url).content


def httpx2(url: str, path: str) -> bytes:
    import httpx2

    with httpx2.Client(verify=ssl.create_default_context(cafile=path), trust_env=False) as client:
        return client.get(url).content


def httpcorexyz(url: str, path: str) -> bytes:
    import httpcorexyz

    with httpcorexyz.ConnectionPool(ssl_context=ssl.create_default_context(cafile=path)) as pool:
        content: bytes = pool.request("GET", url).content
        return content


def urllib3(url: str, path: str) -> bytes:
    import urllib3

    return urllib3.PoolManager(ca_certs=path, retries=False).request("GET", url).data


def requests(url: str, path: str) -> bytes:
    import requests

    return requests.get(url, verify=path).content


def niquests(url: str, path: str) -> Any:
    import niquests

    return niquests.get(url, verify=path).content


def pycurl(url: str, path: str) -> bytes:
    import pycurl

    handle, chunks = pycurl.Curl(), []
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.CAINFO, path)
    handle.setopt(pycurl.PROXY, "")
    handle.setopt(pycurl.WRITEFUNCTION, chunks.append)
    handle.perform()
    return b"".join(chunks)


def pyreqwest(url: str, path: str) -> Any:
    from pyreqwest.client import SyncClientBuilder

    builder = SyncClientBuilder().no_proxy().add_root_certificate_pem(Path(path).read_bytes())
    with builder.build() as client:
        return client.get(url).build().send().bytes()


def wreq(url: str, path: str) -> bytes:
    from wreq.blocking import Client
    from wreq.tls import CertStore

    store = CertStore.from_pem_stack(Path(path).read_bytes())
    client = Client(tls_verify=store, http1_only=True, no_proxy=True)
    return bytes(client.get(url).bytes())


def primp(url: str, path: str) -> bytes:
    import primp

    content: bytes = primp.Client(ca_cert_file=path).get(url).content
    return content


CLIENTS: dict[str, Any] = {
    function.__name__: function
    for function in (
        towline,
        aiohttp,
        httpx,
        httpx2,
        httpcorexyz,
        urllib3,
        requests,
        niquests,
        pycurl,
        pyreqwest,
        wreq,
        primp,
    )
}
