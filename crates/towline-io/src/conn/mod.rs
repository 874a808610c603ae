//! One connection as the faces see it: the wire core, their own state, and the transport below.

pub(crate) mod addr;
pub(crate) mod blocking_wait;
pub(crate) mod config;
pub(crate) mod file_body;
pub(crate) mod flush;
pub(crate) mod id;
pub(crate) mod proxy_header;
pub(crate) mod stream_map;
pub(crate) mod transport;

use std::cell::OnceCell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use socket2::Socket;
use towline_proto::{BufferPool, Connection, Protocol, ProtocolPolicy, Side, StreamId, UserError};

use crate::client::Established;
use crate::conn::addr::PeerAddr;
use crate::conn::config::ConnConfig;
use crate::conn::file_body::Files;
use crate::conn::id::ConnId;
use crate::conn::proxy_header::ProxyHeaderReader;
use crate::conn::transport::Transport;
use crate::serve::metrics::SlotHandle;
use crate::tls::{RecvOutcome, Session, TlsInfo, late_alert};

/// The name of HTTP/2 over TLS (RFC 9113 3.2).
pub(crate) const ALPN_H2: &[u8] = b"h2";

/// A connection and the state `S` that a face keeps beside it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each about something else"
)]
pub struct Peer<S> {
    pub conn: Connection,
    pub state: S,
    pub(crate) io: Transport,
    pub(crate) files: Files,
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) traffic: Traffic,
    /// Bytes of HTTP that may still be sent; `None`: all.
    pub(crate) send_allowance: Option<u64>,
    /// The earliest time at which the engine has promised to look at the deadline.
    pub(crate) scheduled_at: Option<Instant>,
    /// When the face wants to visit it, at the latest.
    pub(crate) wake_at: Option<Instant>,
    /// That time has come.
    pub(crate) wake_due: bool,
    /// The poll also tells when there is room to write. Most connections never need it.
    pub(crate) write_armed: bool,
    /// Stands in the engine's ready list.
    pub(crate) queued: bool,
    /// The face has exchanges on it that it is still to hear of or to read: it is not closed before.
    pub(crate) keep_open: bool,
    id: ConnId,
    service: Arc<ConnConfig>,
    _count: ConnectionCountGuard,
    remote: PeerAddr,
    local: OnceCell<PeerAddr>,
}

/// Bytes of HTTP so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// When the transport took something last.
    pub(crate) last_sent: Option<Instant>,
}

/// What the poll has said about reading. Edge-triggered: it says so once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Input {
    pub(crate) readable: bool,
    /// A FIN or an error stands behind the bytes: a short read is not the end of the news.
    pub(crate) closed: bool,
    /// Nothing comes any more.
    pub(crate) over: bool,
    /// How the transport broke behind bytes that nobody has looked at yet.
    pub(crate) broken: Option<&'static str>,
}

/// ```text
/// Open ──would block──► Blocked ──writable──► Open ──interest.shutdown──► Finished
///   └──────client's send failed──► Broken
/// ```
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    #[default]
    Open,
    /// The kernel's buffer is full and the poll will tell when it is not.
    Blocked,
    /// Our FIN is out.
    Finished,
    /// Nothing can be sent; what has come is still read.
    Broken,
}

/// Counts a connection as open for as long as it lives, wherever it is.
struct ConnectionCountGuard(Option<SlotHandle>);

impl ConnectionCountGuard {
    fn count(service: &ConnConfig) -> Self {
        if let Some(meter) = &service.meter {
            meter.connection_opened();
        }
        Self(service.meter.clone())
    }
}

impl Drop for ConnectionCountGuard {
    fn drop(&mut self) {
        if let Some(meter) = &self.0 {
            meter.connection_closed();
        }
    }
}

impl<S: Default> Peer<S> {
    pub(crate) fn from_accept(
        id: ConnId,
        socket: Socket,
        remote: PeerAddr,
        service: &Arc<ConnConfig>,
        now: Instant,
    ) -> std::io::Result<Self> {
        let tls = match &service.tls {
            Some(config) => Some(Box::new(Session::new(config)?)),
            None => None,
        };
        let expects_proxy = service.proxy_protocol.as_ref();
        let expects_proxy =
            expects_proxy.is_some_and(|trusts| trusts(remote.inet().map(|addr| addr.ip())));
        let conn =
            Connection::server_with_policy(Arc::clone(&service.limits), service.protocols, now);
        let transport = Transport {
            socket,
            tls,
            proxy: expects_proxy.then(|| Box::new(ProxyHeaderReader::default())),
            proxied: None,
        };
        Ok(Self::new(id, conn, transport, remote, service))
    }

    /// The client's end of a connection that a dial has made.
    pub(crate) fn from_dial(
        id: ConnId,
        established: Established,
        service: &Arc<ConnConfig>,
        now: Instant,
    ) -> Self {
        let protocol = match (&established.alpn, service.protocols) {
            (Some(chosen), _) if chosen == ALPN_H2 => Protocol::Http2,
            // Prior knowledge, which TLS has no place for (RFC 9113 3.3).
            (None, ProtocolPolicy::Http2) if established.transport.tls.is_none() => Protocol::Http2,
            _ => Protocol::Http1,
        };
        let mut conn = Connection::client_with_protocol(Arc::clone(&service.limits), protocol, now);
        conn.set_secure(established.transport.tls.is_some());
        let Established {
            transport, remote, ..
        } = established;
        Self::new(id, conn, transport, remote, service)
    }

    fn new(
        id: ConnId,
        conn: Connection,
        io: Transport,
        remote: PeerAddr,
        service: &Arc<ConnConfig>,
    ) -> Self {
        Self {
            conn,
            state: S::default(),
            io,
            files: Files::default(),
            input: Input::default(),
            output: Output::default(),
            traffic: Traffic::default(),
            send_allowance: None,
            scheduled_at: None,
            wake_at: None,
            wake_due: false,
            write_armed: false,
            queued: false,
            keep_open: false,
            id,
            service: Arc::clone(service),
            _count: ConnectionCountGuard::count(service),
            remote,
            local: OnceCell::new(),
        }
    }
}

impl<S> Peer<S> {
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Bytes of HTTP received so far.
    pub fn received_bytes(&self) -> u64 {
        self.traffic.received
    }

    /// Holds back what is to be sent but for the next `bytes` of it, until this is called again; `None`
    /// lets everything go. A slow sender is made of it. Settle the connection afterwards.
    pub fn limit_sending(&mut self, bytes: Option<u64>) {
        self.send_allowance = bytes;
    }

    /// The rules of the listener that it came through.
    pub fn service(&self) -> &Arc<ConnConfig> {
        &self.service
    }

    /// The client, as a trusted PROXY header names it, else as the socket does.
    pub fn remote_addr(&self) -> &PeerAddr {
        match &self.io.proxied {
            Some(pair) => &pair.0,
            None => &self.remote,
        }
    }

    /// The address that the client connected to.
    pub fn local_addr(&self) -> &PeerAddr {
        if let Some(pair) = &self.io.proxied {
            return &pair.1;
        }
        self.local.get_or_init(|| {
            let addr = self.io.socket.local_addr();
            addr.map_or(PeerAddr::None, |addr| PeerAddr::from_sock_addr(&addr))
        })
    }

    /// Connections over TLS, their handshake done or not.
    pub fn is_tls(&self) -> bool {
        self.io.tls.is_some()
    }

    /// What the TLS handshake agreed on, once it has.
    pub fn tls(&self) -> Option<TlsInfo> {
        self.io.tls.as_ref()?.info()
    }

    /// Bytes of HTTP: what TLS adds is not counted.
    pub(crate) fn count_sent(&mut self, now: Instant, bytes: usize) {
        self.traffic.sent += bytes as u64;
        self.traffic.last_sent = Some(now);
        if let Some(meter) = &self.service.meter {
            meter.sent(bytes);
        }
    }

    fn count_received(&mut self, bytes: usize) {
        self.traffic.received += bytes as u64;
        if let Some(meter) = &self.service.meter {
            meter.received(bytes);
        }
    }

    /// Asks for a visit at `at` if none comes before: a clock of the face's own is due. Settle the connection
    /// afterwards. An earlier visit changes nothing; [`is_wake_due`](Self::is_due) says that this is the one.
    pub fn wake_at(&mut self, at: Instant) {
        if self.wake_at.is_none_or(|earlier| at < earlier) {
            self.wake_at = Some(at);
        }
    }

    /// Whether the time of [`wake_at`](Self::visit_by) has come.
    pub fn is_wake_due(&self) -> bool {
        self.wake_due
    }

    /// What was due has been done. Ask for the next visit.
    pub fn clear_wake_due(&mut self) {
        self.wake_due = false;
    }

    /// When the engine must look at it, at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match (self.conn.deadline(), self.wake_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// HTTP/2: the application has done with an exchange. If that failed, its place is free from here on.
    pub fn release_stream(&mut self, stream: StreamId) {
        if self.conn.protocol() == Some(Protocol::Http2)
            && let Ok(mut stream) = self.conn.stream(stream)
            && matches!(stream.write(&[]), Err(UserError::StreamFailed))
        {
            stream.reset();
        }
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.io.fd()
    }

    /// What comes before its events are looked at: sending first, so that the face learns at once of the
    /// room that it gave, then reading.
    pub(crate) fn begin_service(&mut self, buffers: &mut BufferPool, now: Instant, budget: usize) {
        if self.output == Output::Open && self.conn.pending_bytes() > 0 {
            self.flush(now, budget);
        }
        self.receive(buffers, now);
    }

    /// Reads once from the socket into the wire core, or as often as the end of input needs. Whether
    /// that brought anything, the end included.
    pub(crate) fn receive(&mut self, buffers: &mut BufferPool, now: Instant) -> bool {
        if self.input.broken.is_some() {
            return self.report_failure(now);
        }
        let mut news = false;
        while self.input.readable && !self.input.over {
            let space = self.conn.recv_space(buffers);
            if space.is_empty() {
                // Backpressure: the socket stays readable and is read when there is room. A reset
                // shows all the same, but where room comes by itself and what the kernel holds may be an answer.
                if self.input.closed
                    && !self.reports_in_order()
                    && let Ok(Some(error)) = self.io.socket.take_error()
                {
                    self.on_failure(now, failure_rule(&error));
                    return true;
                }
                return news;
            }
            let received = self.io.recv(space);
            self.apply_alpn();
            match received {
                Ok(RecvOutcome::Data { bytes, drained }) => {
                    news = true;
                    self.conn.received(now, bytes);
                    self.count_received(bytes);
                    self.input.readable = !drained || self.input.closed;
                    if !(drained && self.input.closed) {
                        return true;
                    }
                }
                Ok(RecvOutcome::WouldBlock) => self.input.readable = false,
                Ok(RecvOutcome::Eof) => {
                    news = true;
                    self.input.over = true;
                    self.conn.received_eof(now);
                }
                Err(error) => {
                    self.input.broken = Some(failure_rule(&error));
                    return self.report_failure(now) || news;
                }
            }
        }
        news
    }

    /// Tells how the transport broke, once what came before is told. A server that refuses an upload answers
    /// and closes, and what it never read becomes a reset right behind its answer; HTTP/2 would lose that with
    /// its connection. (A server has nobody to answer any more, and HTTP/1 keeps an answer by itself.)
    pub(crate) fn report_failure(&mut self, now: Instant) -> bool {
        let Some(rule) = self.input.broken else {
            return false;
        };
        if self.reports_in_order() && self.conn.has_events() {
            return false;
        }
        self.on_failure(now, rule);
        true
    }

    /// The exchange of messages is over, and nothing is read any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.conn.error().is_some() && !self.conn.interest().read
    }

    /// An HTTP/2 client: what has come is told before how the transport broke.
    fn reports_in_order(&self) -> bool {
        self.conn.side() == Side::Client && self.conn.protocol() == Some(Protocol::Http2)
    }

    /// The handshake has decided what is spoken, where that was open.
    fn apply_alpn(&mut self) {
        let Some(tls) = &self.io.tls else { return };
        if self.conn.protocol().is_none() && !tls.is_handshaking() {
            let protocol = match tls.alpn() {
                Some(chosen) if chosen == ALPN_H2 => Protocol::Http2,
                _ => Protocol::Http1,
            };
            // It fails only after the first byte, and none has been handed in.
            let _ = self.conn.set_protocol(protocol);
        }
    }

    /// The deadline has come: the connection's, the face's or both.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.wake_at.take_if(|at| *at <= now).is_some() {
            self.wake_due = true;
        }
        if self.conn.deadline().is_none_or(|at| now < at) {
            return;
        }
        if self.io.is_before_http() {
            // An answer could not be sent, or nobody knows to whom.
            self.on_failure(now, "TLS handshake or PROXY header not complete in time");
        } else {
            self.conn.handle_timeout(now);
        }
    }

    /// The transport is of no more use.
    pub(crate) fn on_failure(&mut self, now: Instant, rule: &'static str) {
        self.input.over = true;
        self.input.broken = None;
        self.files.clear();
        self.conn.received_abort(now, rule);
    }
}

/// What is said about a connection whose transport failed.
pub(crate) fn failure_rule(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionReset => "connection reset (RFC 9293 3.10.7)",
        ErrorKind::BrokenPipe => "connection closed while we were sending",
        ErrorKind::UnexpectedEof => "closed without close_notify (RFC 8446 6.1)",
        ErrorKind::InvalidData => late_alert(error).unwrap_or("broken TLS record or PROXY header"),
        ErrorKind::TimedOut => "peer unreachable: retransmission timed out",
        _ => "transport failed",
    }
}
