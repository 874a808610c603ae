//! Early data (0-RTT) of a client, which is sent again if the server refuses it (RFC 9001 4.6.2).
//!
//! ```text
//!            ┌─ accepted ──────────────────────────────► forgotten
//!  recorded ─┼─ refused ── QUIC forgets all streams ───► opened and written again, in the same order
//!            └─ no answer, or the handshake fails ─────► the connection is over; its calls go to another one
//! ```
//!
//! HTTP/3 knows nothing of it: the streams have the same numbers and the same bytes the second time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{Dir, StreamId, VarInt};
use towline_proto::QuicCommand;

use crate::tls::ClientTls;

/// Time within which a server must answer early data with a packet: that after which QUIC sends again on a new path
/// (RFC 9002 6.2.2). Early data goes to servers that have answered before, so that no other way is tried meanwhile.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

enum Record {
    Bytes { id: u64, data: Bytes, end: bool },
    Command(QuicCommand),
}

/// A client's early data.
pub(crate) struct EarlyFlight {
    sent: Vec<Record>,
    /// Streams that QUIC had no room for.
    blocked: Vec<u64>,
    /// Streams opened by HTTP/3, bidirectional and unidirectional.
    requests: u64,
    unidirectional: u64,
    /// When the connection is over if the server has not answered.
    pub(super) answer_by: Instant,
    /// Where the tickets of the server are, which are forgotten if the connection fails.
    tls: Arc<ClientTls>,
    server_name: Box<str>,
}

impl EarlyFlight {
    pub(crate) fn new(now: Instant, tls: &Arc<ClientTls>, server_name: &str) -> Self {
        Self {
            sent: Vec::new(),
            blocked: Vec::new(),
            requests: 0,
            unidirectional: 0,
            answer_by: now + ANSWER_TIMEOUT,
            tls: Arc::clone(tls),
            server_name: server_name.into(),
        }
    }

    pub(super) fn record_open(&mut self, dir: Dir) {
        match dir {
            Dir::Bi => self.requests += 1,
            Dir::Uni => self.unidirectional += 1,
        }
    }

    pub(super) fn record_bytes(&mut self, id: u64, data: Bytes, end: bool) {
        self.sent.push(Record::Bytes { id, data, end });
    }

    pub(super) fn record_command(&mut self, command: QuicCommand) {
        self.sent.push(Record::Command(command));
    }

    pub(super) fn record_blocked(&mut self, id: u64) {
        self.blocked.push(id);
    }

    /// Streams that QUIC had no room for, and does not report as writable, since it forgets them.
    pub(super) fn take_blocked(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.blocked)
    }

    /// Sends everything again; false if the server allows less than before.
    pub(super) fn send_again(
        self,
        quic: &mut quinn_proto::Connection,
        mut run: impl FnMut(&mut quinn_proto::Connection, QuicCommand),
    ) -> bool {
        for (dir, count) in [(Dir::Bi, self.requests), (Dir::Uni, self.unidirectional)] {
            for _ in 0..count {
                if quic.streams().open(dir).is_none() {
                    return false;
                }
            }
        }
        for sent in self.sent {
            match sent {
                Record::Command(command) => run(quic, command),
                Record::Bytes { id, data, end } => {
                    let id = StreamId::from(VarInt::from_u64(id).unwrap_or(VarInt::MAX));
                    let (len, mut written) = (data.len(), 0);
                    let mut chunks = [data];
                    let mut stream = quic.send_stream(id);
                    while written < len {
                        match stream.write_chunks(&mut chunks) {
                            Ok(taken) => written += taken.bytes,
                            Err(_) => return false,
                        }
                    }
                    if end && stream.finish().is_err() {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// The server has not answered, or the handshake has failed: the next connection begins without early data.
    pub(super) fn forget_tickets(&self) {
        self.tls.forget_quic_tickets(&self.server_name);
    }
}
