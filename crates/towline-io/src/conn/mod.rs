//! One connection: the protocol state machine, the front end's state, and the transport below.

pub(crate) mod addr;
pub(crate) mod checked_out_io;
pub(crate) mod config;
pub(crate) mod early_flight;
pub(crate) mod established;
pub(crate) mod file_body;
pub(crate) mod flush;
mod handshake;
pub(crate) mod id;
#[cfg(test)]
mod network_tests;
pub(crate) mod proxy_header;
mod quic_io;
pub(crate) mod quic_transport;
pub(crate) mod spool;
pub(crate) mod spooled_response;
pub(crate) mod stream_map;
pub(crate) mod takeover;
mod timers;
pub(crate) mod transport;

use std::cell::OnceCell;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use socket2::Socket;
use towline_proto::{
    BufferPool, Connection, Interest, Protocol, ProtocolPolicy, Side, StreamId, UserError,
};

use crate::conn::addr::PeerAddr;
use crate::conn::config::ConnConfig;
use crate::conn::established::Established;
use crate::conn::file_body::Files;
use crate::conn::id::ConnId;
use crate::conn::proxy_header::ProxyHeaderReader;
use crate::conn::quic_transport::{QuicTransport, SharedEndpoint};
use crate::conn::timers::ConnTimers;
use crate::conn::transport::{StreamTransport, Transport};
use crate::quic;
use crate::serve::limits::ClientCount;
use crate::serve::refusals::{Reason, RefusedFor};
use crate::tls::{ALPN_H2, RecvOutcome, Session, TlsInfo, late_alert};

/// A connection with the front end's state `S`.
pub struct Conn<S> {
    pub proto: Connection,
    pub state: S,
    pub(crate) io: Transport,
    pub(crate) files: Files,
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) traffic: Traffic,
    pub(crate) timers: ConnTimers,
    /// Write interest is registered in the poll. Most connections never need it.
    pub(crate) write_armed: bool,
    /// The connection is in the engine's ready list.
    pub(crate) queued: bool,
    /// The front end still has exchanges on it, so it is not closed before their events are handled.
    pub(crate) keep_open: bool,
    id: ConnId,
    count: ConnectionCount,
    addresses: Addresses,
}

/// Addresses of the two ends of the transport.
struct Addresses {
    remote: PeerAddr,
    /// Read when it is first needed.
    local: OnceCell<Arc<PeerAddr>>,
}

/// Bytes of HTTP sent and received so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Time of the last successful write.
    pub(crate) last_sent: Option<Instant>,
}

/// Read readiness. The poll is edge-triggered and reports it once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Input {
    pub(crate) readable: bool,
    /// A FIN or an error follows the bytes, so reading continues after a short read.
    pub(crate) closed: bool,
    /// The end of input has been read.
    pub(crate) over: bool,
    /// Failure of the transport, to be reported after the events that precede it.
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
    /// The kernel's buffer is full; the poll reports when it is writable.
    Blocked,
    /// The FIN has been sent.
    Finished,
    /// Sending has failed; received bytes are still read.
    Broken,
}

/// Counts the connection as open in the metrics of its service, and for its client, until it is dropped.
pub(crate) struct ConnectionCount {
    service: Arc<ConnConfig>,
    is_quic: bool,
    /// Counts until it is dropped.
    client: Option<Box<ClientCount>>,
}

impl ConnectionCount {
    /// Counts a new connection of a server; `None` refuses it (`--limit-connections`). `client`: its address, if that is
    /// known already.
    pub(crate) fn admit(
        service: &Arc<ConnConfig>,
        is_quic: bool,
        client: Option<IpAddr>,
    ) -> Option<Self> {
        let mut count = Self::count(service, is_quic);
        if let Some(limits) = &service.connection_limits {
            if !limits.admits_one(client) {
                return None;
            }
            count.client = limits.admit_client(client).ok()?;
        }
        Some(count)
    }

    fn count(service: &Arc<ConnConfig>, is_quic: bool) -> Self {
        if let Some(meter) = &service.meter {
            meter.connection_opened();
            if is_quic {
                meter.quic_connections_open.fetch_add(1, Relaxed);
            }
        }
        Self {
            service: Arc::clone(service),
            is_quic,
            client: None,
        }
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        if let Some(meter) = &self.service.meter {
            meter.connection_closed();
            if self.is_quic {
                meter.quic_connections_open.fetch_sub(1, Relaxed);
            }
        }
    }
}

impl<S: Default> Conn<S> {
    pub(crate) fn from_accept(
        id: ConnId,
        socket: Socket,
        remote: PeerAddr,
        (service, count): (&Arc<ConnConfig>, ConnectionCount),
        now: Instant,
    ) -> std::io::Result<Self> {
        let tls = match &service.tls {
            Some(config) => Some(Box::new(Session::new(config)?)),
            None => None,
        };
        let proxy = service.expects_proxy_header(&remote).then(|| {
            let limits = service.connection_limits.clone();
            Box::new(ProxyHeaderReader::new(limits))
        });
        let proto =
            Connection::server_with_policy(Arc::clone(&service.limits), service.protocols, now);
        let transport = StreamTransport {
            tls,
            proxy,
            ..StreamTransport::new(socket)
        };
        let transport = Transport::Stream(transport);
        Ok(Self::new(id, proto, (transport, remote), count))
    }

    /// The server's end of a QUIC connection, before its handshake. `endpoint`: from which it was accepted.
    pub(crate) fn from_quic(
        id: ConnId,
        conn: quic::Connection,
        endpoint: &SharedEndpoint,
        (service, count): (&Arc<ConnConfig>, ConnectionCount),
        now: Instant,
    ) -> Self {
        let limits = Arc::clone(&service.limits);
        let proto = Connection::server_with_policy(limits, ProtocolPolicy::Http3, now);
        let transport = QuicTransport::shared(conn, endpoint, id.as_u64());
        let remote = transport.remote_addr();
        let transport = Transport::Quic(Box::new(transport));
        Self::new(id, proto, (transport, remote), count)
    }

    /// A client connection from the outcome of a dial.
    pub(crate) fn from_dial(
        id: ConnId,
        established: Established,
        service: &Arc<ConnConfig>,
        now: Instant,
    ) -> Self {
        let protocol = established.protocol(service.protocols);
        let mut proto =
            Connection::client_with_protocol(Arc::clone(&service.limits), protocol, now);
        proto.set_secure(established.transport.is_secure());
        let Established {
            mut transport,
            remote,
            ..
        } = established;
        if let Transport::Quic(quic) = &mut transport {
            if quic.sends_early_data() {
                proto.begin_early_data();
            }
            quic_io::offer_streams(&mut proto, quic, now);
        }
        let count = ConnectionCount::count(service, transport.quic().is_some());
        Self::new(id, proto, (transport, remote), count)
    }

    fn new(
        id: ConnId,
        proto: Connection,
        (io, remote): (Transport, PeerAddr),
        count: ConnectionCount,
    ) -> Self {
        Self {
            proto,
            state: S::default(),
            io,
            files: Files::default(),
            input: Input::default(),
            output: Output::default(),
            traffic: Traffic::default(),
            timers: ConnTimers::default(),
            write_armed: false,
            queued: false,
            keep_open: false,
            id,
            count,
            addresses: Addresses {
                remote,
                local: OnceCell::new(),
            },
        }
    }
}

impl<S> Conn<S> {
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Configuration of its listener, or of the client.
    pub fn service(&self) -> &Arc<ConnConfig> {
        &self.count.service
    }

    /// The protocol and the front end's state, beside the configuration of the listener.
    #[inline]
    pub fn parts(&mut self) -> (&mut Connection, &mut S, &ConnConfig) {
        (&mut self.proto, &mut self.state, &self.count.service)
    }

    /// Address of the remote end: from a trusted PROXY header, else from the socket.
    pub fn remote_addr(&self) -> &PeerAddr {
        match self.io.proxied() {
            Some(pair) => &pair.0,
            None => &self.addresses.remote,
        }
    }

    /// Whether the peer has shown that it is at its address. Early data (0-RTT) may come from any.
    pub fn has_proven_address(&self) -> bool {
        let quic = self.io.quic();
        !quic.is_some_and(QuicTransport::receives_early_data)
    }

    /// Address to which the client connected.
    pub fn local_addr(&self) -> &PeerAddr {
        if let Some(pair) = self.io.proxied() {
            return &pair.1;
        }
        let local = &self.addresses.local;
        local.get_or_init(|| self.service().shared_addr(self.io.local_addr()))
    }

    /// Whether the connection uses TLS, also before the end of the handshake.
    pub fn is_tls(&self) -> bool {
        self.io.is_secure()
    }

    /// Result of the TLS handshake, once it is complete.
    pub fn tls(&self) -> Option<TlsInfo> {
        self.io.tls_info()
    }

    /// Counts bytes of HTTP; the overhead of TLS is not included.
    pub(crate) fn count_sent(&mut self, now: Instant, bytes: usize) {
        self.traffic.sent += bytes as u64;
        self.traffic.last_sent = Some(now);
        if let Some(meter) = &self.count.service.meter {
            meter.sent(bytes);
        }
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.traffic.received += bytes as u64;
        if let Some(meter) = &self.count.service.meter {
            meter.received(bytes);
        }
    }

    /// Schedules a service at `at`, for a timer of the front end. Call `flush_and_rearm` afterwards. An earlier
    /// service does not cancel it; [`is_wake_due`](Self::is_wake_due) returns whether it is due.
    pub fn wake_at(&mut self, at: Instant) {
        self.timers.wake_at(at);
    }

    /// Whether the time given to [`wake_at`](Self::wake_at) has passed.
    pub fn is_wake_due(&self) -> bool {
        self.timers.is_wake_due()
    }

    /// Marks the wake-up as handled.
    pub fn clear_wake_due(&mut self) {
        self.timers.clear_wake_due();
    }

    /// Earliest deadline of the protocol, the transport or the front end.
    pub(crate) fn deadline(&mut self) -> Option<Instant> {
        let deadline = match (self.proto.deadline(), self.timers.next_wake()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        match self.io.quic_mut().and_then(QuicTransport::deadline) {
            Some(at) => Some(deadline.map_or(at, |other| other.min(at))),
            None => deadline,
        }
    }

    /// HTTP/2 and HTTP/3: releases the stream of an exchange that has ended. A failed stream is freed here.
    pub fn release_stream(&mut self, stream: StreamId) {
        if self.proto.protocol() != Some(Protocol::Http1)
            && let Ok(mut stream) = self.proto.stream(stream)
            && matches!(stream.write(&[]), Err(UserError::StreamFailed))
        {
            stream.reset();
        }
    }

    /// Checks whether the peer has reset the connection, even if bytes received before are unread: a response
    /// would not arrive. Costs a system call.
    pub fn check_reset(&mut self, now: Instant) -> bool {
        let Some(error) = self.io.take_error() else {
            return false;
        };
        self.on_failure(now, failure_rule(&error));
        true
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.io.fd()
    }

    /// Flushes, then reads. Called before the events are handled; flushing first lets the events report the
    /// room that it made. Returns whether there was input.
    pub(crate) fn begin_service(
        &mut self,
        buffers: &mut BufferPool,
        now: Instant,
        budget: usize,
    ) -> bool {
        if self.output == Output::Open && self.proto.pending_bytes() > 0 {
            self.flush(now, budget);
        }
        self.receive(buffers, now)
    }

    /// Whether `receive` may have something: QUIC holds the bytes of streams until there is room for them.
    pub(crate) fn may_receive(&self) -> bool {
        !self.input.over && (self.input.readable || self.io.quic().is_some())
    }

    /// Whether `receive` would take more at once, without a further event of the socket. QUIC's datagrams are read
    /// whether HTTP/3 has room or not; it holds what has no room until HTTP/3 asks for it.
    pub(crate) fn has_more_input(&self, interest: Interest) -> bool {
        let ready = if self.io.quic().is_some() {
            self.input.readable || interest.read
        } else {
            self.input.readable && interest.read
        };
        ready && !self.input.over
    }

    /// Reads once from the socket, or repeatedly to reach the end of input. Returns whether there was any
    /// input, including its end.
    pub(crate) fn receive(&mut self, buffers: &mut BufferPool, now: Instant) -> bool {
        if self.input.broken.is_some() {
            return self.report_failure(now);
        }
        if let Transport::Quic(_) = self.io {
            self.proto.prepare(buffers);
            return self.receive_quic(now);
        }
        let mut news = false;
        while self.input.readable && !self.input.over {
            let space = self.proto.recv_space(buffers);
            if space.is_empty() {
                // Backpressure: the socket stays readable and is read when there is room. A reset is
                // reported now, except where the kernel may still hold a response (HTTP/2 clients).
                if self.input.closed
                    && !self.reports_in_order()
                    && let Some(error) = self.io.take_error()
                {
                    self.on_failure(now, failure_rule(&error));
                    return true;
                }
                return news;
            }
            let Some(stream) = self.io.stream_mut() else {
                return news;
            };
            let received = stream.recv(space);
            self.apply_alpn();
            match received {
                Ok(RecvOutcome::Data { bytes, drained }) => {
                    news = true;
                    self.proto.received(now, bytes);
                    self.count_received(bytes);
                    self.input.readable = !drained || self.input.closed;
                    if !(drained && self.input.closed) {
                        return true;
                    }
                }
                other => {
                    news |= self.end_receive(other, now);
                    if self.input.broken.is_some() || self.input.over {
                        return news;
                    }
                }
            }
        }
        news
    }

    /// Handles the outcome of a receive without data. Returns whether there was an end of input or a failure to report.
    pub(crate) fn end_receive(
        &mut self,
        received: std::io::Result<RecvOutcome>,
        now: Instant,
    ) -> bool {
        match received {
            Ok(RecvOutcome::Eof) => {
                self.input.over = true;
                self.proto.received_eof(now);
                true
            }
            Ok(_) => {
                self.input.readable = false;
                false
            }
            Err(error) => {
                if self.io.is_handshaking() {
                    self.handshake_failed(&error, now);
                }
                self.input.broken = Some(failure_rule(&error));
                self.report_failure(now)
            }
        }
    }

    /// Reports the failure of the transport, after the events that precede it. A server that refuses an
    /// upload responds and closes, and the unread bytes cause a reset right after its response. An HTTP/2
    /// client would lose the response with the connection; HTTP/1 keeps it, and a server needs no order.
    pub(crate) fn report_failure(&mut self, now: Instant) -> bool {
        let Some(rule) = self.input.broken else {
            return false;
        };
        if self.reports_in_order() && self.proto.has_events() {
            return false;
        }
        self.on_failure(now, rule);
        true
    }

    /// Passes the refusals of the protocol to the counters and logs of the server.
    #[cold]
    pub(crate) fn report_refusals(&mut self, now: Instant) {
        let client = self.remote_addr().inet().map(|address| address.ip());
        while let Some(refusal) = self.proto.take_refusal() {
            if let Some(refusals) = &self.count.service.refusals {
                refusals.on_protocol(&refusal, client, now);
            }
        }
    }

    /// The reason for which the protocol has failed the exchange `stream`, and the status that it has sent (0: none).
    pub fn refused(&self, stream: StreamId) -> Option<(u16, RefusedFor)> {
        let (status, reason, rule) = self.proto.refusal_of(stream)?;
        let protocol = self.proto.protocol().unwrap_or(Protocol::Http1);
        let reason = Reason::of(status, reason, protocol);
        Some((status, RefusedFor { reason, rule }))
    }

    /// Whether the transport takes no more output. A response that the server sent before may still be readable, and
    /// the end of input behind a complete response causes no event.
    pub(crate) fn has_send_failed(&self) -> bool {
        self.output == Output::Broken || self.input.broken.is_some()
    }

    /// Whether the protocol has failed and reads no more input.
    pub(crate) fn has_ended(&self) -> bool {
        self.proto.error().is_some() && !self.proto.interest().read
    }

    /// Whether received events are reported before a failure of the transport (HTTP/2 clients).
    fn reports_in_order(&self) -> bool {
        self.proto.side() == Side::Client && self.proto.protocol() == Some(Protocol::Http2)
    }

    /// Sets the protocol that the TLS handshake has negotiated, if it was not fixed before.
    fn apply_alpn(&mut self) {
        let Some(tls) = self.io.tls() else { return };
        if self.proto.protocol().is_none() && !tls.is_handshaking() {
            let protocol = match tls.alpn() {
                Some(chosen) if chosen == ALPN_H2 => Protocol::Http2,
                _ => Protocol::Http1,
            };
            // This fails only after the first byte has been received.
            let _ = self.proto.set_protocol(protocol);
        }
    }

    /// Handles a deadline: of the protocol, of the front end, or both.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.timers.check_wake(now);
        if self.proto.deadline().is_none_or(|at| now < at) {
            return;
        }
        if self.io.is_before_http() {
            self.count_handshake_failure();
            // No response can be sent before the handshake or the PROXY header is complete.
            self.on_failure(now, "TLS handshake or PROXY header not complete in time");
        } else {
            self.proto.handle_timeout(now);
        }
    }

    /// Handles a failure of the transport.
    pub(crate) fn on_failure(&mut self, now: Instant, rule: &'static str) {
        self.input.over = true;
        self.input.broken = None;
        self.files.clear();
        self.proto.received_abort(now, rule);
    }
}

/// Description of a transport failure, with its rule.
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
