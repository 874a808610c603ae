"""Types of the native module. `mypy.stubtest` compares them with the module."""

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import timedelta
from os import PathLike
from types import GenericAlias
from typing import Any, Generic, TypeAlias, TypeVar, final

from typing_extensions import Self, Unpack, disjoint_base

from .client.call_options import CallOptions
from .client.response import Response
from .client.url import URL
from .config import Bind, ServerConfig

__all__ = [
    "IDEMPOTENT_METHODS",
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
    "PoolBench",
    "Reply",
    "ResponseCore",
    "ServerSentEvent",
    "SharedStats",
    "Slot",
    "SseParser",
    "StateLog",
    "StateStore",
    "SyncPool",
    "SyncReply",
    "SyncSocket",
    "TicketStore",
    "WsgiServer",
    "dump_json",
    "load_json",
    "load_main",
    "load_options",
    "netem_main",
    "observe_calls",
    "open_listeners",
    "open_output",
    "open_stream",
    "resident_bytes",
    "responder_main",
    "shared_memory",
    "take_connection_events",
    "test_certificate",
]

IDEMPOTENT_METHODS: list[str]
VERSION: str

@final
class SharedStats:
    """One slot per worker, in memory that forked processes share, or those that inherit `descriptors` of `shared_memory()`."""
    def __new__(cls, slots: int, descriptors: Sequence[int] | None = None) -> SharedStats: ...
    def __len__(self) -> int: ...
    def slot(self, index: int) -> Slot: ...
    def totals(self) -> tuple[list[tuple[str, int]], list[tuple[float, float, int]], int, int]:
        """Sums over all workers.

        Requests by status (`200`, `4xx`, `none`); request durations by bucket: lower and upper bound in seconds, count;
        requests in flight; open connections.
        """
    def workers_wanted(self, count: int) -> None:
        """Set the configured number of workers."""
    def begin_stopping(self) -> None:
        """Let the readiness checks of all workers fail."""
    def worker_replaced(self) -> None:
        """Count a worker that has replaced another and is ready."""
    def worker_boot_failed(self) -> None:
        """Count a worker that ended before it was ready."""
    def worker_died(self) -> None:
        """Count a worker that ended without being asked to."""
    def acme_order_failed(self) -> None:
        """Count an ACME order that has failed."""
    def certificates_renewed(self, files: list[str]) -> None:
        """Note in the slot of each worker when the first of these certificates expires."""

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
    def connections(self) -> int:
        """Connections accepted by all workers that have had this slot."""
    @property
    def in_flight(self) -> int: ...
    def begin(self, pid: int) -> None:
        """Assign the slot to a worker: counters continue, gauges are reset."""
    def end(self) -> None:
        """Release the slot after the worker has ended."""
    def turned(self) -> None: ...
    def start_heartbeat(self, period: float, others: Sequence[Slot] = ...) -> None:
        """Write heartbeats every `period` seconds into this slot and `others`, from a native thread. Call it after the fork."""
    def start_forwarding(self, binds: Sequence[Bind]) -> None:
        """Forward what arrives at the UDP sockets to workers that are ready, from a native thread. Call it after the fork."""
    def stop_forwarding(self) -> None:
        """End that thread, before a server reads the sockets."""

@final
class TicketStore:
    """Tickets of TLS sessions over QUIC, each valid once, in memory that forked processes share, or those that inherit its `descriptor`."""
    def __new__(cls, descriptor: int | None = None, *, inheritable: bool = False) -> TicketStore: ...
    @property
    def descriptor(self) -> int | None: ...

_Log: TypeAlias = Callable[[int, str, BaseException | None], None]

def dump_json(value: Any, /) -> bytes:
    """As `json.dumps`, without spaces and unnecessary escapes, in UTF-8. NaN and infinities raise ValueError."""

def load_json(document: bytes | str, /) -> Any:
    """As `json.loads`."""

def open_stream(
    client: ClientCore, method: object, url: object, arguments: dict[str, Any], /
) -> tuple[Any, bool] | None:
    """Sends a request on the fast path. Returns the response, its body unread, and whether Python has to handle it.

    None: the call needs `_slow_request`.
    """

def load_main(arguments: Sequence[str]) -> int:
    """Runs the load generator with these arguments and returns its exit status. It handles SIGINT itself."""

def load_options() -> list[tuple[str, str, str]]:
    """The options of the load generator: name, placeholder of the value (empty: a switch) and help."""

def open_output(path: str | PathLike[str], mode: int = 0o666, /) -> int:
    """Open a file to replace its content; returns a descriptor.

    In a directory that all users may write to, the file or link of another user is refused (PermissionError).
    """

def shared_memory() -> int:
    """Return a descriptor of memory that processes which inherit it can share."""

def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended or the figure is not available."""

def open_listeners(address: str, backlog: int, unix_mode: int | None = None) -> list[int]:
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
    def accept_in(self, epoll: int, reported_as: int) -> None:
        """Have the event loop's epoll report new connections as if `reported_as` were readable; its reader is `accept`."""
    def accept(self) -> None: ...
    def turn(self) -> None: ...
    def flush_gathered(self) -> None:
        """Send what requests have sent since the last turn."""
    def log_refusals(self) -> None:
        """Write the lines about refused requests to the server log."""
    def record_loop_lag(self, seconds: float) -> None:
        """Record the delay of a timer of the event loop, if there are metrics."""
    def fail_readiness(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self, *, close_idle: bool = False) -> None:
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
    def fail_readiness(self) -> None: ...
    def stop_listening(self) -> None: ...
    def drain(self, *, close_idle: bool = False) -> None: ...
    def reopen_logs(self) -> None:
        """Reopen the access log's file before its next line, after rotation."""

# --- the client ---------------------------------------------------------------------------------

_T_co = TypeVar("_T_co", covariant=True)
_RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
# connect, read, write, pool, total: seconds, None: no limit.
_Timeout: TypeAlias = tuple[float | None, float | None, float | None, float | None, float | None]

@final
class Call(Generic[_T_co]):
    """Returned by asynchronous methods: an awaitable with the methods of a coroutine. The operation has started already.

    An awaitable that is dropped without being awaited is cancelled silently.
    """
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...
    def __await__(self) -> Generator[Any, None, _T_co]: ...
    def send(self, value: Any, /) -> Any: ...
    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any: ...
    def close(self) -> None: ...

@disjoint_base
class Reply:
    """The head of a response as received, and data about the call. Nothing is decoded."""
    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> bytes: ...
    @property
    def version(self) -> str:
        """`HTTP/1.1`"""
    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """In the order and case of the wire. A new list each time."""
    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """Empty before the end of the body."""
    @property
    def reused(self) -> bool:
        """The connection had carried another request before."""
    @property
    def early_data(self) -> bool:
        """The request was sent in early data (0-RTT) that the server has accepted."""
    @property
    def buffered(self) -> int:
        """Bytes of the body received and not yet read."""
    @property
    def timings(self) -> dict[str, float]:
        """Seconds: `queue`, `dns`, `connect`, `tls`, `first_byte`, `total`. A phase that did not take place is absent."""
    @property
    def local_address(self) -> tuple[str, int] | str | None: ...
    @property
    def remote_address(self) -> tuple[str, int] | str | None: ...
    @property
    def tls(self) -> dict[str, Any] | None:
        """`version`, `cipher`, `alpn`, `peer_certificate` (DER); None without TLS."""

@final
class AsyncReply(Reply):
    """A reply whose body is read in an event loop."""
    def read(self, n: int = ..., /) -> Call[bytes]:
        """Returns at least one byte and at most `n` (-1: as available), `b""` at the end of the body."""
    def readinto(self, buffer: Any, /) -> Call[int]:
        """Reads into a writable buffer. Returns the number of bytes, 0 at the end."""
    def read_all(
        self, *, decode: bool = True, max_size: int | None = None, max_decoded: int | None = None
    ) -> Call[bytes]:
        """Reads the rest of the body. `decode`: decodes its Content-Encoding. Sizes are in bytes, None: unlimited."""
    def close(self) -> Awaitable[None] | None:
        """Releases the connection if the rest of the body is small and has been received, otherwise closes it.

        Returns an awaitable of the end of the upload if the request body is still being sent, which ends now.
        """
    @property
    def closed(self) -> bool: ...

@final
class SyncReply(Reply):
    """A reply whose body is read on the calling thread. Also an iterator over its pieces, and a context manager."""
    def read(self, n: int = ..., /) -> bytes:
        """Returns at least one byte and at most `n` (-1: as available), `b""` at the end of the body."""
    def readinto(self, buffer: Any, /) -> int:
        """Reads into a writable buffer. Returns the number of bytes, 0 at the end."""
    def read_all(
        self, *, decode: bool = True, max_size: int | None = None, max_decoded: int | None = None
    ) -> bytes:
        """Reads the rest of the body. `decode`: decodes its Content-Encoding. Sizes are in bytes, None: unlimited."""
    def close(self) -> None:
        """Releases the connection if the rest of the body is small and has been received, otherwise closes it."""
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...

_ReplyT = TypeVar("_ReplyT")
_HandshakeT = TypeVar("_HandshakeT")
_CountT = TypeVar("_CountT")

class _Pool(Generic[_ReplyT, _HandshakeT, _CountT]):
    def __new__(cls, options: Any) -> Self: ...
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
    ) -> _ReplyT:
        """Sends a request and returns the response head, without redirects, cookies and decoding. Adds only framing headers.

        `body`: None, bytes, an iterator of bytes (of AsyncPool also an async one), or a binary file. Framing: the Content-Length in
        `headers`, else chunked. `timeout` and `stale` ("never", "idempotent", "any") default to those of the pool.
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
    ) -> _HandshakeT:
        """Sends the opening handshake of a WebSocket. `websocket`: a `WebSocketOptions`. Adds the headers of the handshake.

        A SyncPool opens a connection that no other call uses.
        """
    def prewarm(self, scheme: bytes, host: bytes, port: int | None, n: int) -> _CountT:
        """Opens connections until `n` are idle. Returns how many are."""
    def pool_status(self) -> dict[str, int]: ...
    @property
    def closed(self) -> bool: ...

@disjoint_base
class AsyncPool(_Pool[Call[AsyncReply], Call[Handshake], Call[int]]):
    """The connections of an asynchronous client, separate for each event loop. `options`: a `PoolOptions`."""
    def aclose(self) -> Call[None]:
        """Closes idle connections now, and the others when their calls have ended; waits for them."""

@disjoint_base
class SyncPool(_Pool[SyncReply, Handshake, int]):
    """The connections of a synchronous client, shared by all threads. `options`: a `PoolOptions`."""
    def close(self) -> None:
        """Closes idle connections now, and the others when their calls have ended."""

@final
class Handshake:
    """The response to an opening handshake. `content`: at most the first 64 KiB of a response that rejects it."""
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
        """An `AsyncSocket` or a `SyncSocket`; None if the handshake was rejected."""

@final
class AsyncSocket:
    """A WebSocket in an event loop. Dropping it aborts the connection."""
    def receive(self, timeout: float | None = None, /) -> Call[str | bytes]:
        """Returns the next message. Raises WebSocketClosed, ReadTimeout, or UsageError if another task is receiving."""
    def send(self, data: str | bytes | bytearray | memoryview, /) -> Call[None]: ...
    def ping(self, data: bytes, /) -> Call[None]: ...
    def close(self, code: int, reason: str, /) -> Call[None]:
        """Starts the closing handshake. Awaiting waits for its end."""
    def abort(self) -> None:
        """Closes the connection without a closing handshake."""
    @property
    def subprotocol(self) -> bytes | None: ...
    @property
    def closed(self) -> tuple[int, str] | None:
        """Code and reason, once all messages have been received."""

@final
class SyncSocket:
    """A WebSocket for threads."""
    def receive(self, timeout: float | None = None, /) -> str | bytes: ...
    def send(self, data: str | bytes | bytearray | memoryview, /) -> None: ...
    def ping(self, data: bytes, /) -> None: ...
    def close(self, code: int, reason: str, /) -> None: ...
    def abort(self) -> None: ...
    @property
    def subprotocol(self) -> bytes | None: ...
    @property
    def closed(self) -> tuple[int, str] | None: ...

_PoolT = TypeVar("_PoolT")
_ResultT = TypeVar("_ResultT")

class _ClientCore(Generic[_PoolT, _ResultT]):
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def _configure(
        self,
        pool: _PoolT,
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
        """To be called first. `headers`: those of the client in wire form, without Host."""
    _pool: _PoolT
    _fast_path: bool
    """Whether calls may take the fast path: no auth, hooks, mounts, custom transport or default params. Initially False."""
    _cookies: Any
    """None or a cookie jar. With cookies in it every call goes through `_slow_request`. A response with Set-Cookie always
    goes through `_finish_in_python`.
    """
    def _set_headers(self, headers: _RawHeaders) -> None:
        """Replaces the headers of the client."""
    # To be defined by the subclass, `async` in that of AsyncClientCore but for `_origin_pool`:
    # def _slow_request(self, method: str, url: Any, **kwargs: Any) -> ResponseCore
    # def _finish_in_python(self, response: ResponseCore) -> ResponseCore   (redirect, Set-Cookie, status to retry)
    # def _origin_pool(self, scheme: str, host: str, port: int) -> _PoolT | None: called once per origin; None: calls to
    #     this origin go through `_slow_request`
    def request(self, method: str, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends a request. `CallOptions` explains the arguments."""
    def get(self, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends a GET request."""
    def head(self, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends a HEAD request."""
    def options(self, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends an OPTIONS request."""
    def delete(self, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends a DELETE request."""
    def post(self, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends a POST request."""
    def put(self, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends a PUT request."""
    def patch(self, url: URL | str, **kwargs: Unpack[CallOptions]) -> _ResultT:
        """Sends a PATCH request."""

@disjoint_base
class AsyncClientCore(_ClientCore[AsyncPool, Call[Response]]):
    """The native base class of AsyncClient."""

@disjoint_base
class ClientCore(_ClientCore[SyncPool, Response]):
    """The native base class of Client."""

@disjoint_base
class ResponseCore:
    """The native base class of Response. Native code skips `__init__`, so a subclass needs class defaults of its attributes."""
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
        """Sets the head of a response that is created in Python (by mock and application transports, or the program)."""
    def _set_reply(self, reply: Reply) -> None:
        """Sets the head from `reply`, and `_reply`. The content is unread."""
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
        """Returns all values of a name joined with commas (latin-1), without creating a Headers."""
    @property
    def content(self) -> bytes:
        """Calls `_not_read()`, which raises, if it has not been read."""
    @property
    def text(self) -> str:
        """Decodes UTF-8 natively, other encodings with `_decode_text()` of the subclass."""
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
        """Time from the call to the end of the body. Raises RuntimeError before."""
    @property
    def timings(self) -> dict[str, float]: ...
    @property
    def reused(self) -> bool: ...
    @property
    def early_data(self) -> bool: ...
    @property
    def buffered(self) -> int: ...
    _content: bytes | None
    _encoding: str | None
    """Set by the user; takes precedence over charset and default."""
    _default_encoding: Any
    _loads: Callable[[Any], Any] | None
    _elapsed: float | None
    _reply: Reply | None
    _client: Any
    """The client that created it."""
    _sent: tuple[str, str, list[tuple[bytes, bytes]], bytes, list[float | None], bool] | None
    """Method, URL, headers, content, timeouts and `follow_redirects` of a call on the fast path, as it was sent."""

@final
class Decoder:
    """Decodes the codings of a Content-Encoding (gzip, deflate, br, zstd; at most five) on demand.

    Decodes only as much as `read` requests. Ignores unknown names and `identity`, and drops data after the end of the
    coded data. Raises DecodingError, also for a truncated body, and DecompressionLimit.
    """
    def __new__(cls, codings: bytes, max_size: int | None = None) -> Decoder: ...
    @property
    def active(self) -> bool:
        """Whether there is a coding to decode."""
    def feed(self, data: bytes) -> None:
        """Feeds the next piece, after `read` has returned nothing. Raises RuntimeError before."""
    def read(self, n: int) -> bytes:
        """Returns at most `n` decoded bytes; none if it needs another piece, or the body has ended."""
    def finish(self) -> None:
        """To be called at the end of the body: raises DecodingError if it is incomplete."""

@final
class LineParser:
    """Splits a UTF-8 stream into lines, ended by CR, LF or CRLF. Malformed bytes become U+FFFD.

    A line longer than `max_bytes` raises DecodingError, after the lines before it have been returned.
    """
    def __new__(cls, max_bytes: int) -> LineParser: ...
    def feed(self, data: bytes) -> list[str]: ...
    def finish(self) -> list[str]:
        """Returns the last line, if it had no terminator."""

@final
class SseParser:
    """Parses server-sent events (WHATWG HTML 9.2.6). One longer than `max_bytes` raises DecodingError, as for lines."""
    def __new__(cls, max_bytes: int) -> SseParser: ...
    def feed(self, data: bytes) -> list[ServerSentEvent]: ...
    def finish(self) -> list[ServerSentEvent]:
        """Returns nothing: an incomplete event is dropped."""
    @property
    def last_event_id(self) -> str:
        """The value of Last-Event-ID for reconnecting."""

@final
class ServerSentEvent:
    """A server-sent event: type (`message` by default), data, last event id, reconnection time."""
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
        """Milliseconds, if there was a `retry` field since the previous event."""
    def json(self) -> Any:
        """Parses the data as JSON. Raises ValueError."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class PoolBench:
    """A connection pool with idle connections but without sockets, for benchmarks."""
    def __new__(cls, connections: int, origins: int) -> PoolBench: ...
    def assign(self, requests: int) -> float:
        """Returns the seconds in which each request gets a connection. Raises ValueError if there are too few."""
    def acquire(self, times: int) -> float:
        """Returns the mean seconds, over `times` repetitions, to acquire and release a connection."""

def observe_calls(*, calls: bool, connections: bool) -> None:
    """`calls`: every call of every client leaves the fast path. `connections`: events are kept for `take_connection_events`."""

def take_connection_events() -> list[tuple[str, tuple[str, int] | str | None, tuple[str, int] | str | None]]:
    """Removes and returns the events of connections, at most the 1,024 latest: `closed` or `resent`, local and remote address.

    `resent`: the connection ended without a response, and its request was sent again on another one.
    """

def responder_main(arguments: Sequence[str]) -> int:
    """Runs `towline-responder` until SIGTERM, SIGINT or the end of a piped stdin. Returns its exit status."""

def test_certificate(names: Sequence[str]) -> tuple[str, str, str]:
    """Creates a certificate for host names and addresses. Returns authority, certificate and key, in PEM.

    The certificate is signed by the authority and does not expire; the key is ECDSA P-256 in PKCS #8. Raises ValueError.
    """

def netem_main(arguments: Sequence[str]) -> int:
    """Runs the network emulator (`--help`) until SIGTERM, SIGINT or the end of a piped stdin. Returns its exit status."""

@final
class StateStore:
    """An open embedded store, a `towline.state.Backend` but for `subscribe`. Safe to use after a fork.

    `short`: a call that would wait for another writer, or work for more than about 0.1 ms, raises BlockingIOError instead.
    `workers`: a user whose directory a process of root may use. The other arguments are settings of the store; None leaves those that it has. Raises StateUnavailable and UsageError.
    """
    def __new__(
        cls,
        path: str,
        *,
        size: int | None = None,
        when_full: str | None = None,
        sync: bool | None = None,
        workers: int | None = None,
        short: bool = False,
    ) -> StateStore: ...
    @property
    def name(self) -> str: ...
    def get(self, key: bytes, /) -> bytes | None: ...
    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]: ...
    def set(self, key: bytes, value: bytes, ttl: float | None = None, /) -> None: ...
    def delete(self, keys: Sequence[bytes], /) -> int: ...
    def apply(
        self,
        checks: Sequence[tuple[bytes, bytes | None]],
        writes: Sequence[tuple[bytes, bytes | None, float | None]],
        posts: Sequence[tuple[bytes, bytes]] = ...,
        /,
    ) -> bool: ...
    def add(self, key: bytes, delta: int, ttl: float | None = None, /) -> int: ...
    def ttl(self, key: bytes, /) -> float | None: ...
    def expire(self, key: bytes, ttl: float | None, /) -> bool: ...
    def scan(
        self, prefix: bytes, cursor: bytes | None, limit: int, values: bool, /
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]: ...
    def take_tokens(
        self, key: bytes, capacity: float, per_second: float, cost: float, /
    ) -> tuple[bool, float, float]: ...
    def take_window(
        self, key: bytes, limit: int, seconds: float, cost: int, /
    ) -> tuple[bool, float, float]: ...
    def publish(self, channel: bytes, message: bytes, /) -> None: ...
    def open_log(self) -> StateLog:
        """Begins to read all messages that are published from now on."""
    def info(self) -> dict[str, Any]: ...
    def close(self) -> None: ...

@final
class StateLog:
    """A position in the log of messages of a store."""
    def fileno(self) -> int:
        """A descriptor that is readable when there may be messages, after `arm()` has returned False."""
    def read(self, limit: int, size: int, /) -> tuple[list[tuple[bytes, bytes]], int, int]:
        """Returns at most `limit` messages, how many were lost before them, and the number of the message after them.

        All have about `size` bytes at most.
        """
    def end(self) -> int:
        """Returns the number of the next publication: a subscription that begins now starts there."""
    def arm(self) -> bool:
        """Asks for a wake-up at the next publication. True: there is something to read already."""
    def close(self) -> None: ...
