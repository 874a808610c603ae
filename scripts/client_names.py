"""Writes docs/migrate-client.md: each public name of httpx, requests and aiohttp (its client), and the name here.

`--check` (in `make check`) fails when the page differs. tests/client/test_migrate_client.py holds the tables against the
packages' own exports, so that a new name of theirs shows up, and against ours.
"""

from __future__ import annotations

import sys
from pathlib import Path

import towline

PAGE = Path(__file__).resolve().parent.parent / "docs" / "migrate-client.md"

# Package or class -> lines of "names: the name here". A name without a line is the same here. "-": there is none, and
# the reason or the replacement follows.
TABLES = {
    "httpx": """
HTTPError: `Error` (all), `TransportError` (no complete response), `StatusError` (`raise_for_status()`)
HTTPStatusError: `StatusError`
RequestError: `TransportError`; `TooManyRedirects` and `DecodingError` are `ResponseError`
TimeoutException: `TimeoutError`, also a `builtins.TimeoutError`
CloseError: `NetworkError`
UnsupportedProtocol: `InvalidURL`
CookieConflict: `UsageError`
StreamError RequestNotRead ResponseNotRead: `UsageError`
StreamClosed: `StreamConsumed`
ByteStream: `Request(content=...)`
HTTPTransport AsyncHTTPTransport: the pool is part of `Client` and `AsyncClient`: `limits=`, `retries=`, `uds=`, `local_address=`
USE_CLIENT_DEFAULT: leave the argument out; `None` has a meaning of its own
create_ssl_context: `verify=towline.TLS(...)`, or an `ssl.SSLContext`
main: `towline get URL` on the command line
""",
    "httpx.Client": """
""",
    "httpx.Response": """
""",
    "requests": """
Session session: `Client`
PreparedRequest: `Request`
RequestException: `Error`
HTTPError: `StatusError`
ConnectionError: `NetworkError`, `ProxyError`
Timeout: `TimeoutError`; `towline.Timeout` is the setting
JSONDecodeError: `json.JSONDecodeError`, a `ValueError`
URLRequired: `InvalidURL`
NullHandler annotations: - modules of Python
DependencyWarning FileModeWarning RequestsDependencyWarning chardet_version charset_normalizer_version check_compatibility: - about urllib3 and chardet
""",
    "requests.Session": """
adapters mount get_adapter: `Client(mounts={pattern: transport})`
cert verify: `Client(cert=...)`, `Client(verify=...)`
proxies: `Client(proxy=...)`, or `mounts=` by URL
hooks: `client.event_hooks`
max_redirects: `client.max_redirects`
prepare_request: `client.build_request()`
stream: `client.stream(method, url)`
get_redirect_target: `response.next_request`
resolve_redirects rebuild_auth rebuild_method rebuild_proxies should_strip_auth: `follow_redirects=True`, `credential_headers=`
merge_environment_settings: `trust_env=`
""",
    "requests.Response": """
ok: `response.is_success`, or `not response.is_error`
reason: `response.reason_phrase`
apparent_encoding: `response.encoding`
iter_content: `response.iter_bytes()` of `client.stream(...)`
is_permanent_redirect: `response.status_code in (301, 308)`
next: `response.next_request`
""",
    "aiohttp": """
ClientSession: `AsyncClient`
ClientResponse: `Response`; `content`, `text` and `json()` need no `await`
ClientRequest RequestInfo: `Request`
ClientTimeout: `Timeout`
ClientWSTimeout: `ping_timeout=`, `close_timeout=` of `client.websocket()`
BaseConnector TCPConnector: `Limits`, `verify=`, `resolve=`, `happy_eyeballs_delay=` of the client
UnixConnector: `uds=`
NamedPipeConnector: - Windows only
CookieJar ChainMapProxy: `Cookies`
DummyCookieJar: - empty `client.cookies`
DigestAuthMiddleware: `DigestAuth`
ClientMiddlewareType ClientHandlerType: `Auth`, or `event_hooks=`
BasicAuth encode_basic_auth: `BasicAuth`
FormData MultipartWriter: `data=` and `files=`
MultipartReader BodyPartReader BadContentDispositionHeader BadContentDispositionParam content_disposition_filename parse_content_disposition: - responses of several parts are not parsed
ClientError: `Error`
ClientConnectionError ClientOSError ServerConnectionError: `NetworkError`
ClientConnectorError: `ConnectError`
ClientConnectorDNSError: `DNSError`
ClientConnectorCertificateError ClientConnectorSSLError ClientSSLError ServerFingerprintMismatch: `TLSError`
ClientConnectionResetError: `WriteError`
ServerDisconnectedError: `ServerDisconnected`
ClientProxyConnectionError ClientHttpProxyError: `ProxyError`
ClientPayloadError: `RemoteProtocolError`
ClientResponseError: `StatusError`
ContentTypeError: - the media type is not checked; `response.json()` raises `ValueError`
RedirectClientError InvalidUrlRedirectClientError NonHttpUrlRedirectClientError: `RemoteProtocolError`
InvalidUrlClientError NonHttpUrlClientError: `InvalidURL`
ServerTimeoutError: `TimeoutError`
ConnectionTimeoutError: `ConnectTimeout`
SocketTimeoutError: `ReadTimeout`
WSServerHandshakeError: `WebSocketRefused`
ClientWebSocketResponse: `AsyncWebSocket`
WebSocketError WSMessageTypeError: `WebSocketClosed`
WSMessage WSMsgType: messages are `str` or `bytes`
WSCloseCode: `WebSocketClosed.code`
AsyncResolver ThreadedResolver DefaultResolver AddrInfoType SocketFactoryType: `resolve=`
Fingerprint: - a certificate is verified by its authority: `verify=`
TraceConfig TraceConnectionCreateEndParams TraceConnectionCreateStartParams TraceConnectionQueuedEndParams TraceConnectionQueuedStartParams TraceConnectionReuseconnParams TraceDnsCacheHitParams TraceDnsCacheMissParams TraceDnsResolveHostEndParams TraceDnsResolveHostStartParams: `response.timings`, `response.reused`
TraceRequestChunkSentParams TraceResponseChunkReceivedParams UploadTracker: `progress=`, which is called with a `Progress`
UploadAbortedError: `WriteError`
TraceRequestEndParams TraceRequestExceptionParams TraceRequestHeadersSentParams TraceRequestRedirectParams TraceRequestStartParams: `event_hooks=`
AsyncIterablePayload BufferedReaderPayload BytesIOPayload BytesPayload IOBasePayload JsonPayload Payload PAYLOAD_REGISTRY EMPTY_PAYLOAD StringIOPayload StringPayload TextIOPayload get_payload payload_type streamer: `content=`, `data=`, `json=` and `files=`
StreamReader DataQueue FlowControlDataQueue EofStream: `response.aread(n)`, `response.aiter_bytes()`
HttpVersion HttpVersion10 HttpVersion11: `http1=`, `http2=`, `http3=`
ETag: `response.headers["etag"]`
hdrs: names of headers are text, in any case
set_zlib_backend: - decoding is native
GunicornWebWorker GunicornUVLoopWebWorker: - `towline serve`
""",
    "aiohttp.ClientSession": """
ATTRS: -
auto_decompress: `response.aiter_raw()` of `client.stream(...)`
closed: `client.is_closed`
close: `client.aclose()`
connector connector_owner detach: - a client owns its connections
cookie_jar: `client.cookies`
json_serialize: `json_dumps=`
loop: - a client works in every loop
raise_for_status: `response.raise_for_status()`, or `event_hooks=`
requote_redirect_url: - URLs are normalised once
skip_auto_headers: `headers=` of the client
trace_configs: `event_hooks=`
version: `http1=`, `http2=`, `http3=`
ws_connect: `client.websocket(url)`
""",
    "aiohttp.ClientResponse": """
ATTRS start wait_for_close upload_complete output_size connection: -
status: `response.status_code`
ok: `response.is_success`
reason: `response.reason_phrase`
content: `response.content`, the whole body; `client.stream(...)` reads on demand
read: `response.aread()`
charset get_encoding: `response.encoding`
content_type content_length content_disposition: `response.headers["content-type"]`, ...
raw_headers: `response.headers.raw`
closed: `response.is_closed`
close: `response.aclose()`
release: `response.aclose()`
host real_url url_obj: `response.url`
request_info: `response.request`
version: `response.http_version`
""",
}
OURS = {
    "httpx": towline,
    "requests": towline,
    "aiohttp": towline,
    "httpx.Client": towline.Client,
    "requests.Session": towline.Client,
    "aiohttp.ClientSession": towline.AsyncClient,
    "httpx.Response": towline.Response,
    "requests.Response": towline.Response,
    "aiohttp.ClientResponse": towline.Response,
}
HEAD = """# From httpx, requests and aiohttp

<!-- The tables are written by scripts/client_names.py (`make format`); edit that. -->

To change nothing but the engine, keep httpx, httpx2 or requests and use a drop-in ([dropins.md](dropins.md)). This page is for
code that changes to `towline.Client` and `towline.AsyncClient`, which follow httpx. A name that is not in a table has the same
name and meaning here. The differences in behaviour are in [call.md](call.md#differences-from-httpx).

If you use a name that does not exist here, the error says what to write:

```pycon
>>> client.get(url, allow_redirects=True)
TypeError: unexpected keyword argument 'allow_redirects'; write follow_redirects=True
```
"""


def rows(table: str) -> dict[str, str]:
    """Name -> the name here."""
    found = {}
    for line in TABLES[table].strip().splitlines():
        names, _, here = line.partition(": ") if ": " in line else line.partition(":")
        found.update(dict.fromkeys(names.split(), here.strip()))
    return found


def page() -> str:
    parts = [HEAD]
    for table in TABLES:
        lines = TABLES[table].strip().splitlines()
        parts.append(f"\n## {table}\n")
        if not lines:
            parts.append("\nAll names are the same.\n")
            continue
        parts.append(f"\n| {table} | here |\n|---|---|\n")
        for line in lines:
            names, _, here = line.partition(": ") if ": " in line else line.partition(":")
            shown = ", ".join(f"`{name}`" for name in names.split())
            here = here.strip()
            here = "none" if here == "-" else f"none: {here[2:]}" if here.startswith("- ") else here
            parts.append(f"| {shown} | {here} |\n")
    return "".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != text:
            print("docs/migrate-client.md differs from scripts/client_names.py; run `make format`")
            return 1
        print("names: docs/migrate-client.md is up to date")
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
