//! Requests that are sent in pieces: a limit on the bytes that a connection may send for now.

use std::io::{self, IoSlice};
use std::time::Instant;

use super::state::GeneratorState;
use crate::Conn;
use crate::conn::flush::{FlushOutcome, SLICES, tls_of};

impl<S: GeneratorState> Conn<S> {
    /// Limits sending to the next `bytes`, until this is called again; `None` removes the limit. Not over QUIC. Call
    /// `flush_and_rearm` afterwards.
    pub fn limit_sending(&mut self, bytes: Option<u64>) {
        self.state.generated_mut().allowance = bytes;
    }

    /// Sends what is left of the piece.
    pub(super) fn send_piece(&mut self, now: Instant) -> io::Result<FlushOutcome> {
        loop {
            if !self.flush_records(now)? {
                return Ok(FlushOutcome::Blocked);
            }
            let left = self.state.generated().allowance.unwrap_or(0);
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.proto.send_slices(&mut slices);
            let mut piece = [IoSlice::new(&[]); SLICES];
            let count = cut_to(&slices[..count], left, &mut piece);
            let piece = &piece[..count];
            if piece.is_empty() {
                return Ok(FlushOutcome::All);
            }
            let (sent, is_blocked) = match tls_of(&mut self.io) {
                Some((tls, _)) if !tls.accepts_plaintext() => return Ok(FlushOutcome::All),
                Some((tls, _)) => (tls.encrypt(piece)?, false),
                None => {
                    let write = self.write(piece, false)?;
                    (write.sent, !self.on_written(&write, now))
                }
            };
            self.state.generated_mut().allowance = Some(left.saturating_sub(sent as u64));
            if is_blocked {
                return Ok(FlushOutcome::Blocked);
            }
        }
    }
}

/// Copies the first `max_bytes` bytes of `slices` to `cut` and returns the number of slices.
fn cut_to<'a>(slices: &'a [IoSlice<'a>], max_bytes: u64, cut: &mut [IoSlice<'a>]) -> usize {
    let mut left = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let mut count = 0;
    for (slice, out) in slices.iter().zip(cut) {
        if left == 0 {
            break;
        }
        let part = &slice[..slice.len().min(left)];
        left -= part.len();
        *out = IoSlice::new(part);
        count += 1;
    }
    count
}
