//! Send modes that take several steps: in pieces, after 100 Continue, with the connection closed midway.
//!
//! ```text
//! begin ─► Pieces ──pause──► the next piece ... the last ─► Nothing
//!      ├─► Body ──100──► the body is sent ─► Nothing           (a final response: the connection ends)
//!      └─► Close ──all sent──► closed ─► the request again, whole, on a new connection
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use towline_io::Conn;
use towline_proto::{BodySize, Connection, StreamId, UserError};

use super::Worker;
use super::conn_state::{ConnState, PendingSend, Pieces};
use super::slot::QueuedRequest;
use super::templates::RequestTemplate;
use crate::target::{SendMode, Target};

/// Connections that send something later.
#[derive(Default)]
pub(super) struct DelayedSends {
    /// Connections with a piece to send, soonest first.
    due: BinaryHeap<Reverse<(Instant, SlotConn)>>,
    /// Connections to close when all output is sent.
    closing: Vec<SlotConn>,
}

/// A connection by its slot and serial.
type SlotConn = (u32, u32);

impl DelayedSends {
    /// Schedules what a request just begun sends later.
    pub(super) fn add(&mut self, conn: SlotConn, pending_send: PendingSend, now: Instant) {
        match pending_send {
            PendingSend::Pieces(pieces) => self.due.push(Reverse((now + pieces.gap, conn))),
            PendingSend::Close => self.closing.push(conn),
            PendingSend::Nothing | PendingSend::Body => {}
        }
    }

    /// When the next piece is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// A connection whose piece is due.
    fn pop_due(&mut self, now: Instant) -> Option<SlotConn> {
        self.next().filter(|at| *at <= now)?;
        self.due.pop().map(|Reverse((_, conn))| conn)
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
    if let Some(mut pieces) = Pieces::new(pieces, gap, bytes) {
        conn.limit_sending(Some(pieces.next()));
        conn.state.pending_send = PendingSend::Pieces(pieces);
    }
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
    pub(super) fn send_pieces(&mut self, now: Instant) {
        while let Some((slot, serial)) = self.delayed.pop_due(now) {
            let Some(id) = self.slots.open_with(slot, serial) else {
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
                let pending_send = conn.state.pending_send;
                self.delayed.add((slot, serial), pending_send, now);
            }
            self.engine.flush_and_rearm(id);
        }
    }

    /// Closes the connections whose output is sent, and dials for the repeated request.
    pub(super) fn close_sent(&mut self, now: Instant) {
        for (slot, serial) in std::mem::take(&mut self.delayed.closing) {
            let Some(id) = self.slots.open_with(slot, serial) else {
                continue;
            };
            let Some(conn) = self.engine.conn(id) else {
                continue;
            };
            if conn.proto.pending_bytes() > 0 {
                self.delayed.closing.push((slot, serial));
                continue;
            }
            let Some(request) = conn.state.pending.pop_front() else {
                continue;
            };
            conn.state.slot = None;
            self.engine.close(id);
            self.slots.close(slot);
            let queued = QueuedRequest {
                target: request.target,
                intended: request.intended,
                follows: Some(request.sent),
            };
            self.dial(slot, Some(queued), now);
        }
    }
}
