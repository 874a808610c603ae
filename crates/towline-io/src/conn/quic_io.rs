//! Moves data and events between QUIC and HTTP/3.
//!
//! ```text
//! QUIC ── events ──► stream_readable, stream_writable, ... ─┐
//!      ── bytes of streams that have room (credit) ─────────┼─► proto
//!      ◄── commands, then bytes in the order of priority ───┘
//! ```

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use quinn_proto::{
    ConnectionError, Dir, Event, ReadError, StreamEvent, StreamId, VarInt, WriteError,
};
use towline_proto::{Connection, QuicClose, QuicCommand, Side, StreamSend};

use crate::conn::flush::FlushOutcome;
use crate::conn::quic_transport::QuicTransport;
use crate::conn::transport::Transport;
use crate::conn::{Conn, Output};
use crate::quic::{ReceiveOutcome, SendOutcome};
use crate::serve::metrics::SlotHandle;
use crate::tls::text_lacks_client_certificate;

impl<S> Conn<S> {
    /// Takes what QUIC has received, and handles its timers. Returns whether there was any input.
    pub(super) fn receive_quic(&mut self, now: Instant) -> bool {
        let Transport::Quic(quic) = &mut self.io else {
            return false;
        };
        if quic.is_lost {
            // A server closes when all that it has sent is acknowledged, not when it is read here.
            let received = read_streams(&mut self.proto, quic, now);
            self.input.over = self.proto.interest().closed;
            if received > 0 {
                self.count_received(received);
            }
            return received > 0;
        }
        self.input.readable = quic.owns_endpoint()
            && self.input.readable
            && quic.receive_datagrams(now) == ReceiveOutcome::More;
        quic.service(now);
        if quic.receives_early_data() {
            self.proto.begin_early_data();
        }
        if quic.is_refused() {
            quic.is_lost = true;
            let rule = "nothing listens on the server's UDP port any more (RFC 792, RFC 4443)";
            self.proto.quic_closed(now, &QuicClose::ByTransport(rule));
        }
        if quic.is_unanswered(now) {
            let rule = "no answer to early data (RFC 9001 4.6)";
            lose_early(&mut self.proto, quic, now, rule);
        }
        let mut news = false;
        let mut failed = None;
        while let Some(event) = quic.conn.quic().poll() {
            news = true;
            if let (Event::ConnectionLost { reason }, false) = (&event, quic.is_connected) {
                failed = Some(text_lacks_client_certificate(&reason.to_string()));
            }
            if let (false, Some(meter)) =
                (matches!(event, Event::Stream(_)), &self.count.service.meter)
            {
                count(meter, quic, &self.proto, &event);
            }
            on_event(&mut self.proto, quic, event, now);
        }
        if self.proto.side() == Side::Client {
            offer_streams(&mut self.proto, quic, now);
        }
        let received = read_streams(&mut self.proto, quic, now);
        if self.proto.error().is_some() && quic.has_new_acknowledgements() {
            self.proto.transport_progressed(now);
        }
        if let Some(remote) = quic.take_migration() {
            self.addresses.remote = remote;
            if let Some(meter) = &self.count.service.meter {
                meter.quic_migrations.fetch_add(1, Relaxed);
            }
        }
        if quic.is_lost {
            self.input.over = self.proto.interest().closed;
            self.files.clear();
        }
        if let (Some(is_absent), Side::Server) = (failed, self.proto.side()) {
            self.log_refused_certificate(is_absent, now);
        }
        if received > 0 {
            self.count_received(received);
        }
        news || received > 0
    }

    /// Sends commands, then bytes of streams, at most about `budget` bytes.
    pub(super) fn flush_quic(&mut self, now: Instant, budget: usize) -> FlushOutcome {
        let mut sent = 0;
        loop {
            self.fill_from_files();
            let Transport::Quic(quic) = &mut self.io else {
                return FlushOutcome::All;
            };
            run_commands(&mut self.proto, quic, now);
            let written = write_streams(&mut self.proto, quic, now, budget - sent);
            let outcome = quic.send(now, budget);
            sent += written;
            if written > 0 {
                self.count_sent(now, written);
            }
            match outcome {
                SendOutcome::Blocked => return FlushOutcome::Blocked,
                SendOutcome::Budget => return FlushOutcome::Budget,
                SendOutcome::All if sent >= budget => return FlushOutcome::Budget,
                // Files may have more for the room that was made.
                SendOutcome::All if written > 0 && !self.files.is_empty() => {}
                SendOutcome::All => return FlushOutcome::All,
            }
        }
    }

    /// Sends `CONNECTION_CLOSE`, unless the connection is over. HTTP/3 has usually said with which code.
    pub(super) fn close_quic(&mut self, now: Instant) {
        let Transport::Quic(quic) = &mut self.io else {
            return;
        };
        run_commands(&mut self.proto, quic, now);
        if !quic.is_lost {
            quic.close(now, H3_NO_ERROR, "");
            quic.send(now, usize::MAX);
        }
        if let Some(meter) = &self.count.service.meter {
            let (sent, lost) = quic.packets();
            meter.quic_packets_sent.fetch_add(sent, Relaxed);
            meter.quic_packets_lost.fetch_add(lost, Relaxed);
        }
        self.output = Output::Finished;
    }
}

/// RFC 9114 8.1.
const H3_NO_ERROR: u64 = 0x100;
const H3_GENERAL_PROTOCOL_ERROR: u64 = 0x101;

#[cold]
fn count(meter: &SlotHandle, quic: &QuicTransport, proto: &Connection, event: &Event) {
    match event {
        Event::Connected => {
            meter.quic_handshakes.fetch_add(1, Relaxed);
            count_early_data(meter, proto);
        }
        Event::ConnectionLost { .. } if !quic.is_connected => {
            meter.tls_handshake_failures.fetch_add(1, Relaxed);
            count_early_data(meter, proto);
        }
        _ => {}
    }
}

/// Counts the requests that came before the end of the handshake.
fn count_early_data(meter: &SlotHandle, proto: &Connection) {
    let early = proto.early_data();
    let (delivered, held) = (early.delivered.into(), early.held.into());
    meter.quic_early_requests.fetch_add(delivered, Relaxed);
    meter.quic_early_held.fetch_add(held, Relaxed);
}

fn on_event(proto: &mut Connection, quic: &mut QuicTransport, event: Event, now: Instant) {
    match event {
        Event::Stream(event) => on_stream_event(proto, quic, &event, now),
        Event::ConnectionLost { reason } => {
            quic.lose(now, &reason);
            if let Some(early) = quic.early.take() {
                early.forget_tickets();
            }
            proto.quic_closed(now, &describe(&reason));
        }
        Event::Connected => {
            quic.is_connected = true;
            on_connected(proto, quic, now);
        }
        Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
    }
}

/// The handshake is complete: what a client has sent in early data is sent again if the server has refused it.
fn on_connected(proto: &mut Connection, quic: &mut QuicTransport, now: Instant) {
    match quic.early.take() {
        Some(mut early) if !quic.conn.quic().accepted_0rtt() => {
            quic.opened.clear();
            let blocked = early.take_blocked();
            if early.send_again(quic.conn.quic(), run_on_stream) {
                proto.refuse_early_data();
                for id in blocked {
                    proto.stream_writable(now, id);
                }
            } else {
                let rule = "the server allows less than before its early data (RFC 9000 7.4.1)";
                lose_early(proto, quic, now, rule);
            }
        }
        _ => proto.end_early_data(),
    }
}

/// Ends a connection whose early data has failed. Its calls go to another one.
fn lose_early(proto: &mut Connection, quic: &mut QuicTransport, now: Instant, rule: &'static str) {
    if let Some(early) = quic.early.take() {
        early.forget_tickets();
    }
    quic.close(now, H3_NO_ERROR, "");
    quic.send(now, usize::MAX);
    quic.is_lost = true;
    proto.quic_closed(now, &QuicClose::ByTransport(rule));
}

fn on_stream_event(
    proto: &mut Connection,
    quic: &mut QuicTransport,
    event: &StreamEvent,
    now: Instant,
) {
    match *event {
        StreamEvent::Opened { dir } => {
            while let Some(id) = quic.conn.quic().streams().accept(dir) {
                proto.stream_readable(now, id.into());
            }
        }
        StreamEvent::Readable { id } => proto.stream_readable(now, id.into()),
        StreamEvent::Writable { id } => proto.stream_writable(now, id.into()),
        StreamEvent::Finished { id } => proto.stream_acknowledged(now, id.into()),
        StreamEvent::Stopped { id, error_code } => {
            proto.stream_stop_received(now, id.into(), error_code.into_inner());
        }
        // Streams of ours are opened when they are needed, and for clients ahead of it.
        StreamEvent::Available { .. } => {}
    }
}

/// Tells the client's HTTP/3 how many requests it can start.
pub(super) fn offer_streams(proto: &mut Connection, quic: &mut QuicTransport, now: Instant) {
    if let Some(count) = quic.open_ahead() {
        proto.set_stream_credit(now, count);
    }
}

/// Reads the streams for which HTTP/3 has room; returns the number of bytes.
fn read_streams(proto: &mut Connection, quic: &mut QuicTransport, now: Instant) -> usize {
    let mut received = 0;
    while let Some(recv) = proto.next_stream_recv() {
        let mut stream = quic.conn.quic().recv_stream(stream_id(recv.id));
        let Ok(mut chunks) = stream.read(true) else {
            // Stopped, or read to its end.
            proto.stream_drained(recv.id);
            continue;
        };
        let mut room = recv.max_bytes;
        while room > 0 {
            match chunks.next(room) {
                Ok(Some(chunk)) => {
                    room -= chunk.bytes.len();
                    received += chunk.bytes.len();
                    proto.stream_received(now, recv.id, chunk.bytes);
                    continue;
                }
                Ok(None) => proto.stream_end(now, recv.id),
                Err(ReadError::Blocked) => proto.stream_drained(recv.id),
                Err(ReadError::Reset(code)) => {
                    proto.stream_reset_received(now, recv.id, code.into_inner());
                }
            }
            break;
        }
    }
    received
}

fn run_commands(proto: &mut Connection, quic: &mut QuicTransport, now: Instant) {
    open_streams(proto, quic, now);
    while let Some(command) = proto.next_quic_command() {
        match command {
            QuicCommand::Open { uni: true, id } => {
                quic.unopened.push_back(id);
                open_streams(proto, quic, now);
            }
            QuicCommand::Open { uni: false, id } => {
                let opened = quic.opened.pop_front();
                debug_assert_eq!(opened, Some(id), "HTTP/3 numbers streams as QUIC does");
                if let Some(early) = &mut quic.early {
                    early.record_open(Dir::Bi);
                }
            }
            QuicCommand::Close { code, reason } => quic.close(now, code, reason),
            command => {
                if let Some(early) = &mut quic.early {
                    early.record_command(command);
                }
                run_on_stream(quic.conn.quic(), command);
            }
        }
    }
}

/// Carries out a command that concerns one stream. An error of QUIC means that the stream has ended already.
fn run_on_stream(quic: &mut quinn_proto::Connection, command: QuicCommand) {
    match command {
        QuicCommand::Reset { id, code } => {
            let _ = quic.send_stream(stream_id(id)).reset(var_int(code));
        }
        QuicCommand::StopSending { id, code } => {
            let _ = quic.recv_stream(stream_id(id)).stop(var_int(code));
        }
        QuicCommand::Priority { id, urgency } => {
            // quinn sends larger numbers first; streams without a command have 0.
            let priority = DEFAULT_URGENCY - i32::from(urgency);
            let _ = quic.send_stream(stream_id(id)).set_priority(priority);
        }
        QuicCommand::Open { .. } | QuicCommand::Close { .. } => {}
    }
}

/// RFC 9218 4.1.
const DEFAULT_URGENCY: i32 = 3;

/// Opens unidirectional streams. Before the handshake QUIC may not know yet that the peer allows them: a `ClientHello` of
/// several datagrams is received piece by piece. What HTTP/3 has offered of them meanwhile was refused.
fn open_streams(proto: &mut Connection, quic: &mut QuicTransport, now: Instant) {
    while let Some(id) = quic.unopened.front().copied()
        && let Some(opened) = quic.conn.quic().streams().open(Dir::Uni)
    {
        debug_assert_eq!(u64::from(opened), id, "HTTP/3 numbers streams as QUIC does");
        quic.unopened.pop_front();
        proto.stream_writable(now, id);
        if let Some(early) = &mut quic.early {
            early.record_open(Dir::Uni);
        }
    }
    if !quic.unopened.is_empty() && !quic.is_handshaking() {
        let rule = "fewer than three unidirectional streams (RFC 9114 6.2)";
        quic.unopened.clear();
        quic.close(now, H3_GENERAL_PROTOCOL_ERROR, rule);
        proto.quic_closed(now, &QuicClose::ByTransport(rule));
    }
}

/// Writes the streams in the order of HTTP/3; returns the number of bytes.
fn write_streams(
    proto: &mut Connection,
    quic: &mut QuicTransport,
    now: Instant,
    budget: usize,
) -> usize {
    let mut written = 0;
    while written < budget
        && let Some(send) = proto.next_stream_send()
    {
        let StreamSend { id, data, end } = send;
        let offered = data.len();
        let copy = quic.early.is_some().then(|| data.clone());
        let (mut chunks, mut taken) = ([data], 0);
        // Until it is refused: QUIC reports that a stream is writable after a refusal, not after a write in part.
        while taken < offered {
            let mut stream = quic.conn.quic().send_stream(stream_id(id));
            match stream.write_chunks(&mut chunks) {
                Ok(written) => taken += written.bytes,
                Err(WriteError::Blocked) if quic.conn.widen_send_window() => {}
                // A stopped stream has an event of its own, and HTTP/3 then offers nothing of it.
                Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    break;
                }
            }
        }
        let end = end && taken == offered;
        if end {
            // Fails only for a stream that is stopped or reset.
            let _ = quic.conn.quic().send_stream(stream_id(id)).finish();
        }
        if let (Some(early), Some(copy)) = (&mut quic.early, copy) {
            early.record_bytes(id, copy.slice(..taken), end);
            if taken < offered {
                early.record_blocked(id);
            }
        }
        written += taken;
        proto.stream_sent(now, id, taken, end);
    }
    written
}

fn describe(reason: &ConnectionError) -> QuicClose {
    match reason {
        ConnectionError::ApplicationClosed(close) => QuicClose::ByApplication {
            code: close.error_code.into_inner(),
            reason: close.reason.clone(),
        },
        ConnectionError::TimedOut => QuicClose::IdleTimeout,
        ConnectionError::Reset => {
            QuicClose::ByTransport("the peer has forgotten the connection (RFC 9000 10.3)")
        }
        ConnectionError::ConnectionClosed(_) => {
            QuicClose::ByTransport("closed by the peer's transport (RFC 9000 10.2)")
        }
        ConnectionError::TransportError(_) => {
            QuicClose::ByTransport("violation of QUIC, or TLS handshake failed (RFC 9000 11)")
        }
        ConnectionError::VersionMismatch => {
            QuicClose::ByTransport("no common version of QUIC (RFC 9000 6)")
        }
        ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => {
            QuicClose::ByTransport("closed")
        }
    }
}

fn stream_id(id: u64) -> StreamId {
    StreamId::from(var_int(id))
}

fn var_int(number: u64) -> VarInt {
    VarInt::from_u64(number).unwrap_or(VarInt::MAX)
}
