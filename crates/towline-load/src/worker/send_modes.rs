//! Send modes that take several steps: in pieces, after 100 Continue, with the connection closed midway.
//!
//! ```text
//! begin ─► Pieces ──pause──► the next piece ... the last ─► Nothing
//!      ├─► Body ──100──► the body is sent ─► Nothing           (a final response: the connection ends)
//!      └─► Close ──all sent──► closed ─► the request again, whole, on a new connection
//! ```

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use bytes::Bytes;
use towline_io::Conn;
use towline_proto::{BodySize, Connection, StreamId, UserError};

use super::Worker;
use super::conn_state::ConnState;
use super::send::RequestTemplate;
use super::slot::{QueuedRequest, State};
use crate::target::{SendMode, Target};

/// The unsent part of the current request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PendingSend {
    #[default]
    Nothing,
    Pieces(Pieces),
    /// The body, when the server sends 100.
    Body,
    /// Close the connection when all output is sent.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    gap: Duration,
    of: u64,
    sent: u64,
    bytes: u64,
}

/// A connection with a piece due: when, slot and serial.
pub(super) type Due = Reverse<(Instant, u32, u32)>;

impl Pieces {
    /// Size of the next piece; the sizes differ by one byte at most.
    fn next(&mut self) -> u64 {
        let upto = |pieces: u64| self.bytes * pieces / self.of;
        let bytes = upto(self.sent + 1) - upto(self.sent);
        self.sent += 1;
        bytes
    }

    fn is_last(self) -> bool {
        self.sent + 1 >= self.of
    }
}

/// Writes the part of a request that may be sent now. `at_once` overrides the target's send mode.
pub(super) fn begin(
    conn: &mut Conn<ConnState>,
    template: &RequestTemplate,
    is_last: bool,
    at_once: bool,
) -> Result<StreamId, UserError> {
    let send_mode = if at_once {
        SendMode::Whole
    } else {
        template.send_mode
    };
    let Some(body) = template.body.as_ref().filter(|_| {
        template.chunk_bytes.is_some()
            || matches!(
                send_mode,
                SendMode::AwaitContinue | SendMode::DropAfterBytes(_)
            )
    }) else {
        let stream = conn.proto.request_prepared(template.prepared(is_last)?)?;
        if let SendMode::Pieces { pieces, gap } = send_mode {
            start_pieces(conn, pieces, gap);
        }
        return Ok(stream);
    };
    let size = match template.chunk_bytes {
        Some(_) => BodySize::Unknown,
        None => BodySize::Known(body.len() as u64),
    };
    let stream = template.with(is_last, |request| conn.proto.request(request, size))?;
    match send_mode {
        SendMode::AwaitContinue => conn.state.pending_send = PendingSend::Body,
        SendMode::DropAfterBytes(bytes) => {
            let part = body.slice(..body.len().min(bytes as usize));
            write(&mut conn.proto, stream, &part, template.chunk_bytes)?;
            conn.state.pending_send = PendingSend::Close;
        }
        SendMode::Whole | SendMode::Pieces { .. } => {
            write_whole(&mut conn.proto, stream, body, template.chunk_bytes)?;
            if let SendMode::Pieces { pieces, gap } = send_mode {
                start_pieces(conn, pieces, gap);
            }
        }
    }
    Ok(stream)
}

/// Limits the output to the first piece.
fn start_pieces(conn: &mut Conn<ConnState>, pieces: u32, gap: Duration) {
    let bytes = conn.proto.pending_bytes() as u64;
    let of = u64::from(pieces).min(bytes);
    if of < 2 {
        return;
    }
    let mut pieces = Pieces {
        gap,
        of,
        sent: 0,
        bytes,
    };
    conn.limit_sending(Some(pieces.next()));
    conn.state.pending_send = PendingSend::Pieces(pieces);
}

/// Handles 100 Continue: sends the body.
pub(super) fn send_after_continue(
    conn: &mut Conn<ConnState>,
    stream: StreamId,
    targets: &[Target],
) {
    if conn.state.pending_send != PendingSend::Body {
        return;
    }
    conn.state.pending_send = PendingSend::Nothing;
    let request = conn.state.pending.front();
    let Some(target) = request.map(|request| &targets[request.target as usize]) else {
        return;
    };
    if let Some(body) = &target.body {
        // Refused only by a connection that is ending; its events report that.
        let _ = write_whole(&mut conn.proto, stream, body, target.chunk_bytes);
    }
}

/// Writes the body, framed as the target specifies, and its end.
pub(crate) fn write_whole(
    conn: &mut Connection,
    stream: StreamId,
    body: &Bytes,
    chunk_bytes: Option<u64>,
) -> Result<(), UserError> {
    write(conn, stream, body, chunk_bytes)?;
    conn.stream(stream)?.finish()
}

fn write(
    conn: &mut Connection,
    stream: StreamId,
    body: &Bytes,
    chunk_bytes: Option<u64>,
) -> Result<(), UserError> {
    let mut stream = conn.stream(stream)?;
    let step = chunk_bytes
        .map_or(body.len(), |bytes| bytes as usize)
        .max(1);
    let mut at = 0;
    while at < body.len() {
        let end = body.len().min(at.saturating_add(step));
        stream.write_shared(body.slice(at..end))?;
        at = end;
    }
    Ok(())
}

impl Worker {
    /// Schedules what a request just begun sends later.
    pub(super) fn schedule_pending(&mut self, slot: u32, pending_send: PendingSend, now: Instant) {
        let serial = self.slots[slot as usize].serial;
        match pending_send {
            PendingSend::Pieces(pieces) => self.due.push(Reverse((now + pieces.gap, slot, serial))),
            PendingSend::Close => self.closing.push((slot, serial)),
            PendingSend::Nothing | PendingSend::Body => {}
        }
    }

    /// When the next piece is due.
    pub(super) fn next_piece(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }

    pub(super) fn send_pieces(&mut self, now: Instant) {
        while let Some(Reverse((at, slot, serial))) = self.due.peek().copied() {
            if at > now {
                return;
            }
            self.due.pop();
            let state = &self.slots[slot as usize];
            let (State::Open(id), true) = (state.state, state.serial == serial) else {
                continue;
            };
            let Some(conn) = self.engine.conn(id) else {
                continue;
            };
            let PendingSend::Pieces(mut pieces) = conn.state.pending_send else {
                continue;
            };
            if pieces.is_last() {
                conn.limit_sending(None);
                conn.state.pending_send = PendingSend::Nothing;
            } else {
                conn.limit_sending(Some(pieces.next()));
                conn.state.pending_send = PendingSend::Pieces(pieces);
                self.due.push(Reverse((now + pieces.gap, slot, serial)));
            }
            self.engine.flush_and_rearm(id);
        }
    }

    /// Closes the connections whose output is sent, and dials for the repeated request.
    pub(super) fn close_sent(&mut self, now: Instant) {
        for (slot, serial) in std::mem::take(&mut self.closing) {
            let state = &self.slots[slot as usize];
            let (State::Open(id), true) = (state.state, state.serial == serial) else {
                continue;
            };
            let Some(conn) = self.engine.conn(id) else {
                continue;
            };
            if conn.proto.pending_bytes() > 0 {
                self.closing.push((slot, serial));
                continue;
            }
            let Some(request) = conn.state.pending.pop_front() else {
                continue;
            };
            conn.state.slot = None;
            self.live -= 1;
            self.engine.close(id);
            self.slots[slot as usize].closed(None);
            let queued = QueuedRequest {
                target: request.target,
                intended: request.intended,
                follows: Some(request.sent),
            };
            self.dial(slot, Some(queued), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_about_the_same_size_and_add_up() {
        let mut pieces = Pieces {
            gap: Duration::ZERO,
            of: 5,
            sent: 0,
            bytes: 27,
        };
        let mut sizes = Vec::new();
        while !pieces.is_last() {
            sizes.push(pieces.next());
        }
        sizes.push(pieces.next());
        assert_eq!(sizes, [5, 5, 6, 5, 6]);
    }
}
