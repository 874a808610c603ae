"""The native module, as Python sees it. Held against the real one by mypy.stubtest."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from types import GenericAlias
from typing import Any, Generic, TypeAlias, TypeVar, final

from typing_extensions import Self, disjoint_base

from .config import Bind, ServerConfig

__all__ = [
    "VERSION",
    "AsgiServer",
    "AsyncClientCore",
    "AsyncPool",
    "AsyncReply",
    "AsyncSocket",
    "Call",
    "ClientCore",
    "Decoder",
    "Handshake",
    "LineParser",
    "PoolProbe",
    "Reply",
    "ResponseCore",
    "ServerSentEvent",
    "SharedStats",
    "Slot",
    "SseParser",
    "SyncPool",
    "SyncReply",
    "SyncSocket",
    "WsgiServer",
    "dump_json",
    "load_json",
    "load_main",
    "netem_main",
    "open_listeners",
    "open_stream",
    "responder_main",
    "test_certificate",
]

VERSION: str

@final
class SharedStats:
    """One slot per worker, in memory that forked processes share."""
    def __new__(cls, slots: int) -> SharedStats: ...
    def __len__(self) -> int: ...
    def slot(self, index: int) -> Slot: ...

@final
class Slot:
    """Counters and heartbeats of one worker. Times are nanoseconds of `time.monotonic_ns()`."""
    @property
    def index(self) -> int: ...
    @property
    def heartbeat(self) -> int:
        """Time of the last heartbeat of the native thread."""
    @property
    def last_turn(self) -> int:
        """Time of the last turn of the event loop."""
    @property
    def requests(self) -> int:
        """Completed requests of all workers that have had this slot."""
    @property
    def in_flight(self) -> int: ...
    def begin(self, pid: int, again: bool) -> None:
        """Assign the slot to a worker: counters continue, gauges are reset. `again`: it replaces another."""
    def end(self) -> None:
        """Release the slot after the worker has ended."""
    def turned(self) -> None: ...
    def start_heartbeat(self, period: float) -> None:
        """Write heartbeats every `period` seconds from a native thread. Call it after the fork."""

_Log: TypeAlias = Callable[[int, str, BaseException | None], None]

def dump_json(value: Any, /) -> bytes:
    """As `json.dumps` without spaces and escapes that nobody needs, in UTF-8; NaN and infinities raise ValueError."""

def load_json(document: bytes | str, /) -> Any:
    """As `json.loads`."""

def open_stream(
    client: ClientCore, method: object, url: object, arguments: dict[str, Any], /
) -> tuple[Any, bool] | None:
    """The response to a plain call, its body unread, and whether `_finish_in_python` would be asked. None: not plain."""

def load_main(arguments: Sequence[str]) -> int:
    """All of the load generator's program, from arguments to the exit status; it has Ctrl-C to itself."""

def open_listeners(address: str, backlog: int) -> list[int]:
    """Open the listening sockets of `host:port`, `[v6]:port`, `:port`, `unix:PATH` or `fd://N`; returns descriptors.

    A host name gives one for each of its addresses. Raises OSError with the address in the message.
    """

@final
class AsgiServer:
    """Serves one ASGI application: `loop.add_reader(server.fileno(), server.turn)`, once."""
    def __new__(
        cls,
        app: Any,
        loop: AbstractEventLoop,
        config: ServerConfig,
        binds: Sequence[Bind],
        *,
        state: dict[str, Any] | None = None,
        slot: Slot | None = None,
        log: _Log | None = None,
    ) -> AsgiServer: ...
    @property
    def in_flight(self) -> int:
        """Number of requests in the application."""
    @property
    def connections(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def addresses(self) -> list[str]: ...
    def fileno(self) -> int: ...
    def turn(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self) -> None:
        """Close idle connections now, the others after their requests in flight."""
    def cancel_all(self) -> None:
        """Disconnect and cancel requests in flight, and close all sockets."""
    def reopen_logs(self) -> None:
        """Reopen the access log's file before its next line, after rotation."""
    def close(self) -> None: ...

@final
class WsgiServer:
    """Serves one WSGI application: `run()` blocks with the GIL released until everything is drained, or until `stop()`."""
    def __new__(
        cls,
        app: Any,
        config: ServerConfig,
        binds: Sequence[Bind],
        *,
        slot: Slot | None = None,
        log: _Log | None = None,
    ) -> WsgiServer: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def addresses(self) -> list[str]: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self) -> None: ...
    def reopen_logs(self) -> None:
        """Reopen the access log's file before its next line, after rotation."""

# --- the client ---------------------------------------------------------------------------------

_T_co = TypeVar("_T_co", covariant=True)
_RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
# connect, read, write, pool, total: seconds, None: no limit.
_Timeout: TypeAlias = tuple[float | None, float | None, float | None, float | None, float | None]

@final
class Call(Generic[_T_co]):
    """What an asynchronous method returns: an awaitable that has begun already, and a coroutine to those who ask.

    Dropped without having been awaited, it is cancelled silently.
    """
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...
    def __await__(self) -> Generator[Any, None, _T_co]: ...
    def send(self, value: Any, /) -> Any: ...
    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any: ...
    def close(self) -> None: ...

@disjoint_base
class Reply:
    """The head of a response as it was received, and the facts of its exchange. Nothing is decoded."""
    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> bytes: ...
    @property
    def version(self) -> str:
        """`HTTP/1.1`"""
    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """In the order and the case of the wire. A new list each time."""
    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """Empty before the body's end."""
    @property
    def reused(self) -> bool:
        """The connection had carried another request before."""
    @property
    def buffered(self) -> int:
        """Bytes of the body that are held and not yet read."""
    @property
    def timings(self) -> dict[str, float]:
        """Seconds: `queue`, `dns`, `connect`, `tls`, `first_byte`, `total`; a phase that did not happen is absent."""
    @property
    def local_address(self) -> tuple[str, int] | str | None: ...
    @property
    def remote_address(self) -> tuple[str, int] | str | None: ...
    @property
    def tls(self) -> dict[str, Any] | None:
        """`version`, `cipher`, `alpn`, `peer_certificate` (DER); None in the clear."""

@final
class AsyncReply(Reply):
    """A reply whose body is pulled in an event loop."""
    def read(self, n: int = ..., /) -> Call[bytes]:
        """At least one byte and at most `n` (-1: what is there), `b""` at the end of the body."""
    def readinto(self, buffer: Any, /) -> Call[int]:
        """The same into a writable buffer; 0 at the end."""
    def read_all(
        self, *, decode: bool = True, max_size: int | None = None, max_decoded: int | None = None
    ) -> Call[bytes]:
        """The rest of the body, its Content-Encoding undone unless told otherwise."""
    def close(self) -> None:
        """Gives the connection back when the rest of the body is small and there, closes it otherwise."""
    @property
    def closed(self) -> bool: ...

@final
class SyncReply(Reply):
    """A reply whose body is pulled on the calling thread. An iterator of its pieces and a context manager, too."""
    def read(self, n: int = ..., /) -> bytes:
        """At least one byte and at most `n` (-1: what is there), `b""` at the end of the body."""
    def readinto(self, buffer: Any, /) -> int:
        """The same into a writable buffer; 0 at the end."""
    def read_all(
        self, *, decode: bool = True, max_size: int | None = None, max_decoded: int | None = None
    ) -> bytes:
        """The rest of the body, its Content-Encoding undone unless told otherwise."""
    def close(self) -> None:
        """Gives the connection back when the rest of the body is small and there, closes it otherwise."""
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...

@disjoint_base
class AsyncPool:
    """Connections of one client, per event loop that uses it. `options`: `towline.client.options.PoolOptions`."""
    def __new__(cls, options: Any) -> AsyncPool: ...
    def exchange(
        self,
        method: bytes,
        scheme: bytes,
        host: bytes,
        port: int | None,
        target: bytes,
        headers: _RawHeaders,
        body: Any = None,
        *,
        timeout: _Timeout | None = None,
        sni: str | None = None,
        stale: str | None = None,
        on_informational: Callable[[int, list[tuple[bytes, bytes]]], None] | None = None,
    ) -> Call[AsyncReply]:
        """One request, one response head. No redirects, no cookies, no decoding, no headers added but the framing's.

        `body`: None, bytes, an iterator or async iterator of bytes, or a binary file; its framing is the headers'
        Content-Length, else chunked. `timeout`, `stale` ("never", "idempotent", "any") None: the pool's.
        """
    def open_websocket(
        self,
        method: bytes,
        scheme: bytes,
        host: bytes,
        port: int | None,
        target: bytes,
        headers: _RawHeaders,
        websocket: Any,
        *,
        timeout: _Timeout | None = None,
        sni: str | None = None,
        stale: str | None = None,
    ) -> Call[Handshake]:
        """Asks for a WebSocket. `websocket`: a `towline.client.websocket.WebSocketOptions`; the handshake's fields are added."""
    def prewarm(self, scheme: bytes, host: bytes, port: int | None, n: int) -> Call[int]:
        """Opens connections until `n` are idle; how many are."""
    def pool_status(self) -> dict[str, int]: ...
    def aclose(self) -> Call[None]:
        """Closes idle connections now and the others when their calls have ended; waits for these."""
    @property
    def closed(self) -> bool: ...

@final
class Handshake:
    """What became of a request for a WebSocket. `content`: of an answer that refuses it, at most the first 64 KiB."""
    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> bytes: ...
    @property
    def version(self) -> str: ...
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def content(self) -> bytes: ...
    @property
    def socket(self) -> Any:
        """An `AsyncSocket` or a `SyncSocket`; None where it was refused."""

@final
class AsyncSocket:
    """A WebSocket of an event loop. Dropping it ends it without a word."""
    def receive(self, timeout: float | None = None, /) -> Call[str | bytes]:
        """The next message. Raises WebSocketClosed, ReadTimeout, UsageError where another receives."""
    def send(self, data: str | bytes | bytearray | memoryview, /) -> Call[None]: ...
    def ping(self, data: bytes, /) -> Call[None]: ...
    def close(self, code: int, reason: str, /) -> Call[None]:
        """Begins the closing handshake; awaiting waits for its end."""
    def abort(self) -> None:
        """Ends it without a word."""
    @property
    def subprotocol(self) -> bytes | None: ...
    @property
    def closed(self) -> tuple[int, str] | None:
        """Code and reason, once the messages before have been received."""

@final
class SyncSocket:
    """The same for threads."""
    def receive(self, timeout: float | None = None, /) -> str | bytes: ...
    def send(self, data: str | bytes | bytearray | memoryview, /) -> None: ...
    def ping(self, data: bytes, /) -> None: ...
    def close(self, code: int, reason: str, /) -> None: ...
    def abort(self) -> None: ...
    @property
    def subprotocol(self) -> bytes | None: ...
    @property
    def closed(self) -> tuple[int, str] | None: ...

@disjoint_base
class SyncPool:
    """Connections of one client, shared by all threads. `options`: `towline.client.options.PoolOptions`."""
    def __new__(cls, options: Any) -> SyncPool: ...
    def exchange(
        self,
        method: bytes,
        scheme: bytes,
        host: bytes,
        port: int | None,
        target: bytes,
        headers: _RawHeaders,
        body: Any = None,
        *,
        timeout: _Timeout | None = None,
        sni: str | None = None,
        stale: str | None = None,
        on_informational: Callable[[int, list[tuple[bytes, bytes]]], None] | None = None,
    ) -> SyncReply:
        """One request, one response head. No redirects, no cookies, no decoding, no headers added but the framing's.

        `body`: None, bytes, an iterator of bytes, or a binary file; its framing is the headers'
        Content-Length, else chunked. `timeout`, `stale` ("never", "idempotent", "any") None: the pool's.
        """
    def open_websocket(
        self,
        method: bytes,
        scheme: bytes,
        host: bytes,
        port: int | None,
        target: bytes,
        headers: _RawHeaders,
        websocket: Any,
        *,
        timeout: _Timeout | None = None,
        sni: str | None = None,
        stale: str | None = None,
    ) -> Handshake:
        """As `AsyncPool.open_websocket`, on a connection of its own."""
    def prewarm(self, scheme: bytes, host: bytes, port: int | None, n: int) -> int:
        """Opens connections until `n` are idle; how many are."""
    def pool_status(self) -> dict[str, int]: ...
    def close(self) -> None:
        """Closes idle connections now and the others when their calls have ended."""
    @property
    def closed(self) -> bool: ...

@disjoint_base
class AsyncClientCore:
    """The native half of AsyncClient."""
    def __new__(cls, *args: Any, **kwargs: Any) -> AsyncClientCore: ...
    def _configure(
        self,
        pool: AsyncPool,
        response: type[ResponseCore],
        *,
        base_url: str = "",
        headers: _RawHeaders | None = None,
        timeout: _Timeout | None = None,
        follow_redirects: bool = False,
        retry_statuses: Sequence[int] = ...,
        max_response_size: int | None = None,
        max_decompressed_size: int | None = None,
        default_encoding: str = "utf-8",
        json_loads: Callable[[Any], Any] | None = None,
        json_dumps: Callable[[Any], bytes | str] | None = None,
    ) -> None:
        """Before anything else. `headers`: the client's own, without Host, as they shall leave."""
    _pool: AsyncPool
    _fast_path: bool
    """Nothing of the client asks for Python: no auth, hooks, mounts, foreign transport, default params. Initially False."""
    _cookies: Any
    """None or a jar; a true one sends every request through `_slow_request`. Set-Cookie goes to `_finish_in_python` either way."""
    def _set_headers(self, headers: _RawHeaders) -> None:
        """The client's own headers have changed."""
    # To be defined by the subclass:
    # async def _slow_request(self, method: str, url: Any, **kwargs: Any) -> ResponseCore
    # async def _finish_in_python(self, response: ResponseCore) -> ResponseCore   (redirect, Set-Cookie, status to retry)
    # def _origin_pool(self, scheme: str, host: str, port: int) -> AsyncPool | None: which pool carries exchanges with this
    #     origin (asked once per origin); None: `_slow_request` takes all of them
    def request(self, method: str, url: Any, **kwargs: Any) -> Call[Any]: ...
    def get(self, url: Any, **kwargs: Any) -> Call[Any]: ...
    def head(self, url: Any, **kwargs: Any) -> Call[Any]: ...
    def options(self, url: Any, **kwargs: Any) -> Call[Any]: ...
    def delete(self, url: Any, **kwargs: Any) -> Call[Any]: ...
    def post(self, url: Any, **kwargs: Any) -> Call[Any]: ...
    def put(self, url: Any, **kwargs: Any) -> Call[Any]: ...
    def patch(self, url: Any, **kwargs: Any) -> Call[Any]: ...

@disjoint_base
class ClientCore:
    """The native half of Client."""
    def __new__(cls, *args: Any, **kwargs: Any) -> ClientCore: ...
    def _configure(
        self,
        pool: SyncPool,
        response: type[ResponseCore],
        *,
        base_url: str = "",
        headers: _RawHeaders | None = None,
        timeout: _Timeout | None = None,
        follow_redirects: bool = False,
        retry_statuses: Sequence[int] = ...,
        max_response_size: int | None = None,
        max_decompressed_size: int | None = None,
        default_encoding: str = "utf-8",
        json_loads: Callable[[Any], Any] | None = None,
        json_dumps: Callable[[Any], bytes | str] | None = None,
    ) -> None:
        """Before anything else. `headers`: the client's own, without Host, as they shall leave."""
    _pool: SyncPool
    _fast_path: bool
    """Nothing of the client asks for Python: no auth, hooks, mounts, foreign transport, default params. Initially False."""
    _cookies: Any
    """None or a jar; a true one sends every request through `_slow_request`. Set-Cookie goes to `_finish_in_python` either way."""
    def _set_headers(self, headers: _RawHeaders) -> None:
        """The client's own headers have changed."""
    # To be defined by the subclass:
    # def _slow_request(self, method: str, url: Any, **kwargs: Any) -> ResponseCore
    # def _finish_in_python(self, response: ResponseCore) -> ResponseCore   (redirect, Set-Cookie, status to retry)
    # def _origin_pool(self, scheme: str, host: str, port: int) -> SyncPool | None: which pool carries exchanges with this
    #     origin (asked once per origin); None: `_slow_request` takes all of them
    def request(self, method: str, url: Any, **kwargs: Any) -> Any: ...
    def get(self, url: Any, **kwargs: Any) -> Any: ...
    def head(self, url: Any, **kwargs: Any) -> Any: ...
    def options(self, url: Any, **kwargs: Any) -> Any: ...
    def delete(self, url: Any, **kwargs: Any) -> Any: ...
    def post(self, url: Any, **kwargs: Any) -> Any: ...
    def put(self, url: Any, **kwargs: Any) -> Any: ...
    def patch(self, url: Any, **kwargs: Any) -> Any: ...

@disjoint_base
class ResponseCore:
    """The native half of Response. Natively made ones skip `__init__`: a subclass gives its attributes class defaults."""
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def _init_head(
        self,
        status: int,
        headers: _RawHeaders | None = None,
        *,
        content: bytes | None = None,
        version: str = "HTTP/1.1",
        reason: bytes | None = None,
    ) -> None:
        """For a response that Python makes (mock and application transports, the user)."""
    def _set_reply(self, reply: Reply) -> None:
        """Takes the head of `reply` and keeps it as `_reply`; the content is unread."""
    @property
    def status_code(self) -> int: ...
    @property
    def http_version(self) -> str: ...
    @property
    def reason_phrase(self) -> str: ...
    @property
    def _raw_headers(self) -> list[tuple[bytes, bytes]]:
        """A new list each time."""
    def _header(self, name: str, /) -> str | None:
        """All values of that name joined by a comma (latin-1), without making a Headers of them."""
    @property
    def content(self) -> bytes:
        """Calls `_not_read()`, which raises, when it is not there."""
    @property
    def text(self) -> str:
        """UTF-8 natively; any other encoding through `_decode_text()` of the subclass."""
    def json(self, **kwargs: Any) -> Any: ...
    @property
    def is_informational(self) -> bool: ...
    @property
    def is_success(self) -> bool: ...
    @property
    def is_redirect(self) -> bool: ...
    @property
    def is_client_error(self) -> bool: ...
    @property
    def is_server_error(self) -> bool: ...
    @property
    def is_error(self) -> bool: ...
    @property
    def elapsed(self) -> timedelta:
        """From the call to the end of the body; RuntimeError before."""
    @property
    def timings(self) -> dict[str, float]: ...
    @property
    def reused(self) -> bool: ...
    @property
    def buffered(self) -> int: ...
    _content: bytes | None
    _encoding: str | None
    """What the user has chosen, above charset and default."""
    _default_encoding: Any
    _loads: Callable[[Any], Any] | None
    _elapsed: float | None
    _reply: Reply | None
    _client: Any
    """The core that made it."""
    _sent: tuple[str, Any, dict[str, Any] | None] | None
    """Method, URL and arguments of a plain exchange, from which `request` is made when asked for."""

@final
class Decoder:
    """Undoes the codings of a Content-Encoding (gzip, deflate, br, zstd; at most five), pull-based.

    Decodes only what `read` asks for. Unknown names and `identity` are passed over; what stands behind the
    coded data is dropped; a body cut short is an error. Raises DecodingError and DecompressionLimit.
    """
    def __new__(cls, codings: bytes, max_size: int | None = None) -> Decoder: ...
    @property
    def active(self) -> bool:
        """Whether there is anything to undo."""
    def feed(self, data: bytes) -> None:
        """Give the next piece, when `read` has nothing more. RuntimeError before that."""
    def read(self, n: int) -> bytes:
        """At most `n` decoded bytes. Nothing: it needs another piece, or the body is over."""
    def finish(self) -> None:
        """The body is over and `read` gives nothing more: raises DecodingError unless it was whole."""

@final
class LineParser:
    """Lines of a UTF-8 stream, ended by CR, LF or CRLF wherever it is cut; malformed bytes become U+FFFD.

    A line longer than `max_bytes` is a DecodingError, raised after the lines before it were given.
    """
    def __new__(cls, max_bytes: int) -> LineParser: ...
    def feed(self, data: bytes) -> list[str]: ...
    def finish(self) -> list[str]:
        """The last line, if it had no end."""

@final
class SseParser:
    """The events of a stream (WHATWG HTML 9.2.6); one longer than `max_bytes` is a DecodingError, as for lines."""
    def __new__(cls, max_bytes: int) -> SseParser: ...
    def feed(self, data: bytes) -> list[ServerSentEvent]: ...
    def finish(self) -> list[ServerSentEvent]:
        """Nothing: an event that the end cuts off is dropped."""
    @property
    def last_event_id(self) -> str:
        """What to send as Last-Event-ID when connecting again."""

@final
class ServerSentEvent:
    """One event: its type (`message` unless the server named one), data, last event id, reconnection time."""
    def __new__(
        cls,
        event: str | None = None,
        data: str | None = None,
        id: str | None = None,
        retry: int | None = None,
    ) -> ServerSentEvent: ...
    @property
    def event(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def retry(self) -> int | None:
        """Milliseconds, if a `retry` field has come since the event before."""
    def json(self) -> Any:
        """The data as JSON. Raises ValueError."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PoolProbe:
    """The client's pool by itself, full of idle connections that are no sockets: for the bench."""
    def __new__(cls, connections: int, origins: int) -> PoolProbe: ...
    def assign(self, requests: int) -> float:
        """Seconds in which each request gets a connection; ValueError when there were too few."""
    def acquire(self, times: int) -> float:
        """Seconds in which one connection is taken and given back, the mean of `times`."""

def responder_main(arguments: Sequence[str]) -> int:
    """`towline-responder` with these arguments, until SIGTERM, SIGINT or the end of a piped stdin; the exit status."""

def test_certificate(names: Sequence[str]) -> tuple[str, str, str]:
    """Authority, certificate and key, PEM, made anew for host names and addresses. Raises ValueError.

    The certificate is signed by the authority, for ever as good; the key is ECDSA P-256 in PKCS #8.
    """

def netem_main(arguments: Sequence[str]) -> int:
    """Runs the network emulator (`--help`) until it is told to end, as `responder_main`; returns the exit status."""
