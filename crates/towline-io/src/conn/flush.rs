//! From the wire core to the socket: one `writev` where the kernel has room, and no system call where
//! there is nothing to say.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use towline_proto::Side;

use crate::conn::file_body::FileFlush;
use crate::conn::{Output, Peer, failure_rule};

/// Slices of one `writev`: sixteen pipelined answers of four pieces each.
const SLICES: usize = 64;

const FEW_SLICES: usize = 4;

/// One write: bytes offered to the kernel and taken by it, and whether that was all there is.
struct Write {
    offered: usize,
    sent: usize,
    whole: bool,
}

/// Where a flush stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushOutcome {
    /// Everything is out.
    All,
    /// The kernel takes nothing more for now.
    Blocked,
    /// The budget is spent: others first.
    Budget,
}

impl<S> Peer<S> {
    /// Sends what waits, `budget` bytes at most (and one write more). A failure is told to the wire core.
    pub(crate) fn flush(&mut self, now: Instant, budget: usize) -> FlushOutcome {
        self.try_flush(now, budget).unwrap_or_else(|error| {
            if self.conn.side() == Side::Client && !self.input.over {
                // A server that refuses an upload answers before it closes, and the answer may be here.
                self.output = Output::Broken;
                self.files.clear();
                self.input.readable = true;
                self.input.closed = true;
            } else {
                self.on_failure(now, failure_rule(&error));
            }
            FlushOutcome::All
        })
    }

    /// As `flush`, and the failure is the caller's to tell.
    pub(crate) fn try_flush(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        match self.output {
            Output::Broken => return Ok(FlushOutcome::All),
            Output::Finished if self.io.tls.is_none() => return Ok(FlushOutcome::All),
            _ => {}
        }
        let flushed = if self.io.tls.is_some() {
            self.flush_tls(now, budget)?
        } else {
            self.flush_plain(now, budget)?
        };
        if self.output != Output::Finished {
            self.output = match flushed {
                FlushOutcome::Blocked => Output::Blocked,
                FlushOutcome::All | FlushOutcome::Budget => Output::Open,
            };
        }
        Ok(flushed)
    }

    fn flush_plain(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        let mut done = 0;
        loop {
            if self.send_allowance == Some(0) {
                return Ok(FlushOutcome::All);
            }
            let write = self.write_once()?;
            if write.offered == 0 {
                match self.flush_file(now)? {
                    FileFlush::Sent(bytes) => done += bytes,
                    FileFlush::Queued => {}
                    FileFlush::Idle => return Ok(FlushOutcome::All),
                    FileFlush::Blocked => return Ok(FlushOutcome::Blocked),
                }
            } else {
                done += write.sent;
                if write.sent > 0 {
                    self.conn.sent(now, write.sent);
                    self.count_sent(now, write.sent);
                    self.spend_allowance(write.sent);
                }
                if write.sent < write.offered {
                    // The kernel is full and will say when it is not: no need to ask it twice.
                    self.conn.sent(now, 0);
                    return Ok(FlushOutcome::Blocked);
                }
                // What has left may have made room for streams that waited for it.
                if write.whole && self.files.is_empty() && self.conn.pending_bytes() == 0 {
                    return Ok(FlushOutcome::All);
                }
            }
            if done >= budget {
                return Ok(FlushOutcome::Budget);
            }
        }
    }

    fn write_once(&self) -> io::Result<Write> {
        if let Some(most) = self.send_allowance {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.conn.send_slices(&mut slices);
            let mut cut = [IoSlice::new(&[]); SLICES];
            let count = cut_to(&slices[..count], most, &mut cut);
            return self.write(&cut[..count], false);
        }
        // The usual answer is one slice: no need to prepare sixty-four.
        let mut few = [IoSlice::new(&[]); FEW_SLICES];
        let count = self.conn.send_slices(&mut few);
        if count < FEW_SLICES {
            return self.write(&few[..count], true);
        }
        let mut many = [IoSlice::new(&[]); SLICES];
        let count = self.conn.send_slices(&mut many);
        self.write(&many[..count], count < SLICES)
    }

    fn write(&self, slices: &[IoSlice<'_>], whole: bool) -> io::Result<Write> {
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let sent = loop {
            if offered == 0 {
                break 0;
            }
            match self.io.send_plain(slices) {
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) => return Err(error),
            }
        };
        Ok(Write {
            offered,
            sent,
            whole,
        })
    }

    /// Records first, then plain bytes in portions of what rustls buffers.
    fn flush_tls(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        let mut done = 0;
        loop {
            let Some(tls) = &mut self.io.tls else {
                return Ok(FlushOutcome::All);
            };
            if tls.wants_write() {
                match tls.flush(&self.io.socket)? {
                    Some(plain) if plain > 0 => {
                        self.conn.sent(now, plain);
                        self.count_sent(now, plain);
                    }
                    Some(_) => {}
                    None => {
                        self.conn.sent(now, 0);
                        return Ok(FlushOutcome::Blocked);
                    }
                }
                continue;
            }
            if done >= budget {
                return Ok(FlushOutcome::Budget);
            }
            self.fill_from_files();
            let Some(tls) = &mut self.io.tls else {
                return Ok(FlushOutcome::All);
            };
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.conn.send_slices(&mut slices);
            let mut cut = [IoSlice::new(&[]); SLICES];
            let slices = match self.send_allowance {
                Some(most) => {
                    let count = cut_to(&slices[..count], most, &mut cut);
                    &cut[..count]
                }
                None => &slices[..count],
            };
            if slices.is_empty() || !tls.accepts_plaintext() {
                return Ok(FlushOutcome::All);
            }
            let taken = tls.encrypt(slices)?;
            done += taken;
            self.spend_allowance(taken);
        }
    }

    fn spend_allowance(&mut self, bytes: usize) {
        if let Some(most) = &mut self.send_allowance {
            *most = most.saturating_sub(bytes as u64);
        }
    }

    /// Says to the peer that nothing more comes from us.
    pub(crate) fn finish_output(&mut self, now: Instant) {
        if matches!(self.output, Output::Finished | Output::Broken) {
            return;
        }
        if let Some(tls) = &mut self.io.tls {
            tls.close_notify();
            if self.flush(now, usize::MAX) == FlushOutcome::Blocked {
                return;
            }
        }
        self.output = Output::Finished;
        // A peer that is gone already is what closing is for.
        let _ = self.io.socket.shutdown(Shutdown::Write);
    }

    /// The last act before the socket is dropped.
    pub(crate) fn close(&mut self, now: Instant) {
        let greeted = !self.io.is_handshaking();
        if let Some(tls) = &mut self.io.tls
            && self.output != Output::Finished
        {
            // An alert may wait too, and a client that failed to greet should learn why.
            if greeted {
                tls.close_notify();
            }
            self.flush(now, usize::MAX);
        }
        if self.conn.interest().abort && greeted {
            // A FIN would look like a valid end of a body that ends with the connection.
            let _ = self.io.socket.set_linger(Some(Duration::ZERO));
        }
    }
}

/// The first `most` bytes of `slices`; how many slices they are.
fn cut_to<'a>(slices: &'a [IoSlice<'a>], most: u64, cut: &mut [IoSlice<'a>]) -> usize {
    let mut left = usize::try_from(most).unwrap_or(usize::MAX);
    let mut count = 0;
    for (slice, place) in slices.iter().zip(cut) {
        if left == 0 {
            break;
        }
        let part = &slice[..slice.len().min(left)];
        left -= part.len();
        *place = IoSlice::new(part);
        count += 1;
    }
    count
}
