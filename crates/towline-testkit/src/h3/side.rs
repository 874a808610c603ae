//! QUIC at one end: what has arrived for its connection, and what the connection has sent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{Connection, ErrorCode, QuicCommand};

use super::frames::{self, read_varint};
use super::notation::Arrival;

/// A stream of the peer, or the peer's direction of one.
#[derive(Debug, Default)]
struct Incoming {
    bytes: VecDeque<u8>,
    end: bool,
    reset: Option<u64>,
}

/// A stream of ours, or our direction of one.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    end: bool,
    /// Resets and requests to stop.
    orders: Vec<String>,
}

/// The streams of one end.
#[derive(Debug, Default)]
pub struct QuicSide {
    incoming: BTreeMap<u64, Incoming>,
    outgoing: BTreeMap<u64, Outgoing>,
    close: Option<String>,
    /// Bytes that each stream takes before it is blocked.
    pub send_room: Option<usize>,
}

impl QuicSide {
    /// Something arrives.
    pub fn arrive(&mut self, conn: &mut Connection, now: Instant, arrival: Arrival) {
        match arrival {
            Arrival::Bytes(id, bytes) => {
                self.incoming.entry(id).or_default().bytes.extend(bytes);
                conn.stream_readable(now, id);
            }
            Arrival::End(id) => {
                self.incoming.entry(id).or_default().end = true;
                conn.stream_readable(now, id);
            }
            Arrival::Reset(id, code) => {
                let incoming = self.incoming.entry(id).or_default();
                incoming.bytes.clear();
                incoming.reset = Some(code);
                conn.stream_readable(now, id);
            }
            Arrival::Stop(id, code) => conn.stream_stop_received(now, id, code),
            Arrival::Close(code) => conn.quic_closed(now, &super::closed_with(code)),
        }
    }

    /// The connection reads what it has room for; whether it has read anything.
    pub fn receive(&mut self, conn: &mut Connection, now: Instant) -> bool {
        let mut moved = false;
        while let Some(recv) = conn.next_stream_recv() {
            let incoming = self.incoming.entry(recv.id).or_default();
            let n = recv.max_bytes.min(incoming.bytes.len());
            if n > 0 {
                let data: Vec<u8> = incoming.bytes.drain(..n).collect();
                conn.stream_received(now, recv.id, Bytes::from(data));
                moved = true;
            } else if let Some(code) = incoming.reset.take() {
                conn.stream_reset_received(now, recv.id, code);
                moved = true;
            } else if std::mem::take(&mut incoming.end) {
                conn.stream_end(now, recv.id);
                moved = true;
            } else {
                conn.stream_drained(recv.id);
            }
        }
        moved
    }

    /// Takes the orders and the bytes of the connection; whether there were any.
    pub fn send(&mut self, conn: &mut Connection, now: Instant) -> bool {
        let mut moved = false;
        while let Some(command) = conn.next_quic_command() {
            moved = true;
            let code = |code| match ErrorCode(code).name() {
                "" => format!("{code:#x}"),
                name => name.to_owned(),
            };
            let (id, order) = match command {
                QuicCommand::Open { .. } | QuicCommand::Priority { .. } => continue,
                QuicCommand::Reset { id, code: error } => (id, format!("reset {}", code(error))),
                QuicCommand::StopSending { id, code: error } => {
                    (id, format!("stop {}", code(error)))
                }
                QuicCommand::Close {
                    code: error,
                    reason,
                } => {
                    let space = if reason.is_empty() { "" } else { " " };
                    self.close = Some(format!("close {}{space}{reason}", code(error)));
                    continue;
                }
            };
            self.outgoing.entry(id).or_default().orders.push(order);
        }
        while let Some(send) = conn.next_stream_send() {
            let outgoing = self.outgoing.entry(send.id).or_default();
            let room = self
                .send_room
                .map_or(usize::MAX, |room| room.saturating_sub(outgoing.bytes.len()));
            let n = send.data.len().min(room);
            outgoing.bytes.extend_from_slice(&send.data[..n]);
            let is_whole = n == send.data.len();
            outgoing.end = send.end && is_whole;
            conn.stream_sent(now, send.id, n, outgoing.end);
            if outgoing.end {
                conn.stream_acknowledged(now, send.id);
            }
            moved |= n > 0 || outgoing.end;
        }
        moved
    }

    /// The peer gives each stream room for this number of bytes in all.
    pub fn make_room(&mut self, conn: &mut Connection, now: Instant, bytes: usize) {
        self.send_room = Some(bytes);
        for id in self.outgoing.keys() {
            conn.stream_writable(now, *id);
        }
    }

    /// Bytes sent on a stream.
    pub fn sent(&self, id: u64) -> &[u8] {
        self.outgoing.get(&id).map_or(&[], |sent| &sent.bytes)
    }

    /// Whether a stream was ended.
    pub fn is_ended(&self, id: u64) -> bool {
        self.outgoing.get(&id).is_some_and(|sent| sent.end)
    }

    /// Resets and requests to stop of a stream.
    pub fn orders(&self, id: u64) -> &[String] {
        self.outgoing.get(&id).map_or(&[], |sent| &sent.orders)
    }

    /// The order to close, with its code.
    pub fn close_order(&self) -> Option<&str> {
        self.close.as_deref()
    }

    /// Everything sent, by stream, without what every connection begins with.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (id, outgoing) in &self.outgoing {
            let found = match id % 4 {
                0 => frames::lines(&outgoing.bytes),
                _ => unidirectional(&outgoing.bytes),
            };
            lines.extend(found.iter().map(|line| format!("{id} {line}")));
            lines.extend(outgoing.end.then(|| format!("{id} end")));
            lines.extend(outgoing.orders.iter().map(|order| format!("{id} {order}")));
        }
        lines.extend(self.close.clone());
        lines
    }
}

/// The lines of one of our unidirectional streams.
fn unidirectional(bytes: &[u8]) -> Vec<String> {
    let Some((kind, n)) = read_varint(bytes) else {
        return Vec::new();
    };
    match kind {
        0 => {
            let lines = frames::lines(&bytes[n..]);
            let is_usual =
                |line: &String| line.starts_with("SETTINGS") || line.starts_with("frame");
            lines.into_iter().filter(|line| !is_usual(line)).collect()
        }
        2 if bytes.len() > n => vec!["instructions".into()],
        3 => decoder_lines(&bytes[n..]),
        _ => Vec::new(),
    }
}

/// The instructions of our decoder stream; increments are added up, since they depend on the cuts.
fn decoder_lines(bytes: &[u8]) -> Vec<String> {
    let (mut lines, mut increment) = (Vec::new(), 0);
    // Numbers of these tests fit into their prefixes.
    for byte in bytes {
        match byte {
            0x80.. => lines.push(format!("acknowledge {}", byte & 0x7f)),
            0x40.. => lines.push(format!("cancel {}", byte & 0x3f)),
            _ => increment += u64::from(*byte),
        }
    }
    if increment > 0 {
        lines.push(format!("increment {increment}"));
    }
    lines
}
