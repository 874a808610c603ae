//! Sending: messages of the program, and queued control frames.

use std::time::Instant;

use bytes::Bytes;

use super::close::CloseFrame;
use super::frame::{FrameHead, Opcode};
use super::mask::Mask;
use super::rules::MAX_CONTROL_BYTES;
use super::state::{Phase, SendState};
use super::{Kind, Scratch, SendError, WebSocket};
use crate::Side;

/// A frame to send: the payload of an uncompressed message of a server shares the program's memory.
#[derive(Debug)]
pub struct Frame {
    /// Sent first.
    pub head: FrameHead,
    /// Sent after the head.
    pub payload: Bytes,
}

/// How a message or fragment is sent.
struct Piece {
    opcode: Opcode,
    compressed: bool,
    /// The compressed payload, in place of the program's.
    payload: Option<Vec<u8>>,
}

impl WebSocket {
    /// Frames a message, or with `fin: false` a fragment of one, without unnecessary copies. The program must
    /// ensure that the fragments of a text message form valid UTF-8.
    pub fn frame(
        &mut self,
        kind: Kind,
        data: Bytes,
        fin: bool,
        scratch: &mut Scratch,
    ) -> Result<Frame, SendError> {
        let piece = self.piece(kind, &data, fin, scratch)?;
        let (payload, key) = match (self.side, piece.payload) {
            (Side::Server, Some(compressed)) => (Bytes::from(compressed), None),
            (Side::Server, None) => (data, None),
            (Side::Client, compressed) => {
                let key = scratch.mask();
                let mut masked = compressed.unwrap_or_else(|| data.to_vec());
                Mask::new(key).apply(&mut masked);
                (Bytes::from(masked), Some(key))
            }
        };
        let head = FrameHead::new(piece.opcode, fin, piece.compressed, payload.len(), key);
        Ok(Frame { head, payload })
    }

    /// Like [`frame`](Self::frame) for short messages: appends the whole frame to `out`.
    pub fn send(
        &mut self,
        kind: Kind,
        data: &[u8],
        fin: bool,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        let piece = self.piece(kind, data, fin, scratch)?;
        let payload = piece.payload.as_deref().unwrap_or(data);
        self.append(piece.opcode, fin, piece.compressed, payload, scratch, out);
        if let Some(buffer) = piece.payload {
            scratch.recycle(buffer);
        }
        Ok(())
    }

    /// Sends a ping of the program; its pong comes as an event.
    pub fn ping(
        &mut self,
        payload: &[u8],
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        self.control_frame(Opcode::Ping, payload, scratch, out)
    }

    /// Sends an unsolicited pong (RFC 6455 5.5.3); pongs to pings are sent automatically.
    pub fn pong(
        &mut self,
        payload: &[u8],
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        self.control_frame(Opcode::Pong, payload, scratch, out)
    }

    /// Starts the closing handshake: the close frame is sent after everything sent so far. Messages that
    /// still arrive are skipped; the peer's close frame comes as the last event.
    pub fn close(&mut self, now: Instant, code: u16, reason: &str) -> Result<(), SendError> {
        if self.phase != Phase::Open {
            return Err(SendError::Closing);
        }
        self.outbox.close = Some(CloseFrame::new(code, reason)?);
        (self.outbox.ping, self.outbox.pong) = (None, None);
        self.phase = Phase::Closing {
            until: now + self.limits.close_timeout,
        };
        self.message = self.message.take().filter(|message| message.complete);
        self.send_state = SendState::Idle;
        Ok(())
    }

    /// Control frames are queued: pongs, the close reply, keep-alive pings or the own close frame.
    pub fn has_output(&self) -> bool {
        self.outbox.pong.is_some() || self.outbox.ping.is_some() || self.outbox.close.is_some()
    }

    /// Appends the queued control frames. To be called when the stream has send capacity, and not before: the
    /// queue is bounded, since a later ping replaces an earlier one.
    pub fn transmit(&mut self, scratch: &mut Scratch, out: &mut Vec<u8>) {
        if let Some(payload) = self.outbox.pong.take() {
            self.append(Opcode::Pong, true, false, &payload, scratch, out);
        }
        if let Some(payload) = self.outbox.ping.take() {
            self.append(Opcode::Ping, true, false, &payload, scratch, out);
        }
        if let Some(frame) = self.outbox.close.take() {
            self.append(Opcode::Close, true, false, &frame.payload(), scratch, out);
        }
    }

    fn control_frame(
        &self,
        opcode: Opcode,
        payload: &[u8],
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        if self.phase != Phase::Open {
            return Err(SendError::Closing);
        }
        if payload.len() > MAX_CONTROL_BYTES {
            return Err(SendError::TooLong);
        }
        self.append(opcode, true, false, payload, scratch, out);
        Ok(())
    }

    fn append(
        &self,
        opcode: Opcode,
        fin: bool,
        compressed: bool,
        payload: &[u8],
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) {
        let key = (self.side == Side::Client).then(|| scratch.mask());
        let head = FrameHead::new(opcode, fin, compressed, payload.len(), key);
        out.reserve(head.as_bytes().len() + payload.len());
        out.extend_from_slice(head.as_bytes());
        Mask::new(key.unwrap_or_default()).append(payload, out);
    }

    /// Decides the opcode and the compression of a message or fragment, and advances the state.
    fn piece(
        &mut self,
        kind: Kind,
        data: &[u8],
        fin: bool,
        scratch: &mut Scratch,
    ) -> Result<Piece, SendError> {
        if self.phase != Phase::Open {
            return Err(SendError::Closing);
        }
        let opcode = match (&self.send_state, kind) {
            (SendState::Fragments { kind: begun, .. }, _) if *begun != kind => {
                return Err(SendError::OtherKind);
            }
            (SendState::Fragments { .. }, _) => Opcode::Continuation,
            (SendState::Idle, Kind::Text) => Opcode::Text,
            (SendState::Idle, Kind::Binary) => Opcode::Binary,
        };
        let first = opcode != Opcode::Continuation;
        let payload = if first && fin {
            self.compress_whole(data, scratch)
        } else {
            self.compress_fragment(kind, data, fin, scratch)
        };
        Ok(Piece {
            opcode,
            compressed: first && payload.is_some(),
            payload,
        })
    }

    fn compress_whole(&mut self, data: &[u8], scratch: &mut Scratch) -> Option<Vec<u8>> {
        let outbound = self.outbound.as_mut()?;
        if !outbound.should_compress(data.len(), true) {
            return None;
        }
        let mut out = scratch.buffer();
        if outbound.compress_whole(&mut scratch.compressors, data, &mut out) {
            Some(out)
        } else {
            scratch.recycle(out);
            None
        }
    }

    fn compress_fragment(
        &mut self,
        kind: Kind,
        data: &[u8],
        fin: bool,
        scratch: &mut Scratch,
    ) -> Option<Vec<u8>> {
        let mut compressor = match std::mem::replace(&mut self.send_state, SendState::Idle) {
            SendState::Fragments { compressor, .. } => compressor,
            SendState::Idle => self
                .outbound
                .as_ref()
                .filter(|outbound| outbound.should_compress(data.len(), false))
                .map(|outbound| outbound.start(&mut scratch.compressors)),
        };
        let payload = match (&mut self.outbound, &mut compressor) {
            (Some(outbound), Some(compressor)) => {
                let mut out = scratch.buffer();
                outbound.compress(compressor, data, fin, &mut out);
                Some(out)
            }
            _ => None,
        };
        if !fin {
            self.send_state = SendState::Fragments { kind, compressor };
        } else if let (Some(outbound), Some(compressor)) = (&self.outbound, compressor) {
            outbound.release(compressor, &mut scratch.compressors);
        }
        payload
    }
}
