//! The input of a call (request, body, timeouts, options) and its error, shared by both front ends.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use towline_proto::{BodySize, Field, RequestHead, UserError};

use super::dial::{DialError, DialErrorKind, DialPhase};
use super::route::Route;

/// One request, ready to be written. It can be written more than once if its body can be replayed.
#[derive(Debug)]
pub struct OutgoingRequest {
    /// Route of the request. Passing the same `Arc` again avoids a table lookup.
    pub route: Arc<Route>,
    /// Shared, so that the caller can keep it for the record of what was sent.
    pub head: Arc<RequestText>,
    pub body: Body,
    /// Sending it twice is the same as sending it once (RFC 9110 9.2.2).
    pub idempotent: bool,
}

/// Method, target and headers in one buffer, in wire order.
#[derive(Clone, Debug, Default)]
pub struct RequestText {
    bytes: Vec<u8>,
    method_end: usize,
    target_end: usize,
    /// End of each name and of each value; each starts at the end of the one before.
    field_ends: Vec<(u32, u32)>,
}

/// Number of fields up to which writing a head needs no allocation.
const INLINE_FIELDS: usize = 24;

impl RequestText {
    pub fn new(method: &[u8], target: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(method);
        bytes.extend_from_slice(target);
        Self {
            bytes,
            method_end: method.len(),
            target_end: method.len() + target.len(),
            field_ends: Vec::with_capacity(8),
        }
    }

    /// Adds a header. The protocol core validates it when the request is written.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(name);
        let name_end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.field_ends.push((name_end, self.bytes.len() as u32));
    }

    pub fn method(&self) -> &[u8] {
        &self.bytes[..self.method_end]
    }

    pub fn target(&self) -> &[u8] {
        &self.bytes[self.method_end..self.target_end]
    }

    pub fn fields(&self) -> impl ExactSizeIterator<Item = Field<'_>> {
        let mut start = self.target_end;
        self.field_ends.iter().map(move |&(name_end, value_end)| {
            let (name_end, value_end) = (name_end as usize, value_end as usize);
            let field = Field {
                name: &self.bytes[start..name_end],
                value: &self.bytes[name_end..value_end],
            };
            start = value_end;
            field
        })
    }

    /// Returns the value of the first field of that name, ignoring case.
    pub fn field(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields()
            .find(|field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }

    /// Whether the request has `Expect: 100-continue` (RFC 9110 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.field(b"expect")
            .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
    }

    /// Calls `write` with the head in the form that the protocol core takes.
    pub fn with_head<T>(&self, write: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        self.with_head_and(None, write)
    }

    /// Calls `write` with the head and a further header, unless the request has one of its name.
    pub(super) fn with_head_and<T>(
        &self,
        added: Option<Field<'_>>,
        write: impl FnOnce(&RequestHead<'_>) -> T,
    ) -> T {
        let added = added.filter(|added| self.field(added.name).is_none());
        let head = |fields: &[Field<'_>]| {
            write(&RequestHead {
                method: self.method(),
                target: self.target(),
                fields,
            })
        };
        let count = self.field_ends.len() + usize::from(added.is_some());
        if count > INLINE_FIELDS {
            return head(&self.fields().chain(added).collect::<Vec<_>>());
        }
        let mut inline = [Field {
            name: &[],
            value: &[],
        }; INLINE_FIELDS];
        for (slot, field) in inline.iter_mut().zip(self.fields().chain(added)) {
            *slot = field;
        }
        head(&inline[..count])
    }
}

/// The body of a request.
#[derive(Debug, Default)]
pub enum Body {
    #[default]
    Empty,
    /// Sent by reference; partial writes never copy the rest.
    Bytes(Bytes),
    /// This many bytes, written by the program as there is room.
    Known(u64),
    /// Written by the program until it finishes; the length is unknown.
    Unknown,
    /// Part of a file, sent with `sendfile` on plain TCP.
    File { file: File, offset: u64, len: u64 },
}

impl OutgoingRequest {
    /// A request of `route` without content, in place of one that has been taken.
    pub(super) fn empty(route: &Arc<Route>) -> Self {
        Self {
            route: Arc::clone(route),
            head: Arc::default(),
            body: Body::Empty,
            idempotent: false,
        }
    }

    /// Whether the body waits for 100 (Continue).
    pub(super) fn awaits_continue(&self) -> bool {
        let has_body = !matches!(self.body.size(), BodySize::Empty | BodySize::Known(0));
        has_body && self.head.expects_continue()
    }
}

impl Body {
    /// Returns the size that the head announces.
    pub fn size(&self) -> BodySize {
        match self {
            Self::Empty => BodySize::Empty,
            Self::Bytes(bytes) => BodySize::Known(bytes.len() as u64),
            Self::Known(bytes) | Self::File { len: bytes, .. } => BodySize::Known(*bytes),
            Self::Unknown => BodySize::Unknown,
        }
    }

    /// Whether the body is written by the program, rather than given with the request.
    pub fn is_streamed(&self) -> bool {
        matches!(self, Self::Known(_) | Self::Unknown)
    }

    /// Whether the body can be sent a second time.
    pub fn is_replayable(&self) -> bool {
        !self.is_streamed()
    }
}

/// Timeouts of one call; `None` disables one. All but `total` apply per phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// DNS, connect, proxy and TLS together.
    pub connect: Option<Duration>,
    /// Maximum time without a byte of the response while one is expected.
    pub read: Option<Duration>,
    /// Maximum time in which no byte of the request is accepted.
    pub write: Option<Duration>,
    /// Waiting for a free connection when no further one may be opened.
    pub pool: Option<Duration>,
    /// From `begin` to the last byte of the response.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Some(Duration::from_secs(5)),
            read: Some(Duration::from_secs(60)),
            write: Some(Duration::from_secs(60)),
            pool: None,
            total: None,
        }
    }
}

/// Which requests are sent again when a reused connection ends without a byte of the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaleRetry {
    Never,
    #[default]
    Idempotent,
    /// Every request whose body can be sent again.
    Any,
}

/// Options of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    pub timeouts: Timeouts,
    pub stale: StaleRetry,
    /// Number of further attempts to open a connection.
    pub connect_retries: u8,
    /// Pauses between these attempts.
    pub backoff: Backoff,
}

/// Exponential backoff between dial attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Pause before the second attempt; doubled for each further one.
    pub first: Duration,
    pub longest: Duration,
    /// Use a random share of the pause, so that clients do not retry in step.
    pub jitter: bool,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(60),
            jitter: true,
        }
    }
}

impl Backoff {
    /// Returns the pause after `failures` attempts; `chance` is a uniformly distributed number.
    pub fn pause(&self, failures: u8, chance: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(u32::from(failures.saturating_sub(1)));
        let longest = self.longest.min(Duration::from_secs(24 * 3600));
        let pause = self.first.saturating_mul(doubled).min(longest);
        if self.jitter {
            pause.mul_f64(f64::from(chance) / f64::from(u32::MAX))
        } else {
            pause
        }
    }
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeouts: Timeouts::default(),
            stale: StaleRetry::default(),
            connect_retries: 1,
            backoff: Backoff::default(),
        }
    }
}

/// Phase that a call had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPhase {
    /// Waiting for a connection.
    Pool,
    Dns,
    Connect,
    Proxy,
    Tls,
    /// Sending the request.
    Send,
    /// Waiting for the head of the response.
    Head,
    /// Receiving its body.
    Body,
}

impl CallPhase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Proxy => "proxy",
            Self::Tls => "tls",
            Self::Send => "send",
            Self::Head => "head",
            Self::Body => "body",
        }
    }
}

/// Kinds of failure, one for each exception class of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallErrorKind {
    ConnectTimeout,
    ReadTimeout,
    WriteTimeout,
    PoolTimeout,
    TotalTimeout,
    /// The queue for connections is full (`max_queue`).
    QueueFull,
    Connect,
    Dns,
    Tls,
    Read,
    Write,
    Proxy,
    /// The server violated the protocol.
    RemoteProtocol,
    /// The server closed the connection without a complete response.
    ServerDisconnected,
    /// The request itself violates the protocol.
    LocalProtocol,
    /// The client has been closed.
    Closed,
}

/// Failure of a call. Holds no secrets: neither header values nor credentials.
#[derive(Clone, Debug)]
pub struct CallError {
    pub kind: CallErrorKind,
    pub phase: CallPhase,
    /// Message, with the violated rule if there is one.
    pub message: Cow<'static, str>,
    /// The system's error number, if any.
    pub os_error: Option<i32>,
    /// Sending the request again is safe; see `client/call_error.rs`.
    pub retryable: bool,
    /// Bytes of the request that were sent.
    pub bytes_sent: u64,
    /// Bytes of the response that were received.
    pub bytes_received: u64,
    /// The connection had carried an exchange before.
    pub reused: bool,
    /// The proxy of the route, for the text.
    pub proxy: Option<Box<str>>,
}

impl CallError {
    pub fn new(
        kind: CallErrorKind,
        phase: CallPhase,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            kind,
            phase,
            message: message.into(),
            os_error: None,
            retryable: false,
            bytes_sent: 0,
            bytes_received: 0,
            reused: false,
            proxy: None,
        }
    }

    /// Adds the proxy of the route, which the text then names.
    #[must_use]
    pub(super) fn through(mut self, route: &Route) -> Self {
        self.proxy = route.proxy().map(|proxy| proxy.to_string().into());
        self
    }

    /// A mistake of the program, found when the request was written.
    pub fn local(error: UserError) -> Self {
        Self::new(
            CallErrorKind::LocalProtocol,
            CallPhase::Send,
            error.to_string(),
        )
    }

    pub fn closed() -> Self {
        Self::new(
            CallErrorKind::Closed,
            CallPhase::Pool,
            "the client has been closed",
        )
    }

    /// A failed dial; nothing of the request was sent.
    pub fn dial(error: &DialError) -> Self {
        let kind = match error.kind {
            DialErrorKind::Dns => CallErrorKind::Dns,
            DialErrorKind::Connect => CallErrorKind::Connect,
            DialErrorKind::Tls => CallErrorKind::Tls,
            DialErrorKind::Proxy => CallErrorKind::Proxy,
            DialErrorKind::Timeout => CallErrorKind::ConnectTimeout,
        };
        let phase = match error.phase {
            DialPhase::Resolve => CallPhase::Dns,
            DialPhase::Connect => CallPhase::Connect,
            DialPhase::Proxy => CallPhase::Proxy,
            DialPhase::Tls => CallPhase::Tls,
        };
        Self {
            os_error: error.os_error,
            retryable: true,
            ..Self::new(kind, phase, error.message.clone())
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.proxy {
            Some(proxy) if !self.message.contains(&**proxy) => {
                write!(f, ", through the proxy {proxy}")
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for CallError {}

/// Durations of the phases of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Time until a connection was available, without the time to open it.
    pub queued: Duration,
    pub dns: Duration,
    pub connect: Duration,
    pub tls: Duration,
    /// The handshake of QUIC; `connect` and `tls` are 0 then.
    pub quic: Duration,
    /// From `begin` to the head of the response, once it has arrived.
    pub first_byte: Option<Duration>,
    /// From `begin` to the end of the body, once it has been read.
    pub total: Option<Duration>,
    /// The request was sent in early data (0-RTT) that the server has accepted.
    pub early_data: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_jitter_takes_a_share() {
        let backoff = Backoff {
            first: Duration::from_millis(500),
            longest: Duration::from_secs(3),
            jitter: false,
        };
        let millis = |failures| backoff.pause(failures, 7).as_millis();
        assert_eq!([1, 2, 3, 4, 255].map(millis), [500, 1000, 2000, 3000, 3000]);
        let jittered = Backoff {
            jitter: true,
            ..backoff
        };
        let share = |chance| jittered.pause(1, chance).as_millis();
        assert_eq!([0, u32::MAX / 2 + 1, u32::MAX].map(share), [0, 250, 500]);
    }

    #[test]
    fn only_a_body_awaits_continue() {
        let expects = |value: &[u8], body| {
            let mut head = RequestText::new(b"PUT", b"/");
            head.push(b"Expect", value);
            OutgoingRequest {
                route: Arc::new(Route::plain("a", 80)),
                head: head.into(),
                body,
                idempotent: true,
            }
            .awaits_continue()
        };
        assert!(expects(b"100-Continue", Body::Unknown));
        assert!(expects(
            b"100-continue",
            Body::Bytes(Bytes::from_static(b"x"))
        ));
        assert!(!expects(b"100-continue", Body::Empty));
        assert!(!expects(b"100-continue", Body::Known(0)));
        assert!(!expects(b"tea", Body::Unknown));
    }

    #[test]
    fn fields_keep_their_order_whatever_their_number() {
        for count in [0, 1, INLINE_FIELDS, INLINE_FIELDS + 1, 200] {
            let mut text = RequestText::new(b"GET", b"/x?y");
            for index in 0..count {
                let (name, value) = (format!("x-{index}"), "v".repeat(index));
                text.push(name.as_bytes(), value.as_bytes());
            }
            text.with_head(|head| {
                assert_eq!((head.method, head.target), (&b"GET"[..], &b"/x?y"[..]));
                assert_eq!(head.fields.len(), count);
                for (index, field) in head.fields.iter().enumerate() {
                    assert_eq!(field.name, format!("x-{index}").as_bytes());
                    assert_eq!(field.value.len(), index);
                }
            });
            let added = |name, value| Some(Field { name, value });
            text.with_head_and(added(b"Alt-Used", b"b"), |head| {
                assert_eq!(head.fields.len(), count + 1);
                assert_eq!(head.fields[count].value, b"b");
            });
            text.with_head_and(added(b"X-0", b"b"), |head| {
                assert_eq!(head.fields.len(), count.max(1));
            });
        }
    }
}
