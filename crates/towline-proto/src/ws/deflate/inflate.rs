//! Decompression of messages that arrive in pieces.

use flate2::{Decompress, FlushDecompress, Status};

use super::window::Window;
use super::{Direction, TAIL};
use crate::ws::{Scratch, Violation, rules};

/// A final block without content. After [`TAIL`] it ends the stream, and only if the message ended at the end of
/// a block: a block cut short would continue in the next message.
const END: [u8; 5] = [0x01, 0x00, 0x00, 0xff, 0xff];

/// First size of a buffer.
const STEP_BYTES: usize = 1024;

/// The context of received messages.
#[derive(Debug)]
pub(in crate::ws) struct Inbound {
    window: Window,
}

/// A compressed message in progress.
#[derive(Debug)]
pub(in crate::ws) struct Inflation {
    stream: Decompress,
}

impl Inbound {
    pub fn new(direction: Direction) -> Self {
        Self {
            window: Window::new(direction),
        }
    }

    pub fn start(&self, scratch: &mut Scratch) -> Result<Inflation, Violation> {
        let mut stream = scratch.inflater();
        load(&mut stream, self.window.bytes())?;
        Ok(Inflation { stream })
    }

    /// Appends the plain text of `input` to `message`, which holds the text so far; never exceeds `max` by
    /// more than the spare capacity it had.
    pub fn inflate(
        &self,
        inflation: &mut Inflation,
        mut input: &[u8],
        message: &mut Vec<u8>,
        max: usize,
    ) -> Result<(), Violation> {
        let stream = &mut inflation.stream;
        loop {
            grow(message, max);
            let (before, len) = (stream.total_in(), message.len());
            let status = stream
                .decompress_vec(input, message, FlushDecompress::None)
                .map_err(|_| rules::COMPRESSION)?;
            let taken = (stream.total_in() - before) as usize;
            input = &input[taken..];
            if message.len() > max {
                return Err(rules::MESSAGE_SIZE);
            }
            if status == Status::StreamEnd {
                // A final block ends the stream, not the message, and the window stays (RFC 7692 7.2.3.4).
                stream.reset(false);
                load(stream, &self.window.with(message))?;
            }
            if message.len() < message.capacity() {
                if input.is_empty() {
                    return Ok(());
                }
                if taken == 0 && message.len() == len {
                    return Err(rules::COMPRESSION);
                }
            }
        }
    }

    /// Ends a complete message.
    pub fn finish(
        &mut self,
        mut inflation: Inflation,
        message: &mut Vec<u8>,
        max: usize,
        scratch: &mut Scratch,
    ) -> Result<(), Violation> {
        self.inflate(&mut inflation, &TAIL, message, max)?;
        let mut stream = inflation.stream;
        let mut none = [0; 1];
        match stream.decompress(&END, &mut none, FlushDecompress::None) {
            Ok(Status::StreamEnd) if none == [0] => {}
            _ => return Err(rules::COMPRESSION),
        }
        scratch.recycle_inflater(stream);
        self.window.record(message);
        Ok(())
    }
}

fn load(stream: &mut Decompress, window: &[u8]) -> Result<(), Violation> {
    if !window.is_empty() {
        stream
            .set_dictionary(window)
            .map_err(|_| rules::COMPRESSION)?;
    }
    Ok(())
}

/// Reserves capacity: doubles the buffer, but not beyond the maximum and one byte to detect an excess.
fn grow(message: &mut Vec<u8>, max: usize) {
    if message.len() == message.capacity() {
        let left = max - message.len().min(max);
        let wanted = message.len().max(STEP_BYTES);
        message.reserve_exact(wanted.min(left.saturating_add(1)));
    }
}
