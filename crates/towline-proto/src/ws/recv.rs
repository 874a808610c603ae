//! Receiving: bytes into frames, frames into messages, one event at a time.

use std::time::Instant;

use super::close::{self, CloseFrame};
use super::frame::{MAX_HEAD_BYTES, Opcode, Start};
use super::limits::FRAGMENT_CHARGE_BYTES;
use super::mask::Mask;
use super::state::{Message, PendingEvent, Phase, RecvState};
use super::utf8::Validator;
use super::{Kind, Scratch, Violation, WebSocket, rules};
use crate::Side;

/// A buffer grows with the received bytes, never with the announced length.
const FIRST_BYTES: usize = 16 * 1024;

impl WebSocket {
    /// Minimum number of bytes that `receive` takes before there is an event; 0: none will be taken any more.
    pub fn wanted_bytes(&self) -> usize {
        match &self.recv {
            RecvState::Head { bytes, len } => {
                let len = usize::from(*len);
                let whole = match (bytes, self.side) {
                    // The shortest heads: with a masking key if sent by a client.
                    (_, Side::Server) if len < 2 => 6,
                    (_, Side::Client) if len < 2 => 2,
                    ([first, second, ..], side) => {
                        Start::parse([*first, *second], side, self.inbound.is_some())
                            .map_or(len + 1, Start::head_bytes)
                    }
                };
                whole - len
            }
            RecvState::Payload { left, .. } => usize::try_from(*left).unwrap_or(usize::MAX),
            RecvState::Ended => 0,
        }
    }

    /// Takes received bytes up to the end of an event, and returns their number. Call `next_event`
    /// afterwards.
    pub fn receive(&mut self, now: Instant, data: &[u8], scratch: &mut Scratch) -> usize {
        self.recycle_delivered(scratch);
        let mut rest = data;
        while self.pending == PendingEvent::None && !rest.is_empty() {
            let taken = match self.recv {
                RecvState::Head { .. } => self.receive_head(now, rest, scratch),
                RecvState::Payload { .. } => self.receive_payload(now, rest, scratch),
                RecvState::Ended => break,
            };
            match taken {
                Ok(n) => rest = &rest[n..],
                Err(violation) => {
                    self.fail(violation);
                    break;
                }
            }
        }
        data.len() - rest.len()
    }

    /// Recycles the buffer of a delivered message.
    fn recycle_delivered(&mut self, scratch: &mut Scratch) {
        if self.pending == PendingEvent::None
            && self
                .message
                .as_ref()
                .is_some_and(|message| message.complete)
            && let Some(message) = self.message.take()
        {
            scratch.recycle(message.data);
        }
    }

    fn receive_head(
        &mut self,
        now: Instant,
        data: &[u8],
        scratch: &mut Scratch,
    ) -> Result<usize, Violation> {
        let RecvState::Head { bytes, len } = &mut self.recv else {
            return Ok(0);
        };
        let before = usize::from(*len);
        let n = data.len().min(MAX_HEAD_BYTES - before);
        bytes[before..before + n].copy_from_slice(&data[..n]);
        let have = before + n;
        // A head is left only when it is complete, so `len` counts bytes of this head.
        *len = have as u8;
        if have < 2 {
            return Ok(n);
        }
        let head = *bytes;
        let start = Start::parse([head[0], head[1]], self.side, self.inbound.is_some())?;
        self.check_order(start)?;
        let whole = start.head_bytes();
        if have < whole {
            return Ok(n);
        }
        let (left, key) = start.rest(&head)?;
        self.begin_frame(start, left, scratch)?;
        let mask = Mask::new(key);
        self.recv = RecvState::Payload { start, left, mask };
        if left == 0 {
            self.end_frame(now, start, scratch)?;
        }
        Ok(whole - before)
    }

    /// Fragments of a message follow one another (RFC 6455 5.4).
    fn check_order(&self, start: Start) -> Result<(), Violation> {
        match (start.opcode, &self.message) {
            // Messages after the own close frame are skipped.
            _ if self.phase != Phase::Open => Ok(()),
            (Opcode::Continuation, None) => Err(rules::NOTHING_TO_CONTINUE),
            (Opcode::Text | Opcode::Binary, Some(_)) => Err(rules::MESSAGE_IN_MESSAGE),
            _ => Ok(()),
        }
    }

    /// Checks the announced length against the limits before any of the frame is buffered.
    fn begin_frame(
        &mut self,
        start: Start,
        len: u64,
        scratch: &mut Scratch,
    ) -> Result<(), Violation> {
        if start.opcode.is_control() {
            self.control.clear();
            return Ok(());
        }
        if self.phase != Phase::Open {
            return Ok(());
        }
        let kind = match start.opcode {
            Opcode::Text => Kind::Text,
            _ => Kind::Binary,
        };
        let inflation = match &self.inbound {
            Some(inbound) if start.compressed => Some(inbound.start(scratch)?),
            _ => None,
        };
        let message = self.message.get_or_insert_with(|| Message {
            kind,
            data: scratch.buffer(),
            complete: false,
            charged: 0,
            text: Validator::default(),
            inflation,
        });
        let least = match start.opcode {
            Opcode::Continuation => FRAGMENT_CHARGE_BYTES as u64,
            _ => 0,
        };
        message.charged = message.charged.saturating_add(len.max(least));
        let max = self.limits.max_message_bytes as u64;
        let received = message.data.len() as u64;
        if message.inflation.is_none() && len > max.saturating_sub(received) {
            return Err(rules::MESSAGE_SIZE);
        }
        // Incompressible data have a few extra bytes per block.
        let max = max.max(self.limits.max_fragments_bytes as u64);
        if message.charged > max.saturating_add(max / 256 + 64) {
            return Err(rules::FRAGMENTS);
        }
        Ok(())
    }

    fn receive_payload(
        &mut self,
        now: Instant,
        data: &[u8],
        scratch: &mut Scratch,
    ) -> Result<usize, Violation> {
        let RecvState::Payload { start, left, mask } = &mut self.recv else {
            return Ok(0);
        };
        let start = *start;
        let piece = &data[..data.len().min(usize::try_from(*left).unwrap_or(usize::MAX))];
        if start.opcode.is_control() {
            mask.append(piece, &mut self.control);
        } else if let Some(message) = &mut self.message {
            let max = self.limits.max_message_bytes;
            let before = message.data.len();
            if let (Some(inflation), Some(inbound)) = (&mut message.inflation, &self.inbound) {
                let mut compressed = scratch.buffer();
                mask.append(piece, &mut compressed);
                let result = inbound.inflate(inflation, &compressed, &mut message.data, max);
                scratch.recycle(compressed);
                if let Err(violation) = result {
                    // Errors in the text before it take precedence, however the frame was cut.
                    message.data.truncate(max);
                    message.check_text(before)?;
                    return Err(violation);
                }
            } else {
                make_room(&mut message.data, piece.len(), *left);
                mask.append(piece, &mut message.data);
            }
            message.check_text(before)?;
        }
        *left -= piece.len() as u64;
        if *left == 0 {
            self.end_frame(now, start, scratch)?;
        }
        Ok(piece.len())
    }

    fn end_frame(
        &mut self,
        now: Instant,
        start: Start,
        scratch: &mut Scratch,
    ) -> Result<(), Violation> {
        self.recv = RecvState::default();
        match start.opcode {
            Opcode::Ping => {
                if self.phase == Phase::Open {
                    self.outbox.pong = Some(self.control.clone());
                }
                self.pending = PendingEvent::Ping;
            }
            Opcode::Pong => {
                self.keepalive.pong(now, &self.control);
                self.pending = PendingEvent::Pong;
            }
            Opcode::Close => self.receive_close(now)?,
            _ if start.fin => self.end_message(scratch)?,
            _ => {}
        }
        Ok(())
    }

    fn end_message(&mut self, scratch: &mut Scratch) -> Result<(), Violation> {
        let Some(message) = &mut self.message else {
            return Ok(());
        };
        if let (Some(inflation), Some(inbound)) = (message.inflation.take(), &mut self.inbound) {
            let before = message.data.len();
            let max = self.limits.max_message_bytes;
            inbound.finish(inflation, &mut message.data, max, scratch)?;
            message.check_text(before)?;
        }
        message.text.finish().map_err(|_| rules::TEXT)?;
        message.complete = true;
        self.pending = PendingEvent::Message;
        Ok(())
    }

    fn receive_close(&mut self, now: Instant) -> Result<(), Violation> {
        let (code, reason) = close::parse(&self.control)?;
        if self.phase == Phase::Open {
            self.outbox.close = Some(CloseFrame::echo(code, reason));
        }
        (self.outbox.ping, self.outbox.pong) = (None, None);
        self.phase = match self.side {
            Side::Server => Phase::Finished,
            Side::Client => Phase::AwaitingEof {
                until: now + self.limits.close_timeout,
            },
        };
        self.recv = RecvState::Ended;
        self.message = None;
        self.pending = PendingEvent::Close;
        Ok(())
    }
}

/// Reserves space for a piece of a payload of which `left` bytes are still to come, this piece included.
fn make_room(data: &mut Vec<u8>, piece: usize, left: u64) {
    if data.capacity() - data.len() < piece {
        let ahead = data.len().max(FIRST_BYTES).max(piece);
        data.reserve_exact(usize::try_from(left).unwrap_or(ahead).min(ahead));
    }
}
