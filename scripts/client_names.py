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
HTTPStatusError: the same class as `StatusError`
TimeoutException: the same class as `TimeoutError`, also a `builtins.TimeoutError`
CloseError: the same class as `WriteError`: no error of closing is reported
StreamClosed: the same class as `StreamConsumed`
ByteStream: works as a stream of bytes
USE_CLIENT_DEFAULT: works; or leave the argument out. `None` has a meaning of its own
create_ssl_context: - `verify=towline.TLS(...)`, or an `ssl.SSLContext`
main: - `towline get URL` on the command line
""",
    "httpx.Client": """
""",
    "httpx.Response": """
""",
    "requests": """
Session session: works: a `Client` that follows redirects, at most 30
PreparedRequest: the same class as `Request`
RequestException: the same class as `Error`
HTTPError: the one of httpx, a base class of `StatusError` and `TransportError`; `exceptions.HTTPError` is `StatusError`
Timeout: a call makes the setting of httpx, `except` catches every timeout. A type checker knows the setting only: there, write `TimeoutError`
ConnectionError: works: a base class of `NetworkError`, `ProxyError`, `RemoteProtocolError`, `ConnectTimeout` and `PoolTimeout`
JSONDecodeError: `Error` and `json.JSONDecodeError`
URLRequired: the same class as `InvalidURL`
packages utils: - see [modules of requests](#modules-of-requests)
NullHandler annotations: - modules of Python
DependencyWarning FileModeWarning RequestsDependencyWarning chardet_version charset_normalizer_version check_compatibility: - about urllib3 and chardet
""",
    "requests.exceptions": """
ContentDecodingError: the same class as `DecodingError`
HTTPError RetryError: the same class as `StatusError`
InvalidJSONError: the same class as `JSONDecodeError`
InvalidProxyURL: the same class as `ConfigError`, raised when the client is made
InvalidSchema MissingSchema: the same class as `UnsupportedProtocol`
RequestException: the same class as `Error`
SSLError: the same class as `TLSError`
StreamConsumedError UnrewindableBodyError: the same class as `StreamConsumed`
Timeout: the same class as `TimeoutError`
URLRequired: the same class as `InvalidURL`
ChunkedEncodingError: works: a base class of `ReadError` and `RemoteProtocolError`
ConnectionError: works: see above
RequestsWarning FileModeWarning RequestsDependencyWarning: `builtins.Warning`; none is given
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
    "requests.exceptions": towline,
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

There are three ways:

| you want | write |
|---|---|
| to change nothing but the engine: responses and exceptions stay those of the package | `import towline.httpx`, `towline.httpx2` or `towline.requests`: [drop-ins](dropins.md) |
| to change an import, and keep a program that uses httpx | `import towline as httpx`: the [names](#httpx) of httpx, and what [differs](#differences-in-behaviour) |
| to change an import, and keep a program that uses requests | `import towline as requests`: its [names](#requests) and [exceptions](#requestsexceptions); responses are those of httpx. If the program mounts adapters or reads `response.raw`, use the drop-in |

```python
import towline as httpx

try:
    httpx.get("http://127.0.0.1:8000/missing", timeout=5).raise_for_status()
except httpx.HTTPStatusError as error:
    print(error.response.status_code)
except httpx.TransportError as error:
    print("no response:", error)
```

Each `except` that catches an error of httpx or requests catches Towline's in the same situation. A name that both packages have means what it
means in httpx. Two of them have another meaning in requests:

| of requests | write | because |
|---|---|---|
| `except requests.HTTPError` | `except requests.exceptions.HTTPError` | `HTTPError` is the base class of httpx, so it also catches calls without a response; `error.response` is then None |
| `requests.get(url)` | `requests.get(url, follow_redirects=True)` | as in httpx, only a `requests.Session()` follows redirects |

A name that does not exist here raises an error that says what to write:

```pycon
>>> client.get(url, allow_redirects=True)
TypeError: unexpected keyword argument 'allow_redirects'; write follow_redirects=True
>>> requests.adapters.HTTPAdapter
AttributeError: module 'towline.adapters' has no attribute 'HTTPAdapter'; here it is Client(limits=..., retries=...), or towline.requests.Adapter for a Session of requests
```
"""
DIFFERENCES_HEAD = """
## Differences in behaviour

Measured with both libraries and Towline against one server (`tests/client/test_differences.py`): {versions}. What is not listed is the same in all
three where they have it, for example 302 after PUT (GET), 301 after PUT (PUT), dot segments and `'` in URLs, credentials in a URL, BOMs before
JSON, and `Content-Length: 0` of an empty POST.

| subject | httpx | requests | here | for the other behaviour |
|---|---|---|---|---|
"""
VERSIONS = "httpx 0.28.1 and requests 2.34.2"
# subject | httpx | requests | here | what to write. A test has a probe for each subject.
DIFFERENCES = """
default timeout | 5 s in each phase, the pool too | none | 5 s to connect, 60 s of silence, none for the pool | `timeout=`
read timeout inside a body | `ReadTimeout` | `ConnectionError` | `ReadTimeout` | catch `exceptions.Timeout` too
connections of a client | 100, 20 of them idle for 5 s | 10 idle ones for each of 10 hosts, any number in use | 1000, 100 for each host, 100 idle for 15 s | `limits=towline.Limits(...)`
failed connect | an error | an error | tried once more | `retries=0`
kept connection that the server has closed | an error | an error | an idempotent request is sent again | `retries=towline.Retry(stale=False)`
redirects | not followed | followed, except by `head` | not followed; by `Session`, all | `follow_redirects=True`
redirects at most | 20 | 30 | 20; `Session` 30 | `max_redirects=`
API-key headers after a redirect to another origin | sent | sent | removed, as is every header that names a secret | send the second request yourself
client cookie without a domain after a redirect to another host | sent | sent | not sent | `cookies.set(name, value, domain=...)`
`params=` and the query of a URL | replaces the query | added, a second value beside the first | added; replaces the value of that name | put the query into the URL
None in `params=` and `data=` | empty value | left out | empty value | leave it out
True in `params=` and `data=` | `true` | `True` | `true` | `str(True)`
headers that are always sent | Host, Accept, Accept-Encoding, Connection, User-Agent | Host, User-Agent, Accept-Encoding, Accept, Connection | Host, Accept, Accept-Encoding, User-Agent | `headers=`
`Accept-Encoding` | gzip, deflate; br and zstd with packages | as httpx | gzip, deflate, br, zstd | `headers=`
header with the value None | `TypeError` | removes a header of the session | `InvalidHeader` | `del client.headers["Accept"]`
`json=` | compact, UTF-8 | with spaces, escaped | compact, UTF-8 | `json_dumps=json.dumps`
text without a charset | UTF-8 | Latin-1 if `text/*`, else guessed | UTF-8 | `default_encoding=`
`raise_for_status()` | raises unless 2xx, returns the response | raises for 4xx and 5xx, returns None | as httpx | `if response.is_error:`
`response.url` | `httpx.URL` | `str` | `towline.URL` | `str(response.url)`
`response.iter_lines()` | `str` | `bytes` | `str` | `iter_bytes()`
`response.elapsed` | to the end of the body | to the end of the head | to the end of the body | `response.timings`
stream read again after iteration | `StreamConsumed` | `StreamConsumedError` | an iteration gives nothing; `read()` raises `StreamConsumed` | `read()` first
event hooks | `request` and `response`, for each hop | `response`, for each hop | as httpx | `event_hooks=`
error of `response.json()` | `json.JSONDecodeError` | also a `RequestException` | also a `towline.Error` | `except ValueError`
URL without http:// or https:// | `UnsupportedProtocol` | `MissingSchema`, `InvalidSchema` | `UnsupportedProtocol`, an `InvalidURL` and a `TransportError` | prefix `https://`
port above 65535 | `ConnectError` | `InvalidURL` | `InvalidURL` | `except ConnectionError` does not catch it
proxy that is away | `ConnectError` | `ProxyError` | `ConnectError` | catch `ConnectionError`
closed client | `RuntimeError` | works | `ClientClosed`, a `RuntimeError` | make a new client
proxy | `proxy=`, `mounts=`, the environment | `proxies=`, the environment | as httpx | `Client(proxy=...)`
netrc | `NetRCAuth()` | read for each call without `auth=` | `NetRCAuth()` | `auth=towline.NetRCAuth()`
trusted certificates | certifi; `SSL_CERT_FILE`, `SSL_CERT_DIR` | certifi; `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE` | the system's; `SSL_CERT_FILE`, `SSL_CERT_DIR` | `verify=` a path, or `towline.TLS(trust="certifi")`
certificate with a common name only | accepted | refused | refused (RFC 9110 4.3.4) | `verify=` an `ssl.SSLContext` that accepts it
HTTP/2 | off; with the package h2 | none | off; no package | `http2=True`
TCP keep-alive | off | off | after 60 s | `tcp_keepalive=None`
streamed upload and an early response | sends everything first | sends everything first | goes on while you read | read to the end
"""
# Arguments of the constructor and of methods that are missing here, or have another default.
ARGUMENTS = {
    "httpx.Client": """
timeout: `Timeout()`, see above
limits: `Limits()`, see above
""",
    "httpx.HTTPTransport": """
socket_options: `tcp_keepalive=(60, 30, 5)`
limits retries: as of `Client`
""",
    "requests.Session.request": """
allow_redirects: `follow_redirects=`
proxies: `Client(proxy=...)`, or `mounts=` by URL
hooks: `event_hooks=` of the client
stream: `with client.stream(method, url) as response:`
verify cert: of the client, or of `towline.get(...)`
timeout auth: None means none; leave the argument out for the client's
""",
}
MODULES = """
## Modules of requests

| module | here |
|---|---|
| `exceptions` | see [above](#requestsexceptions) |
| `auth` | `HTTPBasicAuth`, `HTTPDigestAuth` and `AuthBase`; for `HTTPProxyAuth` write `Proxy(url, auth=(user, password))` |
| `cookies` | `RequestsCookieJar` and `cookiejar_from_dict` are `Cookies`; `CookieConflictError` is `CookieConflict` |
| `structures` | `CaseInsensitiveDict` is `Headers`, whose values are `str` |
| `models`, `sessions`, `api`, `status_codes` | the names that `towline` has |
| `utils`, `compat` | the functions of `urllib.parse`, `cookiejar_from_dict` and `dict_from_cookiejar` |
| `adapters`, `packages`, `certs`, `hooks` | none: there is no urllib3. Each name raises an error that says what to write |

`import towline as requests` does not make `from requests.exceptions import Timeout` work: change that line to
`Timeout = towline.exceptions.Timeout`. `requests.codes` has the names of requests that are words, such as `ok` and `server_error`.
"""


def rows(table: str) -> dict[str, str]:
    """Name -> the name here."""
    found = {}
    for line in TABLES[table].strip().splitlines():
        names, _, here = line.partition(": ") if ": " in line else line.partition(":")
        found.update(dict.fromkeys(names.split(), here.strip()))
    return found


def differences() -> dict[str, list[str]]:
    """Subject -> httpx, requests, here, what to write."""
    lines = [line.split("|") for line in DIFFERENCES.strip().splitlines()]
    return {subject.strip(): [cell.strip() for cell in cells] for subject, *cells in lines}


def arguments(method: str) -> set[str]:
    """Names of the arguments that differ."""
    return {
        name for line in ARGUMENTS[method].strip().splitlines() for name in line.partition(":")[0].split()
    }


def page() -> str:
    parts = [HEAD, DIFFERENCES_HEAD.format(versions=VERSIONS)]
    parts += [f"| {subject} | {' | '.join(cells)} |\n" for subject, cells in differences().items()]
    parts.append(
        "\nAdditional: `read(n)`, `readinto`, `buffered`, `iter_sse`, `iter_ndjson`, `trailers`, `timings`, `reused`, `websocket()`.\n"
    )
    for method, lines in ARGUMENTS.items():
        parts.append(f"\n| argument of {method} | here |\n|---|---|\n")
        for line in lines.strip().splitlines():
            names, _, here = line.partition(": ")
            parts.append(f"| {', '.join(f'`{name}`' for name in names.split())} | {here} |\n")
    for table in TABLES:
        lines = TABLES[table].strip().splitlines()
        if table == "requests.Session":
            parts.append(MODULES)
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
