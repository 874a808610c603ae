//! One UDP socket and its connections: routes datagrams by connection ID, decides on new connections.
//!
//! ```text
//!                     ┌─ handshakes < retry_from_handshakes, or a valid token ─► waiting ─► accepted, one by one
//! first Initial ──────┼─ else, without a token ───────────────────────────────► Retry
//!                     └─ handshakes = max_handshakes, or not accepting ────────► refused, as is one that is not admitted
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, ConnectError, ConnectionEvent, ConnectionHandle, DatagramEvent, EndpointConfig,
    EndpointEvent, Incoming, ServerConfig, Transmit, VarInt,
};

use crate::quic::closing::{Closing, MAX_CLOSING, MAX_CLOSING_TIME};
use crate::quic::early_packets::{destination, has_zero_rtt};
use crate::quic::key::Key;
use crate::quic::socket::{MESSAGES, Message, Origin, ReceiveBuffers};
use crate::quic::{Connection, QuicLimits, UdpSocket, Workers};
use crate::serve::limits::ConnectionLimits;

/// Outcome of [`Endpoint::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// The socket has no more datagrams.
    All,
    /// There may be more.
    More,
}

/// A new connection before its handshake.
struct Waiting {
    incoming: Incoming,
    /// The client has sent early data.
    has_early_data: bool,
}

/// The endpoint's part of a connection.
#[derive(Default)]
struct Slot {
    /// Events for the connection, which its next service takes.
    inbox: VecDeque<ConnectionEvent>,
    /// The connection is in the list of ready ones.
    ready: bool,
    /// The handshake of a server's connection is not complete.
    handshaking: bool,
    /// The client has sent early data.
    has_early_data: bool,
    /// Number that the program has given to the connection.
    tag: u64,
    /// The connection is closed and only repeats its `CONNECTION_CLOSE` (RFC 9000 10.2.1).
    closing: Option<Box<Closing>>,
}

/// Counts of an endpoint since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// Retry packets sent.
    pub retries: u64,
    /// Connections refused: too many handshakes, or not accepting.
    pub refused: u64,
    /// Handshakes completed whose early data was accepted.
    pub early_accepted: u64,
    /// Handshakes completed whose early data was refused: the requests came after the handshake.
    pub early_refused: u64,
}

/// A UDP socket with the QUIC connections on it.
pub struct Endpoint {
    quic: quinn_proto::Endpoint,
    socket: Arc<UdpSocket>,
    limits: QuicLimits,
    /// A configuration was given and new connections are accepted.
    accepting: bool,
    slots: Vec<Option<Slot>>,
    handshakes: usize,
    /// New connections before their handshakes. The handshakes cost as much as many requests, so the program
    /// decides how many come between two services of the others.
    waiting: VecDeque<Waiting>,
    ready: VecDeque<Key>,
    /// Closed connections in the order in which they were closed, and when they are forgotten.
    closing: VecDeque<(Instant, Key)>,
    counts: EndpointCounts,
    reply: Vec<u8>,
    /// The workers that share its port, and its number among the endpoints of each.
    workers: Option<(Arc<Workers>, usize)>,
    pub(crate) connection_limits: Option<Arc<ConnectionLimits>>,
}

thread_local! {
    /// Space for received datagrams, shared by the endpoints of a thread: a client has one for each connection.
    static BUFFERS: RefCell<ReceiveBuffers> = RefCell::new(ReceiveBuffers::new());
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("socket", &self.socket)
            .field("connections", &self.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint that accepts connections if there is a `server` configuration. Any can connect.
    pub fn new(socket: UdpSocket, server: Option<ServerConfig>, limits: QuicLimits) -> Self {
        Self::with_config(EndpointConfig::default(), socket, server, limits)
    }

    /// A server's endpoint with the number `index` in a worker that shares its port with `workers`.
    pub fn of_worker(
        socket: UdpSocket,
        server: ServerConfig,
        limits: QuicLimits,
        workers: &Arc<Workers>,
        index: usize,
    ) -> Self {
        let config = workers.endpoint_config();
        if index == 0 {
            workers.set_socket(socket.inode());
        }
        Self {
            workers: Some((Arc::clone(workers), index)),
            ..Self::with_config(config, socket, Some(server), limits)
        }
    }

    fn with_config(
        config: EndpointConfig,
        socket: UdpSocket,
        server: Option<ServerConfig>,
        limits: QuicLimits,
    ) -> Self {
        let accepting = server.is_some();
        let may_probe_mtu = !socket.may_fragment();
        Self {
            quic: quinn_proto::Endpoint::new(
                Arc::new(config),
                server.map(Arc::new),
                may_probe_mtu,
                None,
            ),
            socket: Arc::new(socket),
            limits,
            accepting,
            slots: Vec::new(),
            handshakes: 0,
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            closing: VecDeque::new(),
            counts: EndpointCounts::default(),
            reply: Vec::new(),
            workers: None,
            connection_limits: None,
        }
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Replaces the socket of a client's endpoint by a new one for `remote`, and moves its connection to it.
    pub(crate) fn reconnect(
        &self,
        conn: &mut Connection,
        remote: SocketAddr,
        local: Option<IpAddr>,
    ) -> io::Result<()> {
        let buffer_bytes = self.limits.socket_buffer_bytes;
        self.socket.reconnect(remote, local, buffer_bytes)?;
        conn.quic().local_address_changed();
        Ok(())
    }

    /// Number of connections, including those that have closed and answer late packets for a while.
    pub fn len(&self) -> usize {
        self.quic.open_connections()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Server handshakes in progress.
    #[cfg(test)]
    pub(crate) fn handshakes(&self) -> usize {
        self.handshakes
    }

    /// Refuses new connections from now on, or forwards them to workers that accept them. Open ones stay.
    pub fn stop_accepting(&mut self) {
        self.accepting = false;
    }

    /// Whether another process reads the same socket and accepts connections: leave the socket to it, and it forwards
    /// our datagrams. Two readers would divide the datagrams of a handshake.
    pub(crate) fn has_successor(&self) -> bool {
        let workers = self.workers.as_ref();
        workers.is_some_and(|(workers, _)| workers.has_successor())
    }

    /// Starts a connection. Call [`Connection::send`] to send its first packet.
    pub fn connect(
        &mut self,
        now: Instant,
        config: ClientConfig,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<Connection, ConnectError> {
        let (handle, quic) = self.quic.connect(now, config, remote, server_name)?;
        Ok(self.insert(handle, quic, false))
    }

    /// Reads one batch of datagrams, up to 64 KiB for each of eight senders. The connections concerned are
    /// returned by [`next_ready`](Self::next_ready), new ones by `next_accepted_if`.
    pub fn receive(&mut self, now: Instant) -> io::Result<ReceiveOutcome> {
        BUFFERS.with_borrow_mut(|buffers| {
            let messages = match self.socket.receive(buffers) {
                Ok(messages) => messages,
                Err(error) => return after_failure(error),
            };
            let workers = self.workers.clone();
            for index in 0..messages {
                let message = buffers.message(index);
                match &workers {
                    Some((workers, number)) => {
                        workers.take_own(*number, &message, |own| self.handle_datagrams(now, own));
                    }
                    None => self.handle_datagrams(now, &message),
                }
            }
            Ok(if messages < MESSAGES {
                ReceiveOutcome::All
            } else {
                ReceiveOutcome::More
            })
        })
    }

    /// Gives a connection a number, by which `next_ready` and `writable` name it; 0 before.
    pub fn set_tag(&mut self, key: Key, tag: u64) {
        if let Some(slot) = self.slot(key) {
            slot.tag = tag;
        }
    }

    pub fn counts(&self) -> EndpointCounts {
        self.counts
    }

    /// Begins the handshake of the next new connection whose client `admit` counts; the others are refused. Register it,
    /// then treat it as ready.
    pub(crate) fn next_accepted_if<T>(
        &mut self,
        now: Instant,
        admit: impl Fn(IpAddr) -> Option<T>,
    ) -> Option<(Connection, T)> {
        while let Some(waiting) = self.waiting.pop_front() {
            self.reply.clear();
            let Some(count) = admit(waiting.incoming.remote_address().ip()) else {
                self.refuse(waiting.incoming);
                continue;
            };
            let accepted = self
                .quic
                .accept(waiting.incoming, now, &mut self.reply, None);
            match accepted {
                Ok((handle, quic)) => {
                    let conn = self.insert(handle, quic, true);
                    if let Some(slot) = self.slot(conn.key()) {
                        slot.has_early_data = waiting.has_early_data;
                    }
                    return Some((conn, count));
                }
                Err(error) => {
                    if let Some(response) = error.response {
                        self.respond(&response);
                    }
                }
            }
        }
        None
    }

    /// Number of new connections that wait for `next_accepted_if`.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The tag of the next connection for which something has arrived: call [`service`](Self::service) with it.
    pub fn next_ready(&mut self) -> Option<u64> {
        loop {
            let key = self.ready.pop_front()?;
            if let Some(slot) = self.slot(key) {
                slot.ready = false;
                return Some(slot.tag);
            }
        }
    }

    /// The tags of the connections to send again, when the poll reports that the socket is writable.
    pub fn writable(&mut self) -> Vec<u64> {
        let blocked = self.socket.take_blocked();
        let tag = |key| self.slot(key).map(|slot| slot.tag);
        blocked.into_iter().filter_map(tag).collect()
    }

    /// Whether connections wait until the socket is writable.
    pub fn is_blocked(&self) -> bool {
        self.socket.is_blocked()
    }

    /// Keeps a connection that the program has closed, for a while: it repeats its last packet when the peer has not
    /// received it.
    pub fn retire(&mut self, mut conn: Connection, now: Instant) {
        let key = conn.key();
        let at = now + MAX_CLOSING_TIME;
        let at = conn.deadline().map_or(at, |deadline| deadline.min(at));
        if !self.service(&mut conn) {
            return;
        }
        if let Some(slot) = self.slot(key) {
            slot.closing = Some(Box::new(Closing::new(conn)));
            self.closing.push_back((at, key));
        }
        if self.closing.len() > MAX_CLOSING
            && let Some((_, oldest)) = self.closing.pop_front()
        {
            self.remove(oldest);
        }
    }

    /// Forgets the closed connections whose time is over: before each receive. The last ones stay until the next.
    pub fn forget_closed(&mut self, now: Instant) {
        while let Some((at, key)) = self.closing.front().copied()
            && at <= now
        {
            self.closing.pop_front();
            self.remove(key);
        }
    }

    /// Passes on what has arrived for the connection, and takes its messages to the endpoint. Call it when the
    /// connection is ready, and after it has sent or timed out. Returns false when the connection is over and
    /// forgotten here: drop it.
    pub fn service(&mut self, conn: &mut Connection) -> bool {
        let key = conn.key();
        let Some(slot) = self.slot(key) else {
            return false;
        };
        for event in slot.inbox.drain(..) {
            conn.quic().handle_event(event);
        }
        if slot.handshaking && !conn.is_handshaking() {
            slot.handshaking = false;
            let has_early_data = slot.has_early_data;
            self.handshakes -= 1;
            self.handshake_over(conn, has_early_data);
        }
        let mut open = true;
        while let Some(event) = conn.quic().poll_endpoint_events() {
            let drained = event.is_drained();
            if let Some(event) = self.quic.handle_event(key.handle(), event) {
                conn.quic().handle_event(event);
            }
            if drained {
                self.forget(key);
                open = false;
            }
        }
        open
    }

    /// Handles the end of a server's handshake: completed, perhaps closed since, or closed before.
    fn handshake_over(&mut self, conn: &mut Connection, has_early_data: bool) {
        if conn.crypto_session().is_handshaking() {
            return;
        }
        if self.limits.early_data {
            let window = VarInt::from_u32(self.limits.connection_window_bytes);
            conn.quic().set_receive_window(window);
        }
        if conn.has_early_data() {
            self.counts.early_accepted += 1;
        } else if has_early_data {
            self.counts.early_refused += 1;
        }
    }

    /// Forgets a connection that is dropped before it is over. Its peer gets stateless resets (RFC 9000 10.3).
    pub fn remove(&mut self, key: Key) {
        if self.slot(key).is_some() {
            let event = EndpointEvent::drained();
            let _ = self.quic.handle_event(key.handle(), event);
            self.forget(key);
        }
    }

    /// Handles datagrams for this endpoint.
    pub(crate) fn handle_datagrams(&mut self, now: Instant, message: &Message<'_>) {
        // One allocation for all, which the received bodies share.
        let mut bytes = BytesMut::from(message.bytes);
        for datagram in message.bytes.chunks(message.datagram_bytes) {
            let taken = if datagram.len() == bytes.len() {
                std::mem::take(&mut bytes)
            } else {
                bytes.split_to(datagram.len())
            };
            let message = Message {
                bytes: datagram,
                ..*message
            };
            self.handle_datagram(now, &message, taken);
        }
    }

    /// Handles the only datagram of `message`; `datagram`: its bytes.
    fn handle_datagram(&mut self, now: Instant, message: &Message<'_>, datagram: BytesMut) {
        self.reply.clear();
        let event = self.quic.handle(
            now,
            message.remote,
            message.local_ip,
            message.ecn,
            datagram,
            &mut self.reply,
        );
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let key = Key(handle.0);
                self.note_early_data(key, message.bytes);
                self.deliver(now, key, event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                if self.is_for_another(message) {
                    self.quic.ignore(incoming);
                } else {
                    self.decide(incoming, message.bytes);
                }
            }
            Some(DatagramEvent::Response(transmit)) => self.respond(&transmit),
            None => self.note_waiting_early_data(message.bytes),
        }
    }

    /// Notes whether a client that is not known yet sends early data.
    fn note_early_data(&mut self, key: Key, datagram: &[u8]) {
        if let Some(slot) = self.slot(key)
            && slot.handshaking
            && !slot.has_early_data
        {
            slot.has_early_data = has_zero_rtt(datagram);
        }
    }

    /// Notes early data of a client whose handshake has not begun: QUIC keeps its datagrams.
    fn note_waiting_early_data(&mut self, datagram: &[u8]) {
        if !self.waiting.is_empty() && has_zero_rtt(datagram) {
            let id = destination(datagram);
            let mut waiting = self.waiting.iter_mut().rev();
            if let Some(found) = waiting.find(|one| Some(&**one.incoming.orig_dst_cid()) == id) {
                found.has_early_data = true;
            }
        }
    }

    /// Forwards the first datagram of a connection that this worker does not accept, if another does.
    fn is_for_another(&self, message: &Message<'_>) -> bool {
        match &self.workers {
            Some((workers, index)) if !self.accepting => {
                // The second worker has just stopped accepting, too. The client sends again.
                message.origin == Origin::ForAccepting || workers.forward_new(*index, message)
            }
            _ => false,
        }
    }

    fn deliver(&mut self, now: Instant, key: Key, event: ConnectionEvent) {
        let most = self.limits.max_inbox;
        let Some(slot) = self.slots.get_mut(key.0).and_then(Option::as_mut) else {
            return;
        };
        if let Some(closing) = &mut slot.closing {
            return closing.handle(now, event);
        }
        if slot.inbox.len() >= most {
            return;
        }
        slot.inbox.push_back(event);
        if !std::mem::replace(&mut slot.ready, true) {
            self.ready.push_back(key);
        }
    }

    /// Keeps, retries or refuses a new connection, whose first datagram is given; see the picture of the module.
    fn decide(&mut self, incoming: Incoming, datagram: &[u8]) {
        self.reply.clear();
        let handshakes = self.handshakes + self.waiting.len();
        if !self.accepting || handshakes >= self.limits.max_handshakes {
            return self.refuse(incoming);
        }
        let client = incoming.remote_address().ip();
        let limits = self.connection_limits.as_ref();
        let requires_proof = handshakes >= self.limits.retry_from_handshakes
            || limits.is_some_and(|limits| limits.requires_proof(client));
        if requires_proof && !incoming.remote_address_validated() {
            // A token of a Retry that is wrong has been refused before.
            match self.quic.retry(incoming, &mut self.reply) {
                Ok(retry) => {
                    self.counts.retries += 1;
                    self.respond(&retry);
                }
                Err(error) => self.quic.ignore(error.into_incoming()),
            }
            return;
        }
        self.waiting.push_back(Waiting {
            incoming,
            has_early_data: has_zero_rtt(datagram),
        });
    }

    fn refuse(&mut self, incoming: Incoming) {
        self.counts.refused += 1;
        let refusal = self.quic.refuse(incoming, &mut self.reply);
        self.respond(&refusal);
    }

    /// Sends a datagram of the endpoint itself. If the socket is full it is lost, and the client tries again.
    fn respond(&self, transmit: &Transmit) {
        self.socket.send(transmit, &self.reply[..transmit.size]);
    }

    fn insert(
        &mut self,
        handle: ConnectionHandle,
        quic: quinn_proto::Connection,
        handshaking: bool,
    ) -> Connection {
        let index = handle.0;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Slot {
            handshaking,
            ..Slot::default()
        });
        self.handshakes += usize::from(handshaking);
        Connection::new(quic, Key(index), Arc::clone(&self.socket), &self.limits)
    }

    fn forget(&mut self, key: Key) {
        let slot = self.slots.get_mut(key.0).and_then(Option::take);
        self.handshakes -= usize::from(slot.is_some_and(|slot| slot.handshaking));
    }

    #[cfg(test)]
    pub(crate) fn duplicate_socket(&self) -> UdpSocket {
        self.socket.duplicate()
    }

    #[cfg(test)]
    pub(crate) fn inbox_len(&mut self, key: Key) -> usize {
        self.slot(key).map_or(0, |slot| slot.inbox.len())
    }

    fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.0)?.as_mut()
    }
}

/// An ICMP error of an earlier datagram, for example, does not concern the others.
fn after_failure(error: io::Error) -> io::Result<ReceiveOutcome> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(ReceiveOutcome::All),
        io::ErrorKind::Interrupted
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset => Ok(ReceiveOutcome::More),
        _ => Err(error),
    }
}
